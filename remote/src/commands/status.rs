//! `status`: where a pool's remote is, and how far it has come.

use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use tensorfs_layout::check::Committed;
use tensorfs_layout::pool::Carrying;

use crate::carry::{Healing, Pace};
use crate::commands::cli;
use crate::commands::place::note_of;
use crate::commands::show;
use crate::crypt::Id;
use crate::error::Result;

#[derive(Clone, Copy, Serialize)]
struct LeftOut {
    left_out_files: u64,
    left_out_bytes: u64,
}

#[derive(Serialize)]
struct Status {
    url: String,
    /// The file of the key that it is encrypted with.
    #[serde(skip_serializing_if = "Option::is_none")]
    key_file: Option<PathBuf>,
    /// Which remote of that key it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<Id>,
    batch: u64,
    transaction: u64,
    transactions_behind: u64,
    #[serde(flatten)]
    pace: Pace,
    carried: Option<i64>,
    seconds_since: Option<u64>,
    incomplete_files: u64,
    #[serde(flatten)]
    left_out: LeftOut,
    healing: Healing,
    /// Whether a carrier is at work.
    carrier: bool,
    error: Option<String>,
}

/// False if the last carrier failed, or what the remote has is too old.
pub fn run(arguments: &cli::Status) -> Result<bool> {
    let note = note_of(&arguments.pool)?;
    let committed = Committed::read(&arguments.pool)?.transaction().0;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let status = Status {
        url: note.settings.url,
        key_file: note.settings.key_file,
        id: note.settings.id,
        batch: note.number,
        transaction: note.transaction,
        transactions_behind: committed.saturating_sub(note.transaction),
        pace: note.pace,
        carried: note.carried,
        seconds_since: note.carried.map(|then| now.saturating_sub(then.max(0) as u64)),
        incomplete_files: note.coverage.incomplete,
        left_out: LeftOut { left_out_files: note.coverage.left_out.0, left_out_bytes: note.coverage.left_out.1 },
        healing: note.healing,
        carrier: Carrying::is_taken(&arguments.pool)?,
        error: note.error.or(note.collection.collect_error.map(|error| format!("garbage was not collected: {error}"))),
    };
    let is_too_old = arguments.max_age.is_some_and(|most| status.seconds_since.is_none_or(|since| since > most));
    let is_well = status.error.is_none() && status.healing.unmended_files == 0 && !is_too_old;
    if arguments.json {
        show::json(&status);
        return Ok(is_well);
    }
    show::line(&format!("remote      {}", status.url));
    if let Some(key) = &status.key_file {
        let id = status.id.map_or_else(String::new, |id| format!(", as the remote {}", id.text()));
        show::line(&format!("encrypted   with the key in {}{id}", key.display()));
    }
    match status.seconds_since {
        Some(seconds) => show::line(&format!("carried     {seconds} seconds ago, in batch {}", status.batch)),
        None => show::line("carried     never"),
    }
    show::line(&format!("behind      {} transactions", status.transactions_behind));
    let Pace { behind, put_bytes, put_bytes_per_second } = status.pace;
    if behind.files > 0 {
        let (files, bytes) = (behind.files, show::bytes(behind.bytes));
        show::line(&format!("            {bytes} of {files} files, when the carrier looked last"));
    }
    if let Some(rate) = put_bytes_per_second {
        let (put, rate) = (show::bytes(put_bytes), show::bytes(rate));
        show::line(&format!("put         {put} since it was set, the last at {rate} a second"));
    }
    if status.incomplete_files > 0 {
        show::line(&format!("incomplete  {} files, which were open or are damaged", status.incomplete_files));
    }
    let LeftOut { left_out_files, left_out_bytes } = status.left_out;
    if left_out_files > 0 {
        let (files, bytes) = (left_out_files, show::bytes(left_out_bytes));
        show::line(&format!("left out    {files} files with {bytes}"));
    }
    if let Some(last) = &status.healing.last {
        let (seconds, batch) = (now.saturating_sub(last.time.max(0) as u64), last.batch);
        let mended = format!("{} files, {} the last, {seconds} seconds ago", status.healing.mended, last.path);
        show::line(&format!("mended      {mended}, with the tree after batch {batch}"));
    }
    for one in &status.healing.unmended {
        show::line(&format!("damaged     {}: not mended: {}", one.path, one.why));
    }
    let others = status.healing.unmended_files.saturating_sub(status.healing.unmended.len() as u64);
    if others > 0 {
        show::line(&format!("damaged     {others} other files, not mended"));
    }
    show::line(if status.carrier { "carrier     at work" } else { "carrier     none is at work" });
    if let Some(error) = &status.error {
        show::line(&format!("error       {error}"));
    }
    Ok(is_well)
}
