//! Which tier a new file goes to: the attribute `user.tensorfs.tier` of its directory, else the first line of the placement map
//! that fits its path, else the pool's own directory.
//!
//! The map is text, lines of a glob and a tier. It is kept in the pool as its user wrote it, and compiled when the pool is
//! opened or the map replaced.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use globset::{Candidate, GlobBuilder, GlobSet, GlobSetBuilder};
use parking_lot::{Mutex, RwLock};
use tensorfs_layout::log::{PLACEMENT_MAX, PM};
use tensorfs_layout::pool::Pool;
use tensorfs_layout::tree::View;
use tensorfs_layout::{Ino, ROOT};

use crate::error::{Fault, Result};

use super::Store;
use super::reserved::TIER;

/// So many paths of directories, and names of files, are kept in mind.
const REMEMBERED: usize = 1 << 16;

/// A compiled map.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    /// Globs without a slash, which fit the name, and for each the line that it is on.
    names: (GlobSet, Vec<usize>),
    /// Those with one, which fit the path from the root.
    paths: (GlobSet, Vec<usize>),
    /// The tier of each line, by name.
    tiers: Vec<Box<str>>,
}

impl Rules {
    /// Compiles a map. An error says which line is wrong, and why.
    pub fn parse(text: &str, is_tier: impl Fn(&str) -> bool) -> std::result::Result<Self, String> {
        if text.len() > PLACEMENT_MAX {
            return Err(format!("a placement map has at most {} KiB", PLACEMENT_MAX >> 10));
        }
        let mut tiers = Vec::new();
        let [mut names, mut paths] = [(); 2].map(|()| (GlobSetBuilder::new(), Vec::new()));
        for (number, line) in text.lines().enumerate().map(|(n, line)| (n + 1, line.trim())) {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let wrong = |why: String| format!("line {number} of the placement map: {why}");
            let (glob, tier) = line.rsplit_once(char::is_whitespace).ok_or_else(|| wrong("no tier".into()))?;
            if !is_tier(tier) {
                return Err(wrong(format!("the pool has no tier {tier:?}")));
            }
            let glob = glob.trim_end();
            let (builder, lines) = if glob.contains('/') { &mut paths } else { &mut names };
            let pattern = glob.strip_prefix('/').unwrap_or(glob);
            let compiled = GlobBuilder::new(pattern).literal_separator(true).backslash_escape(true).build();
            builder.add(compiled.map_err(|error| wrong(error.kind().to_string()))?);
            lines.push(tiers.len());
            tiers.push(tier.into());
        }
        let built = |(builder, lines): (GlobSetBuilder, Vec<usize>)| match builder.build() {
            Ok(set) => Ok((set, lines)),
            Err(error) => Err(format!("the placement map is too much: {}", error.kind())),
        };
        Ok(Self { names: built(names)?, paths: built(paths)?, tiers })
    }

    fn is_empty(&self) -> bool {
        self.tiers.is_empty()
    }

    /// The tier that the first fitting line names. The path is asked for only if some line needs it.
    fn tier(&self, name: &[u8], path: impl FnOnce() -> Option<Vec<u8>>) -> Option<&str> {
        let first = |(set, lines): &(GlobSet, Vec<usize>), text: &[u8]| {
            set.matches_candidate(&Candidate::from_bytes(text)).into_iter().filter_map(|n| lines.get(n).copied()).min()
        };
        let by_name = if self.names.1.is_empty() { None } else { first(&self.names, name) };
        let by_path = if self.paths.1.is_empty() { None } else { path().and_then(|path| first(&self.paths, &path)) };
        let line = [by_name, by_path].into_iter().flatten().min()?;
        self.tiers.get(line).map(|tier| &**tier)
    }
}

/// Checks a placement map for a pool that has these tiers beside its own directory.
///
/// # Errors
/// Which line is wrong, and why.
pub fn check_placement(text: &str, tiers: &[String]) -> std::result::Result<(), String> {
    Rules::parse(text, |name| name == tensorfs_layout::log::PM_NAME || tiers.iter().any(|tier| tier == name)).map(drop)
}

/// The names of the tiers that a map sends files to.
///
/// # Errors
/// Which line is wrong, and why.
pub fn tiers_of_placement(text: &str) -> std::result::Result<Vec<String>, String> {
    Rules::parse(text, |_| true).map(|rules| rules.tiers.iter().map(|tier| tier.to_string()).collect())
}

/// A directory, and a name in it.
type Name = (Ino, Box<[u8]>);

/// The map that counts, and what it takes to apply it quickly.
#[derive(Default)]
pub(crate) struct Placement {
    /// The pool has other tiers than its own directory.
    has_tiers: bool,
    rules: RwLock<Arc<Rules>>,
    /// Held while the map is replaced.
    replacing: Mutex<()>,
    /// The paths of directories, until one is moved.
    directories: Mutex<HashMap<Ino, Vec<u8>>>,
    /// The name under which a file was last looked up: its path would have to be searched for.
    names: Mutex<HashMap<Ino, Name>>,
    /// It was said that a tier that is named is not there.
    said: AtomicBool,
}

impl Placement {
    /// The map of a pool that is about to be served.
    pub fn new(pool: &Pool) -> Self {
        let view = pool.view();
        let has_tiers = view.tiers().next().is_some();
        // A tier may have gone since the map was written; its lines then count for nothing.
        let rules = Rules::parse(view.placement(), |_| true).unwrap_or_else(|why| {
            log::error!("{}: {why}; it is not used", pool.path().display());
            Rules::default()
        });
        Self { has_tiers, rules: RwLock::new(Arc::new(rules)), ..Self::default() }
    }

    fn known_path(&self, view: &View, ino: Ino) -> Option<Vec<u8>> {
        let (dir, name) = self.names.lock().get(&ino).cloned()?;
        if view.lookup(dir, &name) == Some(ino) { self.path(view, dir, &name) } else { None }
    }

    fn path(&self, view: &View, dir: Ino, name: &[u8]) -> Option<Vec<u8>> {
        if dir == ROOT {
            return Some(name.to_vec());
        }
        let mut directories = self.directories.lock();
        if directories.len() >= REMEMBERED {
            directories.clear();
        }
        let path = match directories.entry(dir) {
            std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::hash_map::Entry::Vacant(entry) => entry.insert(view.path_of(dir)?),
        };
        Some([path.strip_prefix(b"/").unwrap_or(path), b"/", name].concat())
    }
}

impl Store {
    /// A file was looked up.
    pub fn saw(&self, dir: Ino, name: &[u8], ino: Ino) {
        if self.placement.has_tiers {
            let mut names = self.placement.names.lock();
            if names.len() >= REMEMBERED {
                names.clear();
            }
            names.insert(ino, (dir, name.into()));
        }
    }

    /// Objects were moved: paths that lead through directories among them are others now.
    pub fn moved(&self, objects: impl IntoIterator<Item = Ino>) {
        if !self.placement.has_tiers {
            return;
        }
        let any_directory = {
            let view = self.pool.view();
            objects.into_iter().any(|ino| view.object(ino).is_none_or(tensorfs_layout::tree::Object::is_dir))
        };
        if any_directory {
            self.placement.directories.lock().clear();
        }
    }

    /// The path of a file by the name under which it was last looked up.
    pub fn known_path(&self, view: &View, ino: Ino) -> Option<Vec<u8>> {
        self.placement.known_path(view, ino)
    }

    /// The tier of a file that is made under this name.
    pub fn place(&self, dir: Ino, name: &[u8]) -> u8 {
        if !self.placement.has_tiers {
            return PM;
        }
        let rules = self.placement.rules.read().clone();
        let view = self.pool.view();
        let own = view.object(dir).and_then(|dir| dir.xattr(TIER)).and_then(|name| std::str::from_utf8(name).ok());
        let wanted = own.and_then(|name| view.tier_named(name)).or_else(|| {
            if rules.is_empty() {
                return None;
            }
            view.tier_named(rules.tier(name, || self.placement.path(&view, dir, name))?)
        });
        let tier = wanted.unwrap_or(PM);
        if self.pool.segments().is_there(tier) {
            return tier;
        }
        if !self.placement.said.swap(true, Ordering::Relaxed) {
            log::warn!("tier {} is missing: files that belong there are made in pm", view.tier_name(tier));
        }
        PM
    }

    /// The tier of a file that gets new bytes.
    pub fn place_again(&self, ino: Ino) -> u8 {
        if !self.placement.has_tiers {
            return PM;
        }
        let seen = self.placement.names.lock().get(&ino).cloned();
        let seen = seen.filter(|(dir, name)| self.pool.view().lookup(*dir, name) == Some(ino));
        match seen.or_else(|| self.search(ino)) {
            Some((dir, name)) => {
                self.saw(dir, &name, ino);
                self.place(dir, &name)
            }
            None => PM,
        }
    }

    /// A name of a file, for which the whole tree may have to be searched.
    fn search(&self, ino: Ino) -> Option<Name> {
        let view = self.pool.view();
        let path = view.path_of(ino)?;
        let mut parts = path.split(|byte| *byte == b'/').filter(|part| !part.is_empty()).peekable();
        let mut dir = ROOT;
        loop {
            let part = parts.next()?;
            if parts.peek().is_none() {
                return Some((dir, part.into()));
            }
            dir = view.lookup(dir, part)?;
        }
    }

    /// Replaces the placement map, durably. One that is wrong changes nothing, and gives `EINVAL`.
    pub fn replace_placement(&self, text: &[u8]) -> Result<()> {
        let _replacing = self.placement.replacing.lock();
        let invalid = |why: String| Fault { level: log::Level::Info, ..Fault::warn(libc::EINVAL, why) };
        let text = std::str::from_utf8(text).map_err(|_| invalid("a placement map is text".into()))?;
        let rules = Rules::parse(text, |name| self.pool.view().tier_named(name).is_some()).map_err(invalid)?;
        self.pool.set_placement(text)?;
        *self.placement.rules.write() = Arc::new(rules);
        log::info!("{}: a new placement map of {} lines", self.pool.path().display(), text.lines().count());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placed<'a>(rules: &'a Rules, path: &str) -> Option<&'a str> {
        let name = path.rsplit('/').next().unwrap();
        rules.tier(name.as_bytes(), || Some(path.as_bytes().to_vec()))
    }

    #[test]
    fn the_first_line_that_fits_counts() {
        let text =
            "# comment\n\n/run/keep/** pm\n*.tmp dram\n/run/*.bin   ssd\n**/deep/*.bin dram\na b.bin pm\n*.bin ssd\n";
        let rules = Rules::parse(text, |name| ["pm", "dram", "ssd"].contains(&name)).unwrap();
        for (path, tier) in [
            ("run/keep/x/y.tmp", Some("pm")),
            ("x/y.tmp", Some("dram")),
            ("run/a.bin", Some("ssd")),
            ("run/x/deep/a.bin", Some("dram")),
            ("x/a b.bin", Some("pm")),
            ("run/x/a.bin", Some("ssd")),
            ("run/x/a.txt", None),
            ("keep", None),
        ] {
            assert_eq!(placed(&rules, path), tier, "{path}");
        }
    }

    #[test]
    fn a_star_stops_at_a_slash() {
        let rules = Rules::parse("run/* a\n/x/{b,c}/[0-9] a\nq\\* a", |_| true).unwrap();
        for (path, fits) in [
            ("run/a", true),
            ("run/a/b", false),
            ("run", false),
            ("x/b/5", true),
            ("x/c/55", false),
            ("y/x/b/5", false),
            ("q*", true),
            ("qq", false),
        ] {
            assert_eq!(placed(&rules, path).is_some(), fits, "{path}");
        }
    }

    #[test]
    fn names_need_not_be_text() {
        let rules = Rules::parse("*.bin dram", |_| true).unwrap();
        assert_eq!(rules.tier(b"\xff.bin", || unreachable!()), Some("dram"));
    }

    #[test]
    fn a_wrong_line_is_named() {
        let wrong = |text: &str| check_placement(text, &["dram".into()]).unwrap_err();
        assert!(wrong("* dram\n*.bin\n").starts_with("line 2 of the placement map: no tier"));
        assert!(wrong("* ssd").contains("no tier \"ssd\""));
        assert!(wrong("[a dram").starts_with("line 1 of the placement map: "));
        assert!(wrong(&"#".repeat(PLACEMENT_MAX + 1)).contains("64 KiB"));
        assert_eq!(check_placement("* pm\n*.x dram\n", &["dram".into()]), Ok(()));
    }
}
