//! `.tensorfs/accesses`: a line of JSON for each file that was used since the mount.

use std::collections::HashMap;

use serde::Serialize;
use tensorfs_layout::Ino;
use tensorfs_layout::log::PM;

use crate::file::Files;

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

/// A line of JSON for each file that was used, the newest last.
pub(super) fn list(files: &Files) -> Vec<u8> {
    let mut used = files.accesses().all();
    used.sort_unstable_by_key(|(ino, uses)| (uses.last, *ino));
    let store = files.store();
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
