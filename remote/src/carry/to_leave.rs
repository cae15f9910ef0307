//! Which files belong to the remote by their place: their directory names it as the tier of what is in it, or else the
//! first line of the placement map that fits them does.

use std::collections::BTreeSet;
use std::rc::Rc;

use globset::{Candidate, GlobBuilder, GlobSet, GlobSetBuilder};
use tensorfs_layout::globs::joined;
use tensorfs_layout::log::REMOTE_NAME;
use tensorfs_layout::tree::{Object, View};
use tensorfs_layout::{Ino, ROOT};

/// The attribute of a directory that names a tier.
const TIER: &[u8] = b"user.tensorfs.tier";

/// The lines of a placement map: a glob without a slash fits a name, one with a slash a path from the root.
#[derive(Default)]
struct Map {
    names: (GlobSet, Vec<usize>),
    paths: (GlobSet, Vec<usize>),
    are_remote: Vec<bool>,
}

impl Map {
    /// What cannot be read sends nothing anywhere, as its server says, too.
    fn of(text: &str) -> Self {
        let [mut names, mut paths] = [(); 2].map(|()| (GlobSetBuilder::new(), Vec::new()));
        let mut are_remote = Vec::new();
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let Some((glob, tier)) = line.rsplit_once(char::is_whitespace) else { return Self::default() };
            let glob = glob.trim_end();
            let (builder, lines) = if glob.contains('/') { &mut paths } else { &mut names };
            let pattern = glob.strip_prefix('/').unwrap_or(glob);
            let compiled = GlobBuilder::new(pattern).literal_separator(true).backslash_escape(true).build();
            let Ok(compiled) = compiled else { return Self::default() };
            builder.add(compiled);
            lines.push(are_remote.len());
            are_remote.push(tier == REMOTE_NAME);
        }
        let built = |(builder, lines): (GlobSetBuilder, Vec<usize>)| Some((builder.build().ok()?, lines));
        match (built(names), built(paths)) {
            (Some(names), Some(paths)) => Self { names, paths, are_remote },
            _ => Self::default(),
        }
    }

    fn names_remote(&self) -> bool {
        self.are_remote.contains(&true)
    }

    fn is_remote(&self, name: &[u8], path: Option<&[u8]>) -> bool {
        let first = |(set, lines): &(GlobSet, Vec<usize>), text: &[u8]| {
            let fit = set.matches_candidate(&Candidate::from_bytes(text));
            fit.into_iter().filter_map(|at| lines.get(at).copied()).min()
        };
        let line = [first(&self.names, name), path.and_then(|path| first(&self.paths, path))];
        line.into_iter().flatten().min().is_some_and(|line| self.are_remote[line])
    }
}

/// True if anything sends files to the remote.
pub fn names_remote(view: &View) -> bool {
    // A pool may have a directory as a tier of that name.
    let is_directory =
        view.tier_named(REMOTE_NAME).and_then(|number| view.tier(number)).is_some_and(|tier| !tier.remote);
    if is_directory {
        return false;
    }
    Map::of(view.placement()).names_remote() || view.objects().any(|(_, object)| tier_of(object) == Some(true))
}

/// Whether a directory's attribute names the remote; nothing if it names no tier.
fn tier_of(object: &Object) -> Option<bool> {
    object.xattr(TIER).filter(|_| object.is_dir()).map(|tier| tier == REMOTE_NAME.as_bytes())
}

/// As [`tier_of`]; a tier that is gone is as none.
fn tier_in(view: &View, object: &Object) -> Option<bool> {
    let is_there = |tier: &[u8]| std::str::from_utf8(tier).is_ok_and(|name| view.tier_named(name).is_some());
    tier_of(object).filter(|is_remote| *is_remote || object.xattr(TIER).is_some_and(is_there))
}

/// The regular files that belong to the remote.
pub fn to_leave(view: &View) -> BTreeSet<Ino> {
    let map = Map::of(view.placement());
    let mut found = BTreeSet::new();
    // A path that is longer than any call takes fits nothing.
    let mut left: Vec<(Option<Rc<[u8]>>, Ino)> = vec![(Some(Rc::from([])), ROOT)];
    while let Some((path, dir)) = left.pop() {
        let own = view.object(dir).and_then(|dir| tier_in(view, dir));
        for (_, name, ino) in view.entries_after(dir, 0) {
            let path = path.as_ref().and_then(|above| joined(above, name));
            match view.object(ino) {
                Some(object) if object.is_dir() => left.push((path.map(Rc::from), ino)),
                Some(object) => {
                    let has_bytes = object.is_file() && object.size() > 0;
                    if has_bytes && own.unwrap_or_else(|| map.is_remote(name, path.as_deref())) {
                        found.insert(ino);
                    }
                }
                None => {}
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_that_fits_counts() {
        let map = Map::of("# old\n/run/keep/** pm\n*.old remote\n\n/run/*/old/*  remote\n*.bin pm\n* remote\n");
        assert!(map.names_remote());
        for (path, is_remote) in [
            ("run/keep/a.old", false),
            ("b/a.old", true),
            ("run/7/old/x.bin", true),
            ("run/7/x.bin", false),
            ("else", true),
        ] {
            let name = path.rsplit('/').next().unwrap().as_bytes();
            assert_eq!(map.is_remote(name, Some(path.as_bytes())), is_remote, "{path}");
        }
        assert!(!Map::of("[a remote").names_remote() && !Map::of("*.x dram").names_remote());
    }
}
