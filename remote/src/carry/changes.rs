//! What the pool's tree has that the remote's has not, as lines of a batch.

use std::collections::BTreeMap;

use tensorfs_layout::Ino;
use tensorfs_layout::tree::View;

use crate::carry::left_out::LeftOut;
use crate::error::Result;
use crate::repository::{Content, Entry, Line, Tree, text_of};

/// The bytes of a file as they are to be told of, given what was told before.
pub type OfFile<'a> = &'a mut dyn FnMut(Ino, Option<&Content>) -> Result<Content>;

/// The lines that make the remote's tree what the pool's is, but for what is left out. Those of the bytes of files,
/// `of_file` gives.
pub fn changes((view, out): (&View, &LeftOut), tree: &Tree, of_file: OfFile<'_>) -> Result<Vec<Line>> {
    let mut lines = gone((view, out), tree);
    let mut all: Vec<Ino> = view.objects().map(|(ino, _)| ino).filter(|ino| out.keeps(*ino)).collect();
    all.sort_unstable();
    let mut names = Vec::new();
    for ino in all {
        let Some(object) = view.object(ino) else { continue };
        let before = tree.entry(ino.0);
        let mut entry = Entry::of(ino.0, object);
        if object.is_file() {
            entry.file = Some(of_file(ino, before.and_then(|entry| entry.file.as_ref()))?);
        }
        // That a file was read is not worth a batch.
        if before.is_none_or(|before| !entry.is_but_for_access(before)) {
            lines.push(Line::Object(Box::new(entry)));
        }
        if object.is_dir() {
            names_of((view, out), tree, ino, &mut lines, &mut names);
        }
    }
    lines.append(&mut names);
    Ok(lines)
}

fn gone((view, out): (&View, &LeftOut), tree: &Tree) -> Vec<Line> {
    let is_gone = |ino: &u64| view.object(Ino(*ino)).is_none() || !out.keeps(Ino(*ino));
    let gone = tree.entries().map(|entry| entry.ino).filter(is_gone);
    let mut gone: Vec<u64> = gone.collect();
    gone.sort_unstable();
    gone.into_iter().map(Line::Gone).collect()
}

/// Names that a directory has no more go to `removed`, those that are new or another object's to `made`.
fn names_of((view, out): (&View, &LeftOut), tree: &Tree, dir: Ino, removed: &mut Vec<Line>, made: &mut Vec<Line>) {
    let now = view.entries_after(dir, 0).filter(|(cookie, ..)| out.keeps_name(dir, *cookie));
    let now: BTreeMap<String, u64> = now.map(|(_, name, ino)| (text_of(name), ino.0)).collect();
    let mut before: BTreeMap<&str, u64> = tree.names(dir.0).collect();
    for (name, ino) in now {
        if before.remove(name.as_str()) != Some(ino) {
            made.push(Line::Name(dir.0, name, ino));
        }
    }
    removed.extend(before.into_keys().map(|name| Line::Unname(dir.0, name.to_owned())));
}
