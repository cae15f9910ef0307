//! `status`: where a pool's remote is, and how far it has come.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use tensorfs_layout::check::Committed;

use crate::commands::cli;
use crate::commands::place::note_of;
use crate::commands::show;
use crate::error::Result;

#[derive(Serialize)]
struct Status {
    url: String,
    batch: u64,
    transaction: u64,
    transactions_behind: u64,
    carried: Option<i64>,
    seconds_since: Option<u64>,
    incomplete_files: u64,
    error: Option<String>,
}

/// False if the last pass failed.
pub fn run(arguments: &cli::Status) -> Result<bool> {
    let note = note_of(&arguments.pool)?;
    let committed = Committed::read(&arguments.pool)?.transaction().0;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let status = Status {
        url: note.settings.url,
        batch: note.number,
        transaction: note.transaction,
        transactions_behind: committed.saturating_sub(note.transaction),
        carried: note.carried,
        seconds_since: note.carried.map(|then| now.saturating_sub(then.max(0) as u64)),
        incomplete_files: note.incomplete,
        error: note.error,
    };
    if arguments.json {
        show::json(&status);
        return Ok(status.error.is_none());
    }
    show::line(&format!("remote      {}", status.url));
    match status.seconds_since {
        Some(seconds) => show::line(&format!("carried     {seconds} seconds ago, in batch {}", status.batch)),
        None => show::line("carried     never"),
    }
    show::line(&format!("behind      {} transactions", status.transactions_behind));
    if status.incomplete_files > 0 {
        show::line(&format!("incomplete  {} files, which were open or are damaged", status.incomplete_files));
    }
    if let Some(error) = &status.error {
        show::line(&format!("error       {error}"));
    }
    Ok(status.error.is_none())
}
