//! How files are used, for whoever places them: `.tensorfs/accesses`, a line of JSON for each file that was used since the
//! mount. Opens are counted, and the bytes that went through the server; what the kernel moves itself is not seen.

use std::collections::HashMap;
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use serde::Serialize;
use tensorfs_layout::Ino;
use tensorfs_layout::log::PM;

use super::Files;

const SHARDS: usize = 16;
/// So many files are kept in mind in each; then those that were not used for longest are forgotten.
const MOST: usize = 4096;

/// The uses of one file.
#[derive(Clone, Copy, Debug, Default)]
struct Uses {
    opens: u64,
    read: u64,
    written: u64,
    /// Nanoseconds since 1970.
    last: u64,
}

/// The uses of all files.
#[derive(Default)]
pub(crate) struct Accesses {
    shards: [Mutex<HashMap<Ino, Uses>>; SHARDS],
}

/// A line of the file.
#[derive(Serialize)]
struct Line {
    path: Option<String>,
    ino: Ino,
    tier: String,
    opens: u64,
    read_bytes: u64,
    written_bytes: u64,
    last_use: f64,
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

    /// Bytes of it were written through the server.
    pub fn written(&self, ino: Ino, bytes: u64) {
        self.add(ino, |uses| uses.written += bytes);
    }
}

impl Files {
    /// A line of JSON for each file that was used, the newest last.
    pub fn list_accesses(&self) -> Vec<u8> {
        let mut used: Vec<(Ino, Uses)> = Vec::new();
        for shard in &self.accesses.shards {
            used.extend(shard.lock().iter().map(|(ino, uses)| (*ino, *uses)));
        }
        used.sort_unstable_by_key(|(ino, uses)| (uses.last, *ino));
        let store = self.store();
        let written: HashMap<Ino, _> =
            store.writers().all().into_iter().map(|written| (written.ino, written.segment)).collect();
        let view = store.view();
        let known = |ino: Ino| Some((ino, store.known_path(&view, ino)?));
        let mut paths: HashMap<Ino, Vec<u8>> = used.iter().filter_map(|(ino, _)| known(*ino)).collect();
        if paths.len() < used.len() {
            // To search for each name on its own would take long in a large pool.
            paths = view.below(tensorfs_layout::ROOT).into_iter().map(|(path, ino)| (ino, path)).collect();
        }
        let mut text = Vec::new();
        for (ino, uses) in used {
            let Some(object) = view.object(ino) else { continue };
            let segment = written.get(&ino).copied().or(object.attributes.segment);
            let tier = segment.map_or(PM, |segment| segment.tier());
            let line = Line {
                path: paths.get(&ino).map(|path| format!("/{}", String::from_utf8_lossy(path))),
                ino,
                tier: view.tier_name(tier),
                opens: uses.opens,
                read_bytes: uses.read,
                written_bytes: uses.written,
                last_use: uses.last as f64 / 1e9,
            };
            if serde_json::to_writer(&mut text, &line).is_ok() {
                text.push(b'\n');
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!(count <= MOST * SHARDS, "{count}");
        let kept = accesses.shards[0].lock()[&Ino(1 << 40)];
        assert_eq!((kept.opens, kept.read), (0, 10 * (4 * MOST * SHARDS).div_ceil(1000) as u64));
    }
}
