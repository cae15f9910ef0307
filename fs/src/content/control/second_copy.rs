//! What the carrier of a pool has noted in it of its second copy (docs/REMOTE.md), and how far behind that is.

use std::time::{SystemTime, UNIX_EPOCH};

use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};
use tensorfs_layout::TxId;
use tensorfs_layout::pool::Carried;

/// A pool's second copy.
///
/// Fields are only ever added.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SecondCopy {
    /// Where it is; only who may look into the pool is told.
    pub url: Option<String>,
    /// The number of its newest batch.
    pub batch: u64,
    /// When it was last as the pool was, in seconds since 1970.
    pub carried: Option<i64>,
    /// For how long it has not been as the pool is; `None` if it never was.
    pub seconds_behind: Option<u64>,
    /// Durable transactions of the pool that it has not.
    pub transactions_behind: u64,
    /// Files of which it had not all bytes when the carrier looked last.
    pub files_behind: u64,
    /// Bytes of these that the carrier has to look at, as it saw it last.
    pub bytes_behind: u64,
    /// Files of it that were open when they were carried, or are damaged.
    pub incomplete_files: u64,
    /// Bytes that were put since it was set.
    pub put_bytes: u64,
    /// Bytes a second that were put when there were some last.
    pub put_bytes_per_second: Option<u64>,
    /// Whether a carrier is at work.
    pub carrier: bool,
    /// What a carrier failed with last, if none has succeeded since.
    pub error: Option<String>,
    /// Why what it does not need could not be removed last.
    pub collect_error: Option<String>,
    /// Damaged files of the pool that were mended with it.
    pub mended_files: u64,
    /// Those that could not be.
    pub unmended_files: u64,
    /// Some of these.
    pub unmended: Vec<Unmended>,
}

/// A damaged file that could not be mended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unmended {
    /// Its path on the mount.
    pub path: String,
    /// Why.
    pub why: String,
}

/// The carrier's note, as far as it is told here.
#[derive(Deserialize)]
struct Note {
    settings: Settings,
    /// The uuid of the pool that it is of.
    pool: String,
    number: u64,
    transaction: u64,
    carried: Option<i64>,
    #[serde(default)]
    files_behind: u64,
    #[serde(default)]
    bytes_behind: u64,
    #[serde(default)]
    incomplete: u64,
    #[serde(default)]
    put_bytes: u64,
    #[serde(default)]
    put_bytes_per_second: Option<u64>,
    error: Option<String>,
    #[serde(default)]
    collect_error: Option<String>,
    #[serde(default)]
    healing: Healing,
}

#[derive(Deserialize)]
struct Settings {
    url: String,
}

#[derive(Default, Deserialize)]
struct Healing {
    mended: u64,
    unmended_files: u64,
    unmended: Vec<Unmended>,
}

impl SecondCopy {
    /// That of a pool, by its carrier's note, if it has one. Root takes no other user's word for it.
    pub fn of(carried: &Carried, uuid: &str, durable: TxId) -> Option<Self> {
        if geteuid().is_root() && carried.owner != 0 {
            return None;
        }
        let note: Note = serde_json::from_slice(&carried.note).ok()?;
        let transactions_behind = durable.0.saturating_sub(note.transaction);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64);
        let since = note.carried.map(|then| now.saturating_sub(then).max(0) as u64);
        (note.pool == uuid).then(|| Self {
            url: Some(note.settings.url),
            batch: note.number,
            carried: note.carried,
            seconds_behind: since.map(|since| if transactions_behind == 0 { 0 } else { since }),
            transactions_behind,
            files_behind: note.files_behind,
            bytes_behind: note.bytes_behind,
            incomplete_files: note.incomplete,
            put_bytes: note.put_bytes,
            put_bytes_per_second: note.put_bytes_per_second,
            carrier: carried.is_taken,
            error: note.error,
            collect_error: note.collect_error,
            mended_files: note.healing.mended,
            unmended_files: note.healing.unmended_files,
            unmended: note.healing.unmended,
        })
    }

    /// What everybody may know of it: where it is, and what its store and the names of files are, is left out.
    pub fn without_names(self) -> Self {
        let unnamed = |error: Option<String>| error.map(|_| "only who may look into the pool is told".to_owned());
        let (error, collect_error) = (unnamed(self.error), unnamed(self.collect_error));
        Self { url: None, error, collect_error, unmended: Vec::new(), ..self }
    }
}
