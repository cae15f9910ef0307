//! Where objects are, for whoever asks for many of them.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use crate::ids::{Ino, ROOT};
use crate::tree::view::{PATH_MAX, View};

/// The directory that a name is in, and the name.
type Named = (Ino, Arc<[u8]>);

/// The paths of a view's objects. All names are gone through once, when the first one is asked for: none may change
/// after that.
#[derive(Debug, Default)]
pub(crate) struct Paths(OnceLock<HashMap<Ino, Named>>);

impl Paths {
    /// As [`View::path_of`], as a text.
    pub fn of(&self, view: &View, ino: Ino) -> Option<String> {
        spelled(self.bytes_of(view, ino)).0
    }

    /// As [`View::path_of`].
    pub fn bytes_of(&self, view: &View, ino: Ino) -> Option<Vec<u8>> {
        let names = self.0.get_or_init(|| view.names().map(|(dir, name, ino)| (ino, (dir, name.clone()))).collect());
        let (mut parts, mut at, mut len) = (Vec::new(), ino, 0);
        while at != ROOT {
            let (dir, name) = names.get(&at)?;
            len += 1 + name.len();
            if len > PATH_MAX {
                // In a damaged tree a directory could be below itself.
                return None;
            }
            parts.push(&**name);
            at = *dir;
        }
        let mut path = Vec::with_capacity(len.max(1));
        for part in parts.into_iter().rev() {
            path.push(b'/');
            path.extend_from_slice(part);
        }
        if path.is_empty() {
            path.push(b'/');
        }
        Some(path)
    }
}

/// What is told of a path: it as text, in which bytes that are no text are replaced; and its bytes, if there are such.
pub fn spelled(path: Option<Vec<u8>>) -> (Option<String>, Option<Vec<u8>>) {
    let Some(path) = path else { return (None, None) };
    match String::from_utf8(path) {
        Ok(text) => (Some(text), None),
        Err(error) => (Some(String::from_utf8_lossy(error.as_bytes()).into_owned()), Some(error.into_bytes())),
    }
}

/// Of many paths what is told of each, in the same order.
pub fn spelled_all(paths: impl IntoIterator<Item = Vec<u8>>) -> (Vec<String>, Vec<Option<Vec<u8>>>) {
    paths.into_iter().map(|path| spelled(Some(path))).map(|(text, bytes)| (text.unwrap_or_default(), bytes)).unzip()
}
