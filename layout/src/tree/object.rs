//! Objects (inodes) of the live view.

use crate::ids::{Ino, SegmentId};
use crate::log::Origin;
use crate::log::ledger::Placed;
use crate::log::record::{Attributes, Record};
use crate::tree::chain::FileChain;
use crate::tree::directory::Directory;
use crate::tree::run::Run;
use crate::tree::xattrs::Xattrs;

/// Sequence numbers of a chain start here.
pub(crate) const FIRST_SEQ: u64 = 16;
/// So many records of a file are what was appended, however short.
const RECORDS_ALONE: usize = 256;
/// Then what is appended behind a shorter record shares it.
const RECORD_MIN: u64 = 4096;
/// As behind one that is shorter than this part of the file: its size, shifted by so many bits.
const RECORDS_SHIFT: u32 = 14;

/// What is counted for an object, with one name of it. It takes somewhat less memory, with a name of a common length.
pub const OBJECT_TAKES: u64 = 1 << 10;
/// As [`OBJECT_TAKES`], for each further name.
pub const NAME_TAKES: u64 = 1 << 9;

/// One object of the tree as its chain describes it.
#[derive(Debug)]
pub struct Object {
    /// Its attributes.
    pub attributes: Attributes,
    pub(super) placed: Placed,
    pub(super) last_seq: u64,
    pub(super) names: u32,
    /// The numbers of the directories that its names are in, added up: where it has one name, the number of that one.
    pub(super) places: u64,
    pub(super) content: Content,
    pub(super) xattrs: Xattrs,
}

#[derive(Debug)]
pub(crate) enum Content {
    File(Box<FileChain>),
    Directory(Box<Directory>),
    Symlink(Option<Box<Target>>),
    Other,
}

/// Where a symbolic link points.
#[derive(Debug)]
pub(crate) struct Target {
    pub path: Box<[u8]>,
    pub placed: Placed,
}

impl Object {
    /// The file type bits of the mode.
    pub fn kind(&self) -> u32 {
        self.attributes.mode & libc::S_IFMT
    }

    /// True for a directory.
    pub fn is_dir(&self) -> bool {
        self.kind() == libc::S_IFDIR
    }

    /// True for a regular file.
    pub fn is_file(&self) -> bool {
        self.kind() == libc::S_IFREG
    }

    /// The number of names that point here.
    pub fn names(&self) -> u32 {
        self.names
    }

    /// The directory of its name, if it has just one.
    pub fn only_place(&self) -> Option<Ino> {
        (self.names == 1).then_some(Ino(self.places))
    }

    /// What `stat` calls `st_nlink`: the names, and for a directory `.` and the `..` of each subdirectory too.
    pub fn links(&self) -> u32 {
        match &self.content {
            Content::Directory(_) if self.names == 0 && self.parent().is_some() => 0,
            Content::Directory(dir) => 2 + dir.subdirectories,
            _ => self.names,
        }
    }

    /// The memory that is counted of it for its owner: for its names, its target, and its records with what they say.
    pub fn taken(&self) -> u64 {
        let more = match &self.content {
            Content::File(chain) => chain.taken(),
            Content::Symlink(target) => target.as_ref().map_or(0, |target| target.path.len() as u64),
            _ => 0,
        };
        OBJECT_TAKES + NAME_TAKES * u64::from(self.names.saturating_sub(1)) + more
    }

    fn directory(&self) -> Option<&Directory> {
        match &self.content {
            Content::Directory(dir) => Some(dir),
            _ => None,
        }
    }

    /// A directory's parent; `None` for the root and for anything else.
    pub fn parent(&self) -> Option<Ino> {
        self.directory()?.parent
    }

    /// True for a directory without names in it.
    pub fn is_empty_dir(&self) -> bool {
        self.directory().is_some_and(|dir| dir.entries.is_empty())
    }

    /// Where a symbolic link points.
    pub fn target(&self) -> Option<&[u8]> {
        match &self.content {
            Content::Symlink(target) => target.as_ref().map(|target| &*target.path),
            _ => None,
        }
    }

    /// A regular file's chain.
    pub fn chain(&self) -> Option<&FileChain> {
        match &self.content {
            Content::File(chain) => Some(chain),
            _ => None,
        }
    }

    /// Bytes in a regular file or in a symbolic link's target; for directories the number of names.
    pub fn size(&self) -> u64 {
        match &self.content {
            Content::File(chain) => chain.size(),
            Content::Directory(dir) => dir.entries.len() as u64,
            Content::Symlink(target) => target.as_ref().map_or(0, |target| target.path.len() as u64),
            Content::Other => 0,
        }
    }

    /// Offset and length of what the next data record describes again and extends: the last run of a file's chain, or
    /// nothing behind it if that is sealed.
    pub fn tail(&self) -> (u64, u64) {
        self.chain().and_then(|chain| chain.runs().last()).map_or((0, 0), |run| match run.any_seal() {
            Some(_) => (run.end(), 0),
            None => (run.offset, run.len),
        })
    }

    /// First byte of the next data record of a file whose segment has `size` bytes now. What a file has grown by is a
    /// record of its own, behind the last one, unless there are many and that is so short that the two share one; what
    /// was there before and may have been written again belongs to the last record.
    pub fn next_record(&self, size: u64) -> u64 {
        let runs = self.chain().map_or(&[][..], FileChain::runs);
        let Some(last) = runs.last() else { return 0 };
        if size <= last.end() {
            return self.tail().0.min(size);
        }
        // Of a long file they are longer, so that a file has no more than some tens of thousands.
        let short = |run: &Run| run.len < RECORD_MIN.max(size >> RECORDS_SHIFT);
        // A sealed one is what it is: sealing cuts off what is behind a tensor. But of two short ones one is enough.
        let stays = last.any_seal().is_some() && !runs.iter().rev().nth(1).is_some_and(short);
        let shares = runs.len() >= RECORDS_ALONE && short(last) && !stays;
        if shares || last.cut_from.is_some() { last.offset } else { last.end() }
    }

    /// As [`Object::next_record`], where a file is to have no more records than it has, if that can be.
    pub fn last_record(&self, size: u64) -> u64 {
        match self.chain().and_then(|chain| chain.runs().last()) {
            Some(last) if size > last.end() && last.seal.is_none() => last.offset,
            _ => self.next_record(size),
        }
    }

    /// Where the bytes of the last record come from.
    pub fn tail_origin(&self) -> Origin {
        self.chain().and_then(|chain| chain.runs().last()).map_or(Origin::default(), |run| run.origin)
    }

    /// Bytes that the host had allocated to the file's segment when it was last recorded.
    pub fn allocated(&self) -> u64 {
        self.chain().map_or(0, FileChain::allocated)
    }

    /// True if a truncation was written ahead, and no record says that it was done: recovery does it again to a segment
    /// that has, or has again, the size it had before.
    pub fn is_cut_unconfirmed(&self) -> bool {
        self.unconfirmed_cut().is_some()
    }

    /// The size in bytes that the segment had before a truncation that no record says was done.
    pub(crate) fn unconfirmed_cut(&self) -> Option<u64> {
        self.chain()?.runs().last()?.cut_from
    }

    /// The sequence number of the newest record of the object's chain.
    pub(crate) fn last_seq(&self) -> u64 {
        self.last_seq
    }

    /// True if the log holds the bytes of the file.
    pub fn has_value(&self) -> bool {
        self.chain().is_some_and(FileChain::has_value)
    }

    /// The segment that is to replace the file's own.
    pub(crate) fn pending_replace(&self) -> Option<SegmentId> {
        self.chain().and_then(FileChain::replacing)
    }

    /// Adds the object's live records, with their sequence numbers. Removals are not among them: in a log of live
    /// records alone there is nothing to remove.
    pub(crate) fn export(&self, ino: Ino, records: &mut Vec<(Record, u64)>) {
        records.push((Record::Attributes { ino, attributes: self.attributes.clone() }, self.placed.seq));
        match &self.content {
            Content::File(chain) => {
                let (segment, allocated) = (self.attributes.segment.unwrap_or_default(), chain.allocated());
                let runs = chain.runs().iter().map(|run| {
                    let (offset, len, origin) = (run.offset, run.len, run.origin);
                    let record = match run.any_seal().cloned() {
                        Some(seal) => Record::Sealed { ino, segment, offset, len, allocated, seal, origin },
                        None => Record::Data { ino, segment, offset, len, allocated, origin },
                    };
                    (record, run.placed.seq)
                });
                records.extend(runs);
                if let Some((from, placed)) = chain.provisional_from() {
                    records.push((Record::Provisional { ino, segment, from }, placed.seq));
                }
                if let (Some(bytes), Some(placed)) = (chain.value(), chain.value_placed()) {
                    records.push((Record::Value { ino, segment, bytes: bytes.into() }, placed.seq));
                }
            }
            Content::Directory(dir) => {
                let names = dir.entries.iter().map(|(name, entry)| {
                    (Record::Name { dir: ino, name: (**name).into(), ino: entry.ino }, entry.placed.seq)
                });
                records.extend(names);
            }
            Content::Symlink(Some(target)) => {
                records.push((Record::Target { ino, target: target.path.clone() }, target.placed.seq));
            }
            Content::Symlink(None) | Content::Other => {}
        }
        for (name, value, seq) in self.xattrs.iter() {
            records.push((Record::Xattr { ino, name: name.into(), value: value.into() }, seq));
        }
    }

    /// The value of an extended attribute.
    pub fn xattr(&self, name: &[u8]) -> Option<&[u8]> {
        self.xattrs.get(name)
    }

    /// The value of an extended attribute, and the number of its record: no other value that it has, or had, has that.
    pub fn xattr_numbered(&self, name: &[u8]) -> Option<(&[u8], u64)> {
        self.xattrs.get_numbered(name)
    }

    /// Names and values of all extended attributes, by name.
    pub fn xattrs(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.xattrs.iter().map(|(name, value, _)| (name, value))
    }
}
