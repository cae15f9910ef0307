//! How a place is called in print. Each name knows the directory that it is in: what is in one does not repeat its
//! path.

use std::cell::OnceCell;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::rc::Rc;

/// What was named on the command line, or a name in a directory.
#[derive(Clone, Debug)]
pub struct Called(Rc<Part>);

#[derive(Debug)]
struct Part {
    above: Option<Called>,
    /// The name, and in front of it what separates it from the directory.
    text: OsString,
    /// Where the name begins in that.
    name_at: usize,
    /// Bytes of the path from the root of its filesystem, of what is in a pool from where the pool begins.
    len: usize,
    /// Of a directory that a walk has gone into, which one it is.
    identity: OnceCell<Identity>,
}

/// Filesystem and number of an object.
pub type Identity = (u64, u64);

impl Called {
    /// As it was named.
    pub fn named(path: &OsStr) -> Called {
        Called::new(None, path.to_owned(), 0, path.len())
    }

    /// As it was named, by a path that goes on from a pool.
    pub fn named_in_pool(path: &OsStr, inside: &OsStr) -> Called {
        Called::new(None, path.to_owned(), 0, inside.len())
    }

    fn new(above: Option<Called>, text: OsString, name_at: usize, len: usize) -> Called {
        Called(Rc::new(Part { above, text, name_at, len, identity: OnceCell::new() }))
    }

    /// Something in this directory.
    pub fn inside(&self, separator: &str, name: &OsStr) -> Called {
        let mut text = OsString::with_capacity(separator.len() + name.len());
        text.push(separator);
        text.push(name);
        // What separates a pool from what is in it is a slash there.
        let len = self.len() + separator.len().min(1) + name.len();
        Called::new(Some(self.clone()), text, separator.len(), len)
    }

    /// The name; all that was named, if it was.
    pub fn name(&self) -> &OsStr {
        OsStr::from_bytes(&self.0.text.as_bytes()[self.0.name_at..])
    }

    /// Notes which directory it is. False if it is one that it is in itself.
    pub fn identify(&self, identity: Identity) -> bool {
        let above = std::iter::successors(self.0.above.as_ref(), |Called(part)| part.above.as_ref());
        let leads_back = above.into_iter().any(|Called(part)| part.identity.get() == Some(&identity));
        let _ = self.0.identity.set(identity);
        !leads_back
    }

    /// Bytes of the path, as calls count them.
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// True for what is in no directory that is known.
    pub fn is_named(&self) -> bool {
        self.0.above.is_none()
    }

    /// The path.
    pub fn path(&self) -> PathBuf {
        let mut parts = Vec::new();
        let mut at = Some(self);
        while let Some(Called(part)) = at {
            parts.push(&part.text);
            at = part.above.as_ref();
        }
        let mut path = OsString::new();
        parts.iter().rev().for_each(|part| path.push(part));
        path.into()
    }
}
