//! What it takes to say whether something is carried: what the pool's carrier has noted of where the second copy has
//! come to, and what was touched since.

use std::sync::Arc;

use parking_lot::Mutex;
use serde::Deserialize;
use tensorfs_layout::globs::Globs;
use tensorfs_layout::pool::Pool;
use tensorfs_layout::{Ino, TxId};

use super::touched::Touched;

/// The carrier's note, as far as it is told here.
#[derive(Deserialize)]
struct Note {
    /// The uuid of the pool that it is of.
    pool: String,
    settings: Settings,
    #[serde(default)]
    arrived: Option<Arrived>,
}

#[derive(Deserialize)]
struct Settings {
    #[serde(default)]
    exclude: Vec<String>,
}

/// Where the second copy has come to.
#[derive(Deserialize)]
struct Arrived {
    log: String,
    transaction: u64,
    #[serde(default)]
    all: bool,
    unsettled: Option<Vec<u64>>,
}

/// What there is to know of a pool's second copy.
pub(crate) struct SecondCopy {
    /// What is left out by its name.
    pub globs: Arc<Globs>,
    /// Where it has come to, if that is known.
    pub reached: Option<Reached>,
}

impl SecondCopy {
    /// One of which nothing is known.
    pub fn unknown() -> Self {
        Self { globs: Arc::default(), reached: None }
    }
}

/// It has all of the pool as it was after a transaction, but for what is told here.
pub(crate) struct Reached {
    /// The transaction.
    pub transaction: TxId,
    /// Nothing was left out.
    pub all: bool,
    /// The files whose bytes it may have otherwise, or not all of.
    pub unsettled: Vec<Ino>,
}

/// What it takes to say whether something is carried.
pub(super) struct Carried {
    touched: Arc<Touched>,
    /// Which file the log is.
    log: Option<String>,
    /// Globs, and what was compiled of them.
    globs: Mutex<(Vec<String>, Arc<Globs>)>,
}

impl Carried {
    /// Of a pool that is about to be served, and that nobody changes yet.
    pub fn new(pool: &Pool) -> Self {
        let touched = Arc::<Touched>::default();
        let log = pool.log_file().inspect_err(|error| log::debug!("{error}")).ok();
        let carried = Self { touched: touched.clone(), log, globs: Mutex::default() };
        if let Some(note) = pool.carried().ok().flatten() {
            let arrived = serde_json::from_slice(&note.note).ok().and_then(|note: Note| note.arrived);
            let own = arrived.filter(|arrived| carried.is_own(arrived)).map(|arrived| TxId(arrived.transaction));
            // A log that has lost transactions which were carried gives their numbers to others.
            let newest = pool.newest();
            let ahead = own.filter(|ahead| *ahead > newest).map(|ahead| TxId(ahead.0.saturating_add(1)));
            touched.keep(ahead.unwrap_or(newest));
        }
        let hears = touched;
        pool.when_stored(Box::new(move |view, records, id| hears.hear(view, records, id)));
        carried
    }

    /// What was touched since the second copy was made.
    pub fn touched(&self) -> &Touched {
        &self.touched
    }

    /// What a note says; nothing if it is of a pool that was here before. Of one that cannot be read nothing is known.
    pub fn told(&self, pool: &Pool, note: &[u8]) -> Option<SecondCopy> {
        let Ok(Note { pool: uuid, settings, arrived }) = serde_json::from_slice(note) else {
            return Some(SecondCopy::unknown());
        };
        if uuid != pool.superblock().uuid_text() {
            return None;
        }
        let Some(globs) = self.globs(settings.exclude) else { return Some(SecondCopy::unknown()) };
        let newest = pool.newest();
        let own = arrived.filter(|arrived| self.is_own(arrived));
        let (arrived, ahead) = own.map_or((None, None), |arrived| match arrived.transaction <= newest.0 {
            true => (Some(arrived), None),
            false => (None, Some(arrived.transaction)),
        });
        if let Some(ahead) = ahead {
            // Nor is it believed when the log has come so far.
            self.touched.doubt(TxId(ahead));
        }
        let reached = arrived.and_then(|Arrived { transaction, all, unsettled, .. }| {
            let unsettled = unsettled?.into_iter().map(Ino).collect();
            Some(Reached { transaction: TxId(transaction), all, unsettled })
        });
        Some(SecondCopy { globs, reached })
    }

    fn is_own(&self, arrived: &Arrived) -> bool {
        Some(&arrived.log) == self.log.as_ref()
    }

    fn globs(&self, globs: Vec<String>) -> Option<Arc<Globs>> {
        if globs.is_empty() {
            return Some(Arc::default());
        }
        if let (of, compiled) = &*self.globs.lock()
            && *of == globs
        {
            return Some(compiled.clone());
        }
        let compiled = Arc::new(Globs::of(&globs).ok()?);
        *self.globs.lock() = (globs, compiled.clone());
        Some(compiled)
    }
}
