//! What paths from the root lead to, and what to do about the rest.

use rustc_hash::FxHashSet;

use crate::ids::{Ino, ROOT};
use crate::log::ledger::Placed;
use crate::log::record::Attributes;
use crate::time::Timestamp;
use crate::tree::object::{Content, FIRST_SEQ, Object};
use crate::tree::view::View;

impl View {
    /// Sets the parent of every directory that a path from the root leads to. Records of several chains that were
    /// applied chain by chain leave the last one applied, not the newest one; and what is left of a removed directory
    /// may still name one that was moved out of it.
    pub(crate) fn settle_parents(&mut self) {
        let mut reached = FxHashSet::from_iter([ROOT]);
        let mut queue = vec![ROOT];
        while let Some(dir) = queue.pop() {
            let Some(Object { content: Content::Directory(content), .. }) = self.objects.get(&dir) else { continue };
            let children: Vec<(Ino, u64)> = content.entries.values().map(|entry| (entry.ino, entry.cookie)).collect();
            for (ino, place) in children {
                if let Some(Object { content: Content::Directory(child), .. }) = self.objects.get_mut(&ino)
                    && reached.insert(ino)
                {
                    (child.parent, child.place) = (Some(dir), place);
                    queue.push(ino);
                }
            }
        }
    }

    /// A root directory, if there is none left: what is found below it by other names is set aside by whoever asks.
    pub(crate) fn ensure_root(&mut self) {
        if self.objects.get(&ROOT).is_some_and(Object::is_dir) {
            return;
        }
        self.drop_object(ROOT);
        let zero = Timestamp::default();
        let attributes = Attributes {
            mode: libc::S_IFDIR | 0o755,
            uid: 0,
            gid: 0,
            rdev: 0,
            atime: zero,
            mtime: zero,
            ctime: zero,
            btime: zero,
            segment: None,
            damaged: false,
        };
        self.apply_attributes(ROOT, attributes, Placed { seq: FIRST_SEQ, incarnation: 0 });
    }

    /// Removes names that lead to no object, and all but one name of a directory; returns how many.
    pub(crate) fn drop_dangling_names(&mut self) -> usize {
        let mut named = std::collections::HashSet::from([ROOT]);
        let mut dangling = Vec::new();
        let mut queue = vec![ROOT];
        while let Some(dir) = queue.pop() {
            for (_, name, ino) in self.entries_after(dir, 0) {
                match self.objects.get(&ino) {
                    Some(object) if !object.is_dir() => {}
                    Some(_) if named.insert(ino) => queue.push(ino),
                    _ => dangling.push((dir, Box::<[u8]>::from(name))),
                }
            }
        }
        for (dir, name) in &dangling {
            if let Some(Object { content: Content::Directory(content), .. }) = self.objects.get_mut(dir) {
                content.remove(name);
            }
        }
        dangling.len()
    }

    /// The objects that no path from the root leads to.
    pub(crate) fn unreachable(&self) -> Vec<Ino> {
        let mut reached = FxHashSet::default();
        let mut queue = vec![ROOT];
        while let Some(ino) = queue.pop() {
            if let Some(Object { content: Content::Directory(dir), .. }) = self.objects.get(&ino)
                && reached.insert(ino)
            {
                let is_dir = |ino: &Ino| self.objects.get(ino).is_some_and(Object::is_dir);
                queue.extend(dir.entries.values().map(|entry| entry.ino).filter(is_dir));
            }
        }
        // Mostly every directory can be reached and every object has a name, and there is nothing more to do.
        let lost = |object: &Object, ino| object.names() == 0 || object.is_dir() && !reached.contains(&ino);
        if !self.objects.iter().any(|(ino, object)| ino != ROOT && lost(object, ino)) {
            return Vec::new();
        }
        let names = reached.iter().filter_map(|ino| match &self.objects.get(ino)?.content {
            Content::Directory(dir) => Some(dir.entries.values().map(|entry| entry.ino)),
            _ => None,
        });
        let named: FxHashSet<Ino> = names.flatten().chain([ROOT]).collect();
        self.objects.iter().map(|(ino, _)| ino).filter(|ino| !named.contains(ino)).collect()
    }
}
