//! Which tier a new file goes to: the attribute `user.tensorfs.tier` of its directory, else the first line of the
//! placement map that fits its path, else the pool's own directory.
//!
//! The map is text, lines of a glob and a tier. It is kept in the pool as its user wrote it, and compiled when the pool
//! is opened or the map replaced.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use globset::{Candidate, GlobBuilder, GlobSet, GlobSetBuilder};
use parking_lot::{Mutex, MutexGuard, RwLock};
use tensorfs_layout::log::PLACEMENT_MAX;
use tensorfs_layout::pool::Pool;
use tensorfs_layout::tree::View;
use tensorfs_layout::{Ino, ROOT};

/// So many paths of directories, and names of files, are kept in mind.
const REMEMBERED: usize = 1 << 16;
/// Paths of directories have so many bytes together at most.
const REMEMBERED_BYTES: usize = 8 << 20;

/// A compiled map.
#[derive(Debug, Default)]
pub(super) struct Rules {
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

    /// True if no line sends a file anywhere.
    pub fn is_empty(&self) -> bool {
        self.tiers.is_empty()
    }

    /// The tier that the first fitting line names. The path is asked for only if some line needs it.
    pub fn tier(&self, name: &[u8], path: impl FnOnce() -> Option<Vec<u8>>) -> Option<&str> {
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
pub(super) type Name = (Ino, Box<[u8]>);

/// The paths of directories, until one is moved.
#[derive(Default)]
struct Directories {
    paths: HashMap<Ino, Vec<u8>>,
    /// What the paths have together.
    bytes: usize,
}

/// The map that counts, and what it takes to apply it quickly.
#[derive(Default)]
pub(super) struct Placement {
    /// The pool has other tiers than its own directory.
    has_tiers: bool,
    rules: RwLock<Arc<Rules>>,
    /// Held while the map is replaced.
    replacing: Mutex<()>,
    directories: Mutex<Directories>,
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

    /// The pool has other tiers than its own directory.
    pub fn has_tiers(&self) -> bool {
        self.has_tiers
    }

    /// The map that counts.
    pub fn rules(&self) -> Arc<Rules> {
        self.rules.read().clone()
    }

    /// Another map counts from now on.
    pub fn set_rules(&self, rules: Rules) {
        *self.rules.write() = Arc::new(rules);
    }

    /// To be held while the map is replaced.
    pub fn replacing(&self) -> MutexGuard<'_, ()> {
        self.replacing.lock()
    }

    /// True once: that a tier that is named is not there is to be said.
    pub fn say(&self) -> bool {
        !self.said.swap(true, Ordering::Relaxed)
    }

    /// A file was looked up.
    pub fn saw(&self, dir: Ino, name: &[u8], ino: Ino) {
        if self.has_tiers {
            let mut names = self.names.lock();
            if names.len() >= REMEMBERED {
                names.clear();
            }
            names.insert(ino, (dir, name.into()));
        }
    }

    /// The name under which a file was last looked up.
    pub fn name(&self, ino: Ino) -> Option<Name> {
        self.names.lock().get(&ino).cloned()
    }

    /// A directory was moved: paths that lead through it are others now.
    pub fn forget_paths(&self) {
        *self.directories.lock() = Directories::default();
    }

    /// The path of a file by the name under which it was last looked up.
    pub fn known_path(&self, view: &View, ino: Ino) -> Option<Vec<u8>> {
        let (dir, name) = self.name(ino)?;
        if view.lookup(dir, &name) == Some(ino) { self.path(view, dir, &name) } else { None }
    }

    /// The path of a name in a directory.
    pub fn path(&self, view: &View, dir: Ino, name: &[u8]) -> Option<Vec<u8>> {
        if dir == ROOT {
            return Some(name.to_vec());
        }
        let mut directories = self.directories.lock();
        if !directories.paths.contains_key(&dir) {
            let path = view.path_of(dir)?;
            if directories.paths.len() >= REMEMBERED || directories.bytes + path.len() > REMEMBERED_BYTES {
                *directories = Directories::default();
            }
            directories.bytes += path.len();
            directories.paths.insert(dir, path);
        }
        let path = directories.paths.get(&dir)?;
        Some([path.strip_prefix(b"/").unwrap_or(path), b"/", name].concat())
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
