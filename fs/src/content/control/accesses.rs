//! `.tensorfs/accesses`: a line of JSON for each file that was used since this server began. They are made as they are
//! read, a few at a time, so that neither all of them are in memory, nor is the view kept from others meanwhile.

use std::collections::{HashMap, HashSet};

use parking_lot::Mutex;
use serde::Serialize;
use tensorfs_layout::log::PM;
use tensorfs_layout::tree::{Object, spelled};
use tensorfs_layout::{Ino, ROOT, SegmentId};

use crate::file::{Files, Uses};
use crate::store::Store;

/// So many lines are made, and so many names looked at, at one time.
const LOT: usize = 64;

/// A line of the file.
#[derive(Serialize)]
struct Line {
    path: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_bytes: Option<Vec<u8>>,
    ino: Ino,
    tier: String,
    opens: u64,
    read_bytes: u64,
    written_bytes: u64,
    last_use: f64,
}

/// The file, as somebody reads it.
pub(super) struct Accesses {
    /// The newest last.
    used: Vec<(Ino, Uses)>,
    /// Names of those that were not known when it was opened.
    names: HashMap<Ino, Name>,
    written: HashMap<Ino, SegmentId>,
    made: Mutex<Made>,
}

/// A directory, and a name in it.
type Name = (Ino, Box<[u8]>);

/// The part of the text that was made last.
#[derive(Default)]
struct Made {
    /// Where in the text it begins.
    from: u64,
    text: Vec<u8>,
    /// How many lines there are up to its end.
    lines: usize,
}

impl Accesses {
    /// The uses of files until now.
    pub fn new(files: &Files) -> Self {
        let mut used = files.accesses().all();
        used.sort_unstable_by_key(|(ino, uses)| (uses.last, *ino));
        let store = files.store();
        let written = store.writers().all().into_iter().map(|written| (written.ino, written.segment)).collect();
        let mut unknown: HashSet<Ino> = HashSet::new();
        for lot in used.chunks(LOT) {
            let view = store.view();
            unknown.extend(lot.iter().map(|(ino, _)| *ino).filter(|ino| !store.knows_name(&view, *ino)));
        }
        Self { used, names: search(store, unknown), written, made: Mutex::default() }
    }

    /// Reads of the text.
    pub fn read(&self, files: &Files, offset: u64, size: u32) -> Vec<u8> {
        let mut made = self.made.lock();
        if offset < made.from {
            *made = Made::default();
        }
        let end = offset.saturating_add(u64::from(size));
        loop {
            // What is before it is not asked for again, as a rule.
            let before = usize::try_from(offset - made.from).unwrap_or(usize::MAX).min(made.text.len());
            made.text.drain(..before);
            made.from += before as u64;
            if made.from + made.text.len() as u64 >= end || made.lines >= self.used.len() {
                break;
            }
            self.make(files.store(), &mut made);
        }
        let start = usize::try_from(offset - made.from).unwrap_or(usize::MAX).min(made.text.len());
        let end = start.saturating_add(size as usize).min(made.text.len());
        made.text[start..end].to_vec()
    }

    /// Makes some lines more.
    fn make(&self, store: &Store, made: &mut Made) {
        let view = store.view();
        let lot = &self.used[made.lines..self.used.len().min(made.lines + LOT)];
        made.lines += lot.len();
        for (ino, uses) in lot {
            let Some(object) = view.object(*ino) else { continue };
            let named = |(dir, name): &Name| match view.lookup(*dir, name) == Some(*ino) {
                true => store.path_in(&view, *dir, name),
                false => None,
            };
            let path = store.known_path(&view, *ino).or_else(|| self.names.get(ino).and_then(named));
            let segment = self.written.get(ino).copied().or(object.attributes.segment);
            let (path, path_bytes) = spelled(path.map(|path| [b"/", &*path].concat()));
            let line = Line {
                path,
                path_bytes,
                ino: *ino,
                tier: view.tier_name(segment.map_or(PM, SegmentId::tier)),
                opens: uses.opens,
                read_bytes: uses.read,
                written_bytes: uses.written,
                last_use: uses.last as f64 / 1e9,
            };
            if serde_json::to_writer(&mut made.text, &line).is_ok() {
                made.text.push(b'\n');
            }
        }
    }
}

/// A name of each of these files, by a walk through the tree: to search for each on its own would take long.
fn search(store: &Store, mut wanted: HashSet<Ino>) -> HashMap<Ino, Name> {
    let mut found = HashMap::new();
    let (mut left, mut entered) = (vec![(ROOT, 0)], HashSet::from([ROOT]));
    while let Some((dir, mut cookie)) = left.pop() {
        if wanted.is_empty() {
            break;
        }
        let view = store.view();
        let mut count = 0;
        for (at, name, ino) in view.entries_after(dir, cookie).take(LOT) {
            (count, cookie) = (count + 1, at);
            if wanted.remove(&ino) {
                found.insert(ino, (dir, name.into()));
            }
            if count == LOT {
                left.push((dir, cookie));
            }
            if view.object(ino).is_some_and(Object::is_dir) && entered.insert(ino) {
                left.push((ino, 0));
            }
        }
    }
    found
}
