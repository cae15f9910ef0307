//! HDF5: groups of groups and of data sets, as a file system has them. What h5py, Keras, netCDF and MATLAB write.
//!
//! <https://support.hdfgroup.org/documentation/hdf5/latest/_f_m_t3.html>
//!
//! Each object is listed once, by the first of its names in the order of h5py's `visit`. What cannot be read or
//! understood is passed over, and told; the rest is listed.

mod dataset;
mod datatype;
mod dense;
mod file;
mod group;
mod header;
mod link;
mod superblock;

use crate::cursor::Cursor;
use crate::fault::{Fault, Result, malformed, too_much};
use crate::format::Format;
use crate::found::Out;
use crate::limits::{NAME_MAX, excerpt};
use crate::pages::Pages;
use crate::source::Source;
use dataset::Object;
use file::File;
use link::{Link, Links};

pub(crate) use superblock::find;

/// Groups in groups.
const DEPTH_MAX: usize = 1024;

/// The file whose superblock is there.
pub(crate) fn recognise(source: &dyn Source, at: u64, out: &mut Out<'_, '_>) -> Result<()> {
    out.found.format = Format::Hdf5;
    let size = source.size()?;
    let len = superblock::len(source, at)?;
    if let Some(len) = len.filter(|len| *len > size) {
        out.found.cut = true;
        return malformed(format!("an HDF5 file that is to have {len} bytes, of which {size} are there"));
    }
    let superblock = superblock::read(source, at)?;
    let pages = Pages::new(source)?;
    let file = File::new(Cursor::of_kept(&pages, at, size)?, at, &superblock);
    let root = file.place(superblock.root)?;
    let mut walk =
        Walk { file, pages: &pages, size, name: Vec::new(), groups: Vec::new(), lacking: Lacking::default() };
    walk.all(root, out)?;
    out.found.end = len.unwrap_or(size);
    walk.lacking.told()
}

/// A group whose objects are gone through.
struct Group {
    links: std::vec::IntoIter<Link>,
    /// What is kept of its links and of those of the groups that it is in.
    taken: usize,
    /// Bytes of its name, as far as they are in front of names in it.
    name: usize,
}

struct Walk<'p, 's> {
    file: File<'p>,
    pages: &'p Pages<'s>,
    size: u64,
    /// Where the walk is.
    name: Vec<u8>,
    groups: Vec<Group>,
    lacking: Lacking,
}

impl Walk<'_, '_> {
    /// Each object below the one at `root`, and it itself.
    fn all(&mut self, root: u64, out: &mut Out<'_, '_>) -> Result<()> {
        self.file.is_new(root)?;
        self.visit(root, out)?;
        while let Some(group) = self.groups.last_mut() {
            let Some(link) = group.links.next() else {
                self.groups.pop();
                continue;
            };
            self.name.truncate(group.name);
            self.name.extend_from_slice(&link.name);
            // The other names of an object, and the ways back.
            if self.name.len() <= NAME_MAX && !self.file.is_new(link.at)? {
                continue;
            }
            self.visit(link.at, out)?;
        }
        Ok(())
    }

    /// What is wrong there is told, and does not end the walk.
    fn visit(&mut self, at: u64, out: &mut Out<'_, '_>) -> Result<()> {
        match self.object(at, out) {
            Err(Fault::Malformed(why) | Fault::Short(why) | Fault::TooMuch(why)) if !self.pages.is_spent() => {
                self.lacking.add(&self.name, &why);
                Ok(())
            }
            result => result,
        }
    }

    /// What is there: a data set, or a group to be gone through next.
    fn object(&mut self, at: u64, out: &mut Out<'_, '_>) -> Result<()> {
        if self.name.len() > NAME_MAX {
            return too_much("a name that is too long");
        }
        let (messages, len) = header::messages(&mut self.file, at)?;
        let object = Object { messages: &messages, at, len };
        if let Some(tensor) = dataset::read(&mut self.file, &object, &self.name, self.size)? {
            return out.tensor(tensor);
        }
        let mut links = Links::beside(self.groups.last().map_or(0, |group| group.taken));
        let found = group::links(&mut self.file, &object, &mut links);
        let taken = links.taken();
        links.all.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        if self.groups.len() >= DEPTH_MAX {
            return too_much("groups nested too deep");
        }
        if !links.all.is_empty() {
            if !self.name.is_empty() {
                self.name.push(b'/');
            }
            self.groups.push(Group { links: links.all.into_iter(), taken, name: self.name.len() });
        }
        found
    }
}

/// What was passed over.
#[derive(Default)]
struct Lacking {
    objects: u64,
    first: Option<String>,
}

impl Lacking {
    fn add(&mut self, name: &[u8], why: &str) {
        self.objects += 1;
        let name = String::from_utf8_lossy(name);
        self.first.get_or_insert_with(|| format!("{:?}: {}", excerpt(&name), excerpt(why)));
    }

    fn told(self) -> Result<()> {
        match self.first {
            Some(first) if self.objects == 1 => malformed(format!("an object is left out: {first}")),
            Some(first) => malformed(format!("{} objects are left out, the first of them {first}", self.objects)),
            None => Ok(()),
        }
    }
}
