//! How files are used, for whoever places them. Opens are counted, and the bytes that went through the server; what the
//! kernel moves itself is not seen.

use std::collections::HashMap;
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use tensorfs_layout::Ino;

const SHARDS: usize = 16;
/// So many files are kept in mind in each; then those that were not used for longest are forgotten.
const MOST: usize = 4096;

/// The uses of one file.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Uses {
    pub opens: u64,
    /// Bytes that were read through the server.
    pub read: u64,
    /// Bytes that were written through the server.
    pub written: u64,
    /// When it was used last, in nanoseconds since 1970.
    pub last: u64,
}

/// The uses of all files.
#[derive(Default)]
pub(crate) struct Accesses {
    shards: [Mutex<HashMap<Ino, Uses>>; SHARDS],
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

impl Accesses {
    fn add(&self, ino: Ino, change: impl FnOnce(&mut Uses)) {
        let mut shard = self.shards[ino.0 as usize % SHARDS].lock();
        if shard.len() >= MOST && !shard.contains_key(&ino) {
            let mut times: Vec<u64> = shard.values().map(|uses| uses.last).collect();
            let (_, oldest, _) = times.select_nth_unstable(MOST / 8);
            let oldest = *oldest;
            shard.retain(|_, uses| uses.last > oldest);
        }
        let uses = shard.entry(ino).or_default();
        change(uses);
        uses.last = now();
    }

    /// A file was opened.
    pub fn opened(&self, ino: Ino) {
        self.add(ino, |uses| uses.opens += 1);
    }

    /// Bytes of it were read through the server.
    pub fn read(&self, ino: Ino, bytes: u64) {
        self.add(ino, |uses| uses.read += bytes);
    }

    /// All uses.
    pub fn all(&self) -> Vec<(Ino, Uses)> {
        self.shards
            .iter()
            .flat_map(|shard| shard.lock().iter().map(|(ino, uses)| (*ino, *uses)).collect::<Vec<_>>())
            .collect()
    }

    /// Bytes of it were written through the server.
    pub fn written(&self, ino: Ino, bytes: u64) {
        self.add(ino, |uses| uses.written += bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves B15.
    #[test]
    fn what_was_not_used_for_longest_is_forgotten_first() {
        let accesses = Accesses::default();
        for n in 0..(4 * MOST * SHARDS) as u64 {
            accesses.opened(Ino(n));
            // Used all the time.
            if n % 1000 == 0 {
                accesses.read(Ino(1 << 40), 10);
            }
        }
        let count: usize = accesses.shards.iter().map(|shard| shard.lock().len()).sum();
        let all = MOST * SHARDS;
        assert!((all - all / 8..=all).contains(&count), "{count}");
        let kept = accesses.shards[0].lock()[&Ino(1 << 40)];
        assert_eq!((kept.opens, kept.read), (0, 10 * (4 * MOST * SHARDS).div_ceil(1000) as u64));
    }
}
