//! What is known of how the tree goes on to newer ones of its remote: what the process said that looks there.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tensorfs_layout::Ino;

/// So many names are kept for the kernel to forget. It asks for one that it knows yet all the same; only what it knew
/// under it stays in its memory for longer.
const NAMES: usize = 1 << 16;

/// The table.
pub(crate) struct Following {
    begun: Instant,
    known: Mutex<Known>,
    left: Mutex<Left>,
}

/// What a newer tree has left to be done, by who may wait for it.
#[derive(Default)]
struct Left {
    /// Names in directories that lead elsewhere by now, or nowhere, and that the kernel may know.
    names: Vec<(Ino, Vec<u8>)>,
    /// What has no name any more, and was held by somebody as it was to be let go of.
    held: Vec<Ino>,
}

#[derive(Default)]
struct Known {
    here: Option<(u64, i64)>,
    /// When it was looked with success, and when another tree came.
    looked: Option<(Instant, u64)>,
    came: Option<u64>,
    /// In lots, of which not all have come.
    partly: bool,
    error: Option<String>,
}

/// How the tree of a mount goes on to newer ones of its remote.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FollowInfo {
    /// The URL of the remote.
    pub url: Option<String>,
    /// It is looked so often, in seconds.
    pub every_seconds: f64,
    /// The batch whose tree is here, as it was told since this server began.
    pub batch: Option<u64>,
    /// When that was made, in seconds since 1970.
    pub batch_time: Option<i64>,
    /// When this server has gone over to it, in seconds since 1970.
    pub came: Option<u64>,
    /// When it was looked last for a newer one and that was found out, in seconds since 1970.
    pub looked: Option<u64>,
    /// For so many seconds that was not found out, or since this server began.
    pub unknown_seconds: f64,
    /// Not all of a batch that takes several transactions is here yet.
    pub partly: bool,
    /// Why it could not be found out last, or why the newer one does not come.
    pub error: Option<String>,
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

impl Default for Following {
    fn default() -> Self {
        Self { begun: Instant::now(), known: Mutex::default(), left: Mutex::default() }
    }
}

impl Following {
    /// It was looked. True if that says something new of what goes wrong.
    pub fn looked(&self, here: (u64, i64), why: Option<String>) -> bool {
        let mut known = self.known.lock();
        known.here = Some(here);
        if why.is_none() {
            known.looked = Some((Instant::now(), now()));
        }
        let is_new = known.error != why;
        known.error = why;
        is_new
    }

    /// A lot of a newer tree is here.
    pub fn came(&self, last: bool) {
        let mut known = self.known.lock();
        (known.came, known.partly) = (Some(now()), !last);
    }

    /// The kernel is to forget a name.
    pub fn leave_name(&self, dir: Ino, name: Vec<u8>) {
        let mut left = self.left.lock();
        if left.names.len() < NAMES {
            left.names.push((dir, name));
        }
    }

    /// Something is to be let go of once nobody holds it.
    pub fn leave_held(&self, ino: Ino) {
        self.left.lock().held.push(ino);
    }

    /// The names that the kernel is to forget, for who waits until it has.
    pub fn take_names(&self) -> Vec<(Ino, Vec<u8>)> {
        std::mem::take(&mut self.left.lock().names)
    }

    /// What is to be let go of once nobody holds it, for who waits for that.
    pub fn take_held(&self) -> Vec<Ino> {
        std::mem::take(&mut self.left.lock().held)
    }

    /// What is told of it.
    pub fn told(&self, url: Option<String>, every: Duration) -> FollowInfo {
        let known = self.known.lock();
        FollowInfo {
            url,
            every_seconds: every.as_secs_f64(),
            batch: known.here.map(|(batch, _)| batch),
            batch_time: known.here.map(|(_, time)| time),
            came: known.came,
            looked: known.looked.map(|(_, when)| when),
            unknown_seconds: known.looked.map_or(self.begun, |(when, _)| when).elapsed().as_secs_f64(),
            partly: known.partly,
            error: known.error.clone(),
        }
    }
}

impl FollowInfo {
    /// As everybody may see it: not where the remote is, nor what it said.
    #[must_use]
    pub fn without_names(self) -> Self {
        let error = self.error.map(|_| "it fails; its owner is told why".to_owned());
        Self { url: None, error, ..self }
    }
}
