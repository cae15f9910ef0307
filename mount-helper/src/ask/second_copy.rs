//! What the carrier of a pool has noted in it of its second copy (docs/REMOTE.md).

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use nix::unistd::geteuid;
use serde::Deserialize;
use tensorfs_layout::pool::carried;

use crate::show::text;

/// What is known of a second copy.
#[derive(Debug, Deserialize)]
pub struct SecondCopy {
    settings: Settings,
    /// The uuid of the pool that it is of.
    pool: String,
    /// When the second copy was as the pool is, in seconds since 1970.
    carried: Option<i64>,
    /// Why the last carrier failed, if it did.
    error: Option<String>,
    /// Why what it does not need could not be removed.
    #[serde(default)]
    collect_error: Option<String>,
    /// What came of mending files of the pool.
    #[serde(default)]
    healing: Healing,
}

#[derive(Debug, Default, Deserialize)]
struct Healing {
    unmended: Vec<Unmended>,
}

#[derive(Debug, Deserialize)]
struct Unmended {
    path: String,
    why: String,
}

#[derive(Debug, Deserialize)]
struct Settings {
    url: String,
}

impl SecondCopy {
    /// That of a pool, if it has one and whoever asks may know. Root takes no other user's word for it.
    pub fn of(pool: &Path, uuid: &str) -> Option<Self> {
        let carried = carried(pool).ok()??;
        if geteuid().is_root() && carried.owner != 0 {
            return None;
        }
        let found: Self = serde_json::from_slice(&carried.note).ok()?;
        (found.pool == uuid).then_some(found)
    }

    /// Where it is, and of when.
    pub fn is_of(&self) -> String {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64);
        let when = match self.carried {
            Some(then) => format!("as the pool was {} seconds ago", now.saturating_sub(then).max(0)),
            None => "nothing was carried yet".to_owned(),
        };
        format!("{}: {when}", self.settings.url.escape_debug())
    }

    /// What is wrong with it, or of no use.
    pub fn problems(&self) -> Vec<String> {
        let unmended = self
            .healing
            .unmended
            .first()
            .map(|one| text::plain(&format!("its second copy does not mend {}: {}", one.path, one.why)));
        self.problem().into_iter().chain(unmended).collect()
    }

    /// What keeps it from being as the pool is.
    fn problem(&self) -> Option<String> {
        let carried = self.error.as_ref().map(|error| ("is not carried on", error));
        let (what, error) = carried.or(self.collect_error.as_ref().map(|error| ("keeps its garbage", error)))?;
        Some(format!("its second copy {what}: {}", error.escape_debug()))
    }
}
