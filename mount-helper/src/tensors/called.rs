//! How a place is called in print. Each name knows the directory that it is in: what is in one does not repeat its
//! path.

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
    /// Bytes of the whole path.
    len: usize,
}

impl Called {
    /// As it was named.
    pub fn named(path: &OsStr) -> Called {
        Called(Rc::new(Part { above: None, text: path.to_owned(), name_at: 0, len: path.len() }))
    }

    /// Something in this directory.
    pub fn inside(&self, separator: &str, name: &OsStr) -> Called {
        let mut text = OsString::with_capacity(separator.len() + name.len());
        text.push(separator);
        text.push(name);
        let len = self.len() + text.len();
        Called(Rc::new(Part { above: Some(self.clone()), text, name_at: separator.len(), len }))
    }

    /// The name; all that was named, if it was.
    pub fn name(&self) -> &OsStr {
        OsStr::from_bytes(&self.0.text.as_bytes()[self.0.name_at..])
    }

    /// Bytes of the path.
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
        let mut path = OsString::with_capacity(self.len());
        parts.iter().rev().for_each(|part| path.push(part));
        path.into()
    }
}
