//! What every check looks at, whether the pool is in use or not.

use std::collections::{HashMap, HashSet};
use std::io;

use crate::check::report::{Finding, NOT_A_SEGMENT, NOT_OURS, NOTELESS, Report, Subject, segment_path};
use crate::check::verify::fault_of_size;
use crate::error::reason;
use crate::ids::{Ino, ROOT, SegmentId};
use crate::log::census::Census;
use crate::log::file::{LOG, NEW_LOG};
use crate::log::scan::ScannedBlock;
use crate::log::superblock::{BLOCKS_OFFSET, MARK_OFFSETS, OFFSETS, Superblock};
use crate::medium::boot::boot_id;
use crate::medium::dir::{Dir, Entry};
use crate::medium::domain::Medium;
use crate::medium::foreign::Foreign;
use crate::pool::create::BESIDE;
use crate::pool::lock::LOCK;
use crate::segment::gone::Gone;
use crate::segment::home::{SEGMENTS, Stray};
use crate::segment::place::QUARANTINE;
use crate::segment::quarantine::Quarantine;
use crate::segment::segments::Segments;
use crate::segment::stat::SegmentStat;
use crate::segment::tiers::{TierInfo, TierState};
use crate::tree::chain::FileChain;
use crate::tree::object::Object;
use crate::tree::paths::{Paths, spelled};
use crate::tree::view::View;

/// So many gaps between transactions are listed, and the others are counted.
const LISTED: usize = 100;

/// A check on its way.
pub(crate) struct Checker<'a> {
    pub(super) superblock: &'a Superblock,
    pub(super) report: Report,
    pub(super) paths: Paths,
}

impl Checker<'_> {
    pub(crate) fn log_finding(&mut self, subject: Subject, offset: Option<u64>, what: String, meaning: &str) {
        self.report.findings.push(Finding {
            subject,
            path: None,
            path_bytes: None,
            ino: None,
            host_file: "log".into(),
            offset,
            tensors: Vec::new(),
            what,
            meaning: meaning.into(),
        });
    }

    pub(crate) fn superblocks(&mut self, medium: &dyn Medium) {
        for (offset, what) in OFFSETS.into_iter().zip(Superblock::examine(medium)) {
            if let Some(what) = what {
                let meaning = "the other copy is used; if that is damaged too, the pool is lost";
                self.log_finding(Subject::Superblock, Some(offset), what.into(), meaning);
            }
        }
        for (offset, what) in MARK_OFFSETS.into_iter().zip(self.superblock.examine_marks(medium)) {
            if let Some(what) = what {
                let meaning = "nothing is lost; the log says the same";
                self.log_finding(Subject::HorizonMark, Some(offset), what.into(), meaning);
            }
        }
    }

    /// That no transaction is missing up to `keep`.
    pub(crate) fn missing(&mut self, census: &Census<'_>, blocks: &[ScannedBlock], keep: u64) {
        // Whatever a log says, it takes no longer than it has frames.
        let mut damaged: HashMap<u64, u64> = HashMap::new();
        for (index, block) in blocks.iter().enumerate() {
            for found in block.frames.iter().filter(|found| !found.sound) {
                damaged.entry(found.header.id).or_insert(self.block_offset(index) + found.offset as u64);
            }
        }
        let missing = census.missing(keep);
        let (listed, rest) = missing.split_at(missing.len().min(LISTED));
        let meaning = "the pool is mounted read-only; names, sizes or attributes that they changed may be wrong";
        for &(first, last) in listed {
            let at = damaged.get(&first).copied();
            let what = if first == last {
                format!("transaction {first} cannot be read")
            } else {
                format!("transactions {first} to {last} cannot be read")
            };
            self.log_finding(Subject::Transactions, at, what, meaning);
        }
        if let (Some((first, _)), Some((_, last))) = (rest.first(), rest.last()) {
            let count: u64 = rest.iter().map(|(first, last)| last - first + 1).sum();
            let what = format!("{count} more transactions, from {first} to {last}, cannot be read");
            self.log_finding(Subject::Transactions, None, what, meaning);
        }
    }

    pub(crate) fn block_offset(&self, index: usize) -> u64 {
        BLOCKS_OFFSET + index as u64 * u64::from(self.superblock.block_size)
    }

    /// Every name leads to an object, every directory has one name, and all that is reached ends.
    pub(crate) fn tree(&mut self, view: &View) {
        if view.object(ROOT).is_none_or(|root| !root.is_dir()) {
            let meaning = "the pool cannot be mounted";
            self.log_finding(Subject::Tree, None, "there is no root directory".into(), meaning);
            return;
        }
        let mut queue = vec![ROOT];
        let mut directories = HashSet::from([ROOT]);
        let mut objects = HashSet::from([ROOT]);
        // Names that point to an object, and directories in it.
        let mut links: HashMap<Ino, (u32, u32)> = HashMap::new();
        while let Some(dir) = queue.pop() {
            for (_, name, ino) in view.entries_after(dir, 0) {
                let paths = &self.paths;
                // Only then is a path put together.
                let tree = |what: String, meaning: &str| {
                    let (path, path_bytes) = spelled(Some(join(paths.bytes_of(view, dir), dir, name)));
                    let finding = of_host_file(Subject::Tree, "log", what, meaning);
                    Finding { path, path_bytes, ino: Some(ino), ..finding }
                };
                let Some(object) = view.object(ino) else {
                    let what = format!("names object {ino}, of which there is no record");
                    self.report.findings.push(tree(what, "the name is there and cannot be opened"));
                    continue;
                };
                objects.insert(ino);
                links.entry(ino).or_default().0 += 1;
                if object.is_dir() {
                    links.entry(dir).or_default().1 += 1;
                    if directories.insert(ino) {
                        queue.push(ino);
                    } else {
                        let what = "a directory that has another name already".to_owned();
                        self.report.findings.push(tree(what, "programs that walk the tree may not end"));
                    }
                }
            }
        }
        for (ino, object) in view.objects().filter(|(ino, _)| objects.contains(ino)) {
            let (names, directories) = links.get(&ino).copied().unwrap_or_default();
            let expected = if object.is_dir() { 2 + directories } else { names };
            if object.links() != expected {
                let (path, path_bytes) = spelled(self.paths.bytes_of(view, ino));
                let what = format!("has {} links, and {expected} lead to it", object.links());
                let meaning = "it may be removed too early, or never";
                let finding = of_host_file(Subject::Tree, "log", what, meaning);
                self.report.findings.push(Finding { path, path_bytes, ino: Some(ino), ..finding });
            }
        }
        self.report.objects = objects.len() as u64;
    }

    /// Every tier is there.
    pub(crate) fn tiers(&mut self, tiers: &[TierInfo]) {
        for tier in tiers.iter().filter(|tier| tier.state == TierState::Missing) {
            let (name, reason) = (&tier.name, tier.reason.as_deref().unwrap_or_default());
            let what = format!("tier {name} is missing: {reason}");
            let meaning = match tier.files {
                0 => "no file is in it; new files go to pm".to_owned(),
                files => format!("{files} files cannot be read until it is back and the pool mounted again"),
            };
            self.host_file(Subject::Tier, tier.directory.clone(), what, &meaning);
        }
    }

    /// A file whose bytes cannot be had. Of a tier that is missing only the tier itself is named.
    pub(crate) fn gone(&mut self, view: &View, ino: Ino, id: SegmentId, gone: &Gone) {
        let meaning = match gone {
            Gone::Lost { .. } => {
                "its bytes did not survive that the machine was started anew; delete it or write it again"
            }
            Gone::Left { .. } => "it cannot be opened until the pool is mounted again",
            // These are in order.
            Gone::Away { .. } => return,
            Gone::Missing { .. } => return,
        };
        self.file(view, ino, id, None, gone.to_string(), meaning);
    }

    pub(crate) fn unowned(&mut self, id: SegmentId) {
        let (what, meaning) = ("belongs to no file", "it takes space, and no file misses it");
        self.host_file(Subject::Segment, segment_path(id), what.into(), meaning);
    }

    pub(crate) fn marked_as_damaged(&mut self, view: &View, ino: Ino, id: SegmentId) {
        let what = "is marked as damaged: a sync failed, or bytes were missing".to_owned();
        self.file(view, ino, id, None, what, "what it holds may not be what was written");
    }

    /// True if the host fails over a file's segment, instead of saying that there is none.
    pub(crate) fn fails(&mut self, view: &View, ino: Ino, id: SegmentId, segments: &Segments) -> bool {
        let Err(error) = segments.stat(id) else { return false };
        if error.raw_os_error() != Some(libc::EIO) {
            return false;
        }
        let what = format!("its segment cannot be looked at: {}", reason(&error));
        self.file(view, ino, id, None, what, "its bytes cannot be read now");
        true
    }

    /// Whether a file's segment has the bytes that the file says; and no more, unless it is `growing`.
    pub(crate) fn segment_of(
        &mut self,
        view: &View,
        ino: Ino,
        object: &Object,
        id: SegmentId,
        found: Option<&SegmentStat>,
        growing: bool,
    ) {
        let size = object.size();
        // Then recovery writes them.
        let restored = self.report.unclean && object.has_value();
        // After a power loss the file may have been cut, and the record of that not been durable.
        let sealed = object.chain().map_or(0, FileChain::sealed_end);
        let cut = self.report.unclean && self.superblock.boot_id != boot_id(None);
        let Some(found) = found else {
            if size > 0 && !restored {
                self.file(view, ino, id, None, "its segment is missing".into(), "its bytes are lost");
            }
            return;
        };
        if found.size < size && !restored && !(cut && found.size >= sealed) {
            let what = format!("its segment ends at {}, the file at {size}", found.size);
            self.file(view, ino, id, Some(found.size), what, "the bytes behind that are lost");
        }
        if found.size > size && !growing {
            let what = fault_of_size(found.size, size).map_or_else(String::new, |(.., what)| what);
            self.file(view, ino, id, Some(size), what, "they were never part of the file; readers may see them");
        }
    }

    pub(crate) fn file(
        &mut self,
        view: &View,
        ino: Ino,
        id: SegmentId,
        offset: Option<u64>,
        what: String,
        meaning: &str,
    ) {
        let (path, path_bytes) = spelled(self.paths.bytes_of(view, ino));
        self.report.findings.push(Finding {
            subject: Subject::File,
            path,
            path_bytes,
            ino: Some(ino),
            host_file: segment_path(id),
            offset,
            tensors: Vec::new(),
            what,
            meaning: meaning.into(),
        });
    }

    fn host_file(&mut self, subject: Subject, host_file: String, what: String, meaning: &str) {
        self.report.findings.push(of_host_file(subject, host_file, what, meaning));
    }

    pub(crate) fn foreign(&mut self, strays: &[Stray]) {
        for stray in strays {
            // A file that has the name of a segment is in the wrong place.
            let what = match &stray.what {
                Some(what) => format!("{NOT_A_SEGMENT}: {what}"),
                None => NOT_A_SEGMENT.into(),
            };
            let meaning = "tensorfs did not put it there, and leaves it alone";
            self.host_file(Subject::Segment, stray.place.clone(), what, meaning);
        }
    }

    /// That the files which a pool has beside its log are regular ones, and its own, and that it has its quarantine.
    pub(crate) fn parts(&mut self, dir: &Dir) {
        for (name, meaning) in [(LOCK, "the pool cannot be mounted"), (NEW_LOG, "the log cannot be repaired")] {
            let what = match dir.stat(name).map(|found| dir.check_file(&found)) {
                Ok(Ok(())) => continue,
                Ok(Err(why)) => why.to_string(),
                Err(error) if error.kind() == io::ErrorKind::NotFound && name == LOCK => "it is not there".into(),
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => format!("cannot be looked at: {}", reason(&error)),
            };
            self.host_file(Subject::Part, name.into(), what, meaning);
        }
        if let Err(error) = dir.below(QUARANTINE) {
            let what = match Foreign::of(&error) {
                Some(why) => why.to_string(),
                None if error.kind() == io::ErrorKind::NotFound => "it is not there".into(),
                None => format!("cannot be looked at: {}", reason(&error)),
            };
            let meaning = "nothing can be set aside, nor is what was set aside looked at";
            self.host_file(Subject::Part, QUARANTINE.into(), what, meaning);
        }
        let Ok(entries) = dir.entries() else { return };
        let mut foreign: Vec<String> = entries.iter().map(Entry::shown).filter(|name| !is_part(name)).collect();
        foreign.sort();
        for name in foreign {
            let meaning = "tensorfs did not put it there, and leaves it alone";
            self.host_file(Subject::Part, name, NOT_OURS.into(), meaning);
        }
    }

    /// What in the quarantine is neither an entry nor a note, and has no note that says whose it is.
    pub(crate) fn strays(&mut self, quarantine: &Quarantine) -> io::Result<()> {
        for (place, what) in quarantine.strays()? {
            let meaning = "tensorfs did not put it there, and leaves it alone";
            self.host_file(Subject::Quarantine, place, what, meaning);
        }
        Ok(())
    }

    pub(crate) fn noteless(&mut self, place: String) {
        let meaning = "it cannot be told whose bytes these are";
        self.host_file(Subject::Quarantine, place, NOTELESS.into(), meaning);
    }
}

/// What is about a host file, and no file or directory on the mount.
fn of_host_file(subject: Subject, host_file: impl Into<String>, what: String, meaning: &str) -> Finding {
    Finding {
        subject,
        path: None,
        path_bytes: None,
        ino: None,
        host_file: host_file.into(),
        offset: None,
        tensors: Vec::new(),
        what,
        meaning: meaning.into(),
    }
}

/// True for what may be in a pool's directory; or in any, as that of a filesystem.
fn is_part(name: &str) -> bool {
    [LOG, LOCK, SEGMENTS, QUARANTINE, "lost+found"].contains(&name) || BESIDE.contains(&name)
}

fn join(parent: Option<Vec<u8>>, dir: Ino, name: &[u8]) -> Vec<u8> {
    let parent = parent.unwrap_or_else(|| format!("(inode {dir})").into_bytes());
    let parent = if parent == b"/" { &[][..] } else { &parent };
    [parent, b"/", name].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::frame;
    use crate::log::scan::Found;

    #[test]
    fn of_many_gaps_the_first_are_listed_and_damaged_frames_have_their_place() {
        let superblock = Superblock::new("x".into(), 16 << 20, 1, None).unwrap();
        let many = 200_000;
        let frame = |(place, id, sound): (usize, u64, bool)| {
            let header = frame::Header { id, length: frame::HEADER, ..frame::Header::default() };
            Found { header, offset: 64 + place * frame::HEADER, sound }
        };
        let others = (3..many).map(|number| (number as usize, 2 * number, true));
        let frames = [(0, 2, true), (1, 3, false), (2, 4, true)].into_iter().chain(others).map(frame).collect();
        let blocks = [ScannedBlock { frames, ..ScannedBlock::default() }];
        let mut checker = Checker { superblock: &superblock, report: Report::default(), paths: Paths::default() };
        checker.missing(&Census::new(&blocks), &blocks, 2 * many - 2);
        let found = &checker.report.findings;
        assert_eq!(found.len(), LISTED + 1);
        assert_eq!((found[0].offset, found[0].what.as_str()), (None, "transaction 1 cannot be read"));
        let at = BLOCKS_OFFSET + (64 + frame::HEADER) as u64;
        assert_eq!((found[1].offset, found[1].what.as_str()), (Some(at), "transaction 3 cannot be read"));
        let rest = "199899 more transactions, from 201 to 399997, cannot be read";
        assert_eq!(found[LISTED].what, rest);
    }
}
