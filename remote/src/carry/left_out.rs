//! What is left out of the remote: names that fit a glob, and what lies below directories that say so.
//!
//! A name is left out with all that is below it, and an object is carried if any of its names is. Where nothing is left
//! out, nothing is gone through for it.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use tensorfs_layout::globs::{Globs, joined};
use tensorfs_layout::tree::{Object, View};
use tensorfs_layout::{Ino, ROOT};

use crate::error::{Error, Result};

/// The attribute of a directory that says whether what is below it is carried.
pub const ATTRIBUTE: &str = "user.tensorfs.remote";
/// Its value if that is not carried; there is no other.
pub const NO: &[u8] = b"no";
/// Compiles what `remote set --exclude` was told.
pub fn compiled(globs: &[String]) -> Result<Globs> {
    Globs::of(globs).map_err(|why| Error::Refused(format!("--exclude{why}")))
}

/// How much is left out: regular files that no name is carried of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// How many.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// A directory's path from the root on, unless it is longer than any call takes.
type Path = Option<Rc<[u8]>>;

/// What is carried whatever says otherwise: files that have left for this remote, as nothing else has their bytes.
#[derive(Debug, Default)]
struct Needed {
    /// Names that lead to them: the directory, and the name's cookie in it.
    names: HashSet<(Ino, u64)>,
    /// The directories that have these.
    directories: HashSet<Ino>,
}

impl Needed {
    fn of(view: &View) -> Self {
        let mut needed = Self::default();
        let own = view.remote().filter(|(number, tier)| tier.is_own_remote() && view.tier_totals(*number).files > 0);
        let Some((own, _)) = own else { return needed };
        let mut above: HashMap<Ino, (Ino, u64)> = HashMap::new();
        let mut left = vec![ROOT];
        while let Some(dir) = left.pop() {
            for (cookie, _, ino) in view.entries_after(dir, 0) {
                let Some(object) = view.object(ino) else { continue };
                if object.is_dir() {
                    above.insert(ino, (dir, cookie));
                    left.push(ino);
                } else if object.attributes.segment.is_some_and(|segment| segment.tier() == own) {
                    let mut name = Some((dir, cookie));
                    while let Some((dir, _)) = name.filter(|name| needed.names.insert(*name)) {
                        needed.directories.insert(dir);
                        name = above.get(&dir).copied();
                    }
                }
            }
        }
        needed
    }
}

/// What of a tree is left out.
#[derive(Debug, Default)]
pub struct LeftOut {
    /// Nothing is.
    is_nothing: bool,
    /// Objects that are carried.
    kept: HashSet<Ino>,
    /// Directories nothing below which is carried.
    closed: HashSet<Ino>,
    /// Names that fit a glob: the directory, and the name's cookie in it.
    names: HashSet<(Ino, u64)>,
    amount: Amount,
}

impl LeftOut {
    /// Goes through a tree.
    pub fn of(view: &View, globs: &Globs) -> Self {
        if globs.is_empty() && !view.objects().any(|(_, object)| says_no(object)) {
            return Self { is_nothing: true, ..Self::default() };
        }
        let mut out = Self { kept: HashSet::from([ROOT]), ..Self::default() };
        let needed = Needed::of(view);
        // What is left: the path of the directory that it is in, its name, what it is, and whether that is left out but
        // for what is needed.
        let mut left: Vec<(Path, &[u8], Ino, bool)> = vec![(Some(Rc::from([])), b"", ROOT, false)];
        while let Some((above, name, dir, is_out)) = left.pop() {
            let is_out = is_out || view.object(dir).is_some_and(says_no);
            if is_out && !needed.directories.contains(&dir) {
                out.closed.insert(dir);
                continue;
            }
            let own: Path = above.and_then(|above| joined(&above, name)).map(Rc::from);
            for (cookie, name, ino) in view.entries_after(dir, 0) {
                let path = own.as_ref().filter(|_| globs.want_paths()).and_then(|own| joined(own, name));
                let is_out = is_out || globs.fit(name, path.as_deref());
                if is_out && !needed.names.contains(&(dir, cookie)) {
                    out.names.insert((dir, cookie));
                } else if out.kept.insert(ino) && view.object(ino).is_some_and(Object::is_dir) {
                    left.push((own.clone(), name, ino, is_out));
                }
            }
        }
        let files = view.objects().filter(|(ino, object)| object.is_file() && !out.kept.contains(ino));
        for (_, object) in files.filter(|(_, object)| object.names() > 0) {
            out.amount.files += 1;
            out.amount.bytes = out.amount.bytes.saturating_add(object.size());
        }
        out
    }

    /// True if nothing is left out, and nothing says that anything is.
    pub fn is_nothing(&self) -> bool {
        self.is_nothing
    }

    /// True of an object that is carried. What has no name any more is not, where anything is left out: which name it
    /// had, nobody knows.
    pub fn keeps(&self, ino: Ino) -> bool {
        self.is_nothing || self.kept.contains(&ino)
    }

    /// True of a name, by its cookie in a directory that is carried.
    pub fn keeps_name(&self, dir: Ino, cookie: u64) -> bool {
        self.is_nothing || !self.closed.contains(&dir) && !self.names.contains(&(dir, cookie))
    }

    /// How much is left out.
    pub fn amount(&self) -> Amount {
        self.amount
    }
}

/// Why nothing at a path is carried, or nothing below the directory there; nothing if something is. The path is from
/// the root on.
pub fn why(view: &View, globs: &Globs, path: &[u8]) -> Option<String> {
    let (mut at, mut way) = (Some(ROOT), Some(Vec::new()));
    let closed = |at: Option<Ino>| at.and_then(|at| view.object(at)).is_some_and(says_no);
    let by_attribute = |way: Option<Vec<u8>>| {
        let dir = way.unwrap_or_default();
        format!("by the attribute {ATTRIBUTE} of /{}", String::from_utf8_lossy(&dir))
    };
    for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
        if closed(at) {
            return Some(by_attribute(way));
        }
        way = way.and_then(|way| joined(&way, name));
        if globs.fit(name, way.as_deref()) {
            return Some(format!("as --exclude says of /{}", String::from_utf8_lossy(&way.unwrap_or_default())));
        }
        at = at.and_then(|at| view.lookup(at, name));
    }
    closed(at).then(|| by_attribute(way))
}

fn says_no(object: &Object) -> bool {
    object.is_dir() && object.xattr(ATTRIBUTE.as_bytes()) == Some(NO)
}
