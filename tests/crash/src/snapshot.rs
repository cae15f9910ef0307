//! A recovered tree, with all that a user could see of it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;

use tensorfs_layout::pool::Pool;
use tensorfs_layout::{Ino, ROOT};

/// What a path leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Its object.
    pub ino: u64,
    /// Type and permissions.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Links.
    pub links: u32,
    /// Where a symbolic link points.
    pub target: Option<String>,
    /// Extended attributes.
    pub xattrs: BTreeMap<String, Vec<u8>>,
    /// A file's bytes, up to its recorded size.
    pub content: Option<Vec<u8>>,
    /// It is marked as damaged.
    pub damaged: bool,
}

/// Every path from the root.
pub type Snapshot = BTreeMap<String, Seen>;

/// Reads the whole tree. An error says what is wrong with it.
pub fn take(pool: &Pool) -> Result<Snapshot, String> {
    let mut snapshot = Snapshot::new();
    walk(pool, ROOT, String::new(), &mut snapshot)?;
    Ok(snapshot)
}

fn walk(pool: &Pool, ino: Ino, path: String, snapshot: &mut Snapshot) -> Result<(), String> {
    if path.len() > 400 {
        return Err(format!("{path}: the tree does not end"));
    }
    let mut children = Vec::new();
    let seen = {
        let view = pool.view();
        let object = view.object(ino).ok_or_else(|| format!("{path} names object {ino}, which does not exist"))?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let mut content = None;
        if object.is_file() {
            let mut bytes = Vec::new();
            if let Some(segment) = object.attributes.segment {
                let fd = pool.segments().open(segment, libc::O_RDONLY);
                let file = match fd {
                    Err(_) if object.attributes.damaged || object.size() == 0 => None,
                    other => Some(other.map_err(|error| format!("{path}: its segment: {error}"))?),
                };
                if let Some(fd) = file {
                    File::from(fd).read_to_end(&mut bytes).map_err(|error| format!("{path}: {error}"))?;
                }
            }
            if bytes.len() as u64 != object.size() && !object.attributes.damaged {
                return Err(format!("{path}: its segment has {} bytes, its records {}", bytes.len(), object.size()));
            }
            content = Some(bytes);
        }
        for (_, name, child) in view.entries_after(ino, 0) {
            children.push((text(name), child));
        }
        Seen {
            ino: ino.0,
            mode: object.attributes.mode,
            uid: object.attributes.uid,
            links: object.links(),
            target: object.target().map(text),
            xattrs: object.xattrs().map(|(name, value)| (text(name), value.to_vec())).collect(),
            content,
            damaged: object.attributes.damaged,
        }
    };
    for (name, child) in children {
        walk(pool, child, format!("{path}/{name}"), snapshot)?;
    }
    snapshot.insert(if path.is_empty() { "/".into() } else { path }, seen);
    Ok(())
}
