//! Whether an OCDBT database is all there: its nodes, and the files that have its values.

use std::ops::ControlFlow;

use tensorfs_formats::ocdbt::{Asked, Step, Tree};
use tensorfs_layout::Ino;

use crate::error::{Fault, Result};

use super::Content;
use super::bytes::fault;

/// How manifests are called that have the number of a version behind, in so many digits; and so many names are looked
/// at for those.
const NUMBERED: &[u8] = b"manifest.";
const DIGITS: usize = 16;

impl Content {
    /// Whether all is there that the newest version of a database needs whose manifest is in a directory.
    ///
    /// # Errors
    /// `EIO` if something of it is of a version that is not known, or compressed in another way.
    pub(super) fn is_whole_database(&self, dir: Ino, manifest: Ino, names: &[&[u8]]) -> Result<bool> {
        let mut tree = Tree::new(false, false);
        if !self.takes(&mut tree, manifest, None)? {
            return Ok(false);
        }
        if tree.is_numbered()
            && let Some(newest) = names.iter().filter(|name| is_numbered(name)).max()
        {
            let Some(newest) = self.files.store().view().lookup(dir, newest) else { return Ok(false) };
            if !self.takes(&mut tree, newest, None)? {
                return Ok(false);
            }
        }
        while let Some(step) = tree.step() {
            let Some(file) = self.file_below(dir, &step.place.path) else { return Ok(false) };
            if !self.takes(&mut tree, file, Some(&step))? {
                return Ok(false);
            }
        }
        if tree.unknown().is_some() {
            return Err(Fault::new(libc::EIO));
        }
        let is_there = |(path, end): (&str, u64)| {
            let file = self.file_below(dir, path);
            file.is_some_and(|file| self.files.version(file).is_ok_and(|version| version.size >= end))
        };
        Ok(tree.needed().all(is_there))
    }

    /// Has a place of a file read, and the tree take what is told. False if that cannot be.
    fn takes(&self, tree: &mut Tree, file: Ino, step: Option<&Step>) -> Result<bool> {
        let Ok(version) = self.files.version(file) else { return Ok(false) };
        let source = self.bytes_of(file, &version);
        let mut is_wrong = false;
        let told =
            source.tree(step.map_or(Asked::Manifest, |step| step.asked), &mut |told| match tree.take(step, told) {
                Ok(_) => ControlFlow::Continue(()),
                Err(_) => {
                    is_wrong = true;
                    ControlFlow::Break(())
                }
            });
        source.close();
        let found = told.map_err(fault)?;
        match found.error {
            Some(error) => Err(fault(error)),
            None => Ok(!is_wrong && found.reason.is_none()),
        }
    }
}

fn is_numbered(name: &[u8]) -> bool {
    let digits = name.strip_prefix(NUMBERED).filter(|digits| digits.len() == DIGITS);
    digits.is_some_and(|digits| digits.iter().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')))
}
