//! Random steps. They are drawn without looking at the filesystem, so that any part of them can be left out when a
//! failure is made smaller; to meet something nevertheless, they use few names, and keep using those that were made.

use super::op::{At, Lock, MAPS, Op, SLOTS, Step, Time};
use super::reference::Reference;
use super::users::{GIDS, UIDS, User};
use crate::random::Random;

/// The largest offset that is written to, but for a few.
const LARGE: u64 = 160_000;

/// The steps of an actor.
pub fn steps(seed: u64, actor: u64, count: usize) -> Vec<Step> {
    let mut generator = Generator { random: Random::of(&[seed, actor]), reference: Reference::new() };
    let first = ["a", "b", "a/b", "b/a"].map(|path| Step {
        user: User::Root,
        watched: false,
        op: Op::Mkdir { at: At { dir: None, path: path.to_owned() }, mode: 0o777 },
    });
    let mut steps = Vec::with_capacity(count);
    for number in 0..count {
        let step = first.get(number).cloned().unwrap_or_else(|| generator.step());
        generator.reference.apply(&step, None);
        steps.push(step);
    }
    steps
}

struct Generator {
    random: Random,
    /// What is there if nothing is left out.
    reference: Reference,
}

#[derive(Clone, Copy)]
enum Kind {
    Open,
    Close,
    Bytes,
    Size,
    Mapping,
    Sync,
    Make,
    Remove,
    Link,
    Rename,
    Attributes,
    Xattr,
    Acl,
    Look,
    List,
    Lock,
    Umask,
}

const KINDS: [(u64, Kind); 17] = [
    (20, Kind::Open),
    (4, Kind::Close),
    (18, Kind::Bytes),
    (8, Kind::Size),
    (9, Kind::Mapping),
    (2, Kind::Sync),
    (9, Kind::Make),
    (5, Kind::Remove),
    (5, Kind::Link),
    (9, Kind::Rename),
    (9, Kind::Attributes),
    (7, Kind::Xattr),
    (5, Kind::Acl),
    (9, Kind::Look),
    (3, Kind::List),
    (2, Kind::Lock),
    (1, Kind::Umask),
];

const MODES: [u32; 12] = [0o644, 0o600, 0o666, 0o755, 0o777, 0o700, 0o1777, 0o2775, 0o4755, 0o6777, 0o2644, 0];

impl Generator {
    fn step(&mut self) -> Step {
        let user = *self.random.weighted(&[(10, User::Root), (3, User::Ann), (2, User::Bob), (2, User::Eve)]);
        let kind = *self.random.weighted(&KINDS);
        let op = self.op(kind);
        // To change no owner is something that FUSE does not tell from preparing a write; only the owner's counts.
        let idle = matches!(op, Op::Chown { uid: None, gid: None, .. } | Op::Fchown { uid: None, gid: None, .. });
        // A truncation that is refused for its size takes privileges away all the same.
        let huge = matches!(op, Op::Truncate { size: i64::MAX, .. } | Op::Ftruncate { size: i64::MAX, .. });
        let user = if idle || huge { User::Root } else { user };
        Step { user, watched: self.random.once_in(25), op }
    }

    fn op(&mut self, kind: Kind) -> Op {
        match kind {
            Kind::Open => self.open(),
            Kind::Close => Op::Close { slot: self.slot() },
            Kind::Bytes => self.bytes(),
            Kind::Size => self.size(),
            Kind::Mapping => self.mapping(),
            Kind::Sync => Op::Fsync { slot: self.used(), data: self.random.once_in(2) },
            Kind::Make => self.make(),
            Kind::Remove => {
                let is_dir = self.random.once_in(4);
                let at = self.old_of(Some(is_dir));
                if is_dir { Op::Rmdir { at } } else { Op::Unlink { at } }
            }
            Kind::Link => {
                let from = self.old_of(Some(false));
                Op::Link { from, to: self.new_at(false), follow: self.random.once_in(3) }
            }
            Kind::Rename => self.rename(),
            Kind::Attributes => self.attributes(),
            Kind::Xattr => self.xattr(),
            Kind::Acl => self.acl(),
            Kind::Look => match self.random.below(8) {
                0..4 => Op::Stat { at: self.old(), follow: self.random.once_in(2) },
                4 | 5 => Op::Fstat { slot: self.used() },
                6 => Op::Access { at: self.old(), mask: self.random.below(8) as i32 },
                _ => match self.random.below(3) {
                    0 => Op::Statfs { at: self.old() },
                    _ => Op::Readlink { at: self.old_of(Some(false)) },
                },
            },
            Kind::List => Op::List { at: self.old_of(Some(true)), seek: self.random.bits() >> 32 },
            Kind::Lock => {
                let lock = *self.random.pick(&[Lock::Shared, Lock::Exclusive, Lock::Exclusive, Lock::None]);
                let slot = self.used();
                match self.random.below(2) {
                    0 => Op::Flock { slot, lock },
                    _ => {
                        let start = self.random.below(4) as i64 * 100;
                        Op::RangeLock { slot, lock, start, len: self.random.below(300) as i64 }
                    }
                }
            }
            Kind::Umask => Op::Umask { mask: *self.random.pick(&[0o022, 0o022, 0, 0, 0o002, 0o077, 0o027]) },
        }
    }

    /// Any slot.
    fn slot(&mut self) -> usize {
        self.random.below(SLOTS) as usize
    }

    /// A slot to work with.
    fn used(&mut self) -> usize {
        let (slots, files, _) = self.reference.in_use();
        match self.random.below(10) {
            0..7 if !files.is_empty() => *self.random.pick(&files),
            7..9 if !slots.is_empty() => *self.random.pick(&slots),
            _ => self.slot(),
        }
    }

    /// A mapping to work with.
    fn mapped(&mut self) -> usize {
        let (_, _, maps) = self.reference.in_use();
        if maps.is_empty() { self.random.below(MAPS) as usize } else { *self.random.pick(&maps) }
    }

    /// A path. Names are mostly of a directory or mostly not, so that paths lead somewhere.
    fn path(&mut self, is_dir: bool) -> String {
        let parents = [(5, ""), (5, "a/"), (4, "b/"), (3, "a/b/"), (1, "b/a/"), (1, "c/")];
        let parent = *self.random.weighted(&parents);
        let dirs: &[&str] = &["a", "b"];
        let others: &[&str] = &["c", "d", "e", "f"];
        let names = if is_dir != self.random.once_in(8) { dirs } else { others };
        format!("{parent}{}", self.random.pick(names))
    }

    /// Odd ways to name something.
    fn odd(&mut self, path: String) -> String {
        match self.random.below(100) {
            0 | 1 => path + "/",
            2 => format!("./{path}"),
            3 => path + "/.",
            4 => path.replace('/', "//"),
            5 => String::new(),
            6 => "n".repeat(255 + self.random.below(2) as usize),
            7 => ".".to_owned(),
            _ => path,
        }
    }

    fn dir(&mut self) -> Option<usize> {
        self.random.once_in(12).then(|| self.slot())
    }

    /// Where something may be.
    fn old(&mut self) -> At {
        self.old_of(None)
    }

    /// Where a directory may be, or something else.
    fn old_of(&mut self, is_dir: Option<bool>) -> At {
        let mut paths = self.reference.paths();
        if !self.random.once_in(8) {
            paths.retain(|(_, found)| is_dir.is_none_or(|is_dir| is_dir == *found));
        }
        let path = match paths.is_empty() || self.random.once_in(10) {
            true => {
                let is_dir = self.random.once_in(4);
                self.path(is_dir)
            }
            false => self.random.pick(&paths).0.clone(),
        };
        At { dir: self.dir(), path: self.odd(path) }
    }

    /// Where something is made.
    fn new_at(&mut self, is_dir: bool) -> At {
        let path = self.path(is_dir);
        At { dir: self.dir(), path: self.odd(path) }
    }

    fn either(&mut self) -> At {
        if self.random.once_in(2) { self.new_at(false) } else { self.old_of(Some(false)) }
    }

    fn open(&mut self) -> Op {
        let mut flags = *self.random.weighted(&[(3, libc::O_RDONLY), (2, libc::O_WRONLY), (6, libc::O_RDWR)]);
        let mut at = self.either();
        for (times, flag) in [
            (1, libc::O_CREAT),
            (10, libc::O_EXCL),
            (6, libc::O_TRUNC),
            (8, libc::O_APPEND),
            (12, libc::O_NOFOLLOW),
            (25, libc::O_DSYNC),
            (25, libc::O_SYNC),
            (40, libc::O_NOATIME),
        ] {
            if self.random.once_in(times) {
                flags |= flag;
            }
        }
        if self.random.once_in(4) {
            flags &= !libc::O_CREAT;
        }
        if flags & libc::O_CREAT == 0 {
            // Nobody knows what that would mean.
            flags &= !libc::O_EXCL;
        }
        match self.random.below(12) {
            0 | 1 => {
                flags = libc::O_RDONLY | libc::O_DIRECTORY;
                at = self.old_of(Some(true));
            }
            2 if self.random.once_in(3) => flags = libc::O_PATH | flags & (libc::O_NOFOLLOW | libc::O_DIRECTORY),
            _ => {}
        }
        Op::Open { slot: self.slot(), at, flags, mode: *self.random.pick(&MODES) & !0o1000 }
    }

    fn offset(&mut self) -> i64 {
        let offset = match self.random.below(12) {
            0..3 => 0,
            3..6 => self.random.below(300),
            6..9 => self.random.below(20_000),
            9 => self.random.below(40) * 4096,
            _ => self.random.below(LARGE),
        };
        offset as i64
    }

    fn len(&mut self) -> usize {
        let len = match self.random.below(8) {
            0..3 => 1 + self.random.below(100),
            3..6 => 1 + self.random.below(10_000),
            6 => 4096 * (1 + self.random.below(4)),
            _ => 1 + self.random.below(60_000),
        };
        len as usize
    }

    fn bytes(&mut self) -> Op {
        let (slot, offset, len, seed) = (self.used(), self.offset(), self.len(), self.random.bits());
        match self.random.below(12) {
            0..2 => Op::Read { slot, len },
            2..4 => Op::Write { slot, len, seed },
            4..6 => Op::Pread { slot, offset, len },
            6..9 => Op::Pwrite { slot, offset, len, seed },
            9 => {
                let whence = *self.random.pick(&[libc::SEEK_SET, libc::SEEK_CUR, libc::SEEK_END, 77]);
                let offset = if self.random.once_in(3) { -offset / 2 } else { offset };
                Op::Seek { slot, offset, whence }
            }
            10 => Op::SeekHole { slot, offset, whence: *self.random.pick(&[libc::SEEK_DATA, libc::SEEK_HOLE]) },
            _ => {
                let (to, to_offset) = (self.used(), self.offset());
                Op::CopyRange { from: slot, from_offset: offset, to, to_offset, len }
            }
        }
    }

    fn any_size(&mut self) -> i64 {
        match self.random.below(40) {
            0 => -1,
            1 => i64::MAX,
            _ => self.offset(),
        }
    }

    fn size(&mut self) -> Op {
        match self.random.below(4) {
            0 => Op::Truncate { at: self.old_of(Some(false)), size: self.any_size() },
            1 => Op::Ftruncate { slot: self.used(), size: self.any_size() },
            _ => {
                let keep = libc::FALLOC_FL_KEEP_SIZE;
                let (punch, zero) = (libc::FALLOC_FL_PUNCH_HOLE, libc::FALLOC_FL_ZERO_RANGE);
                let mode = *self.random.pick(&[0, keep, punch | keep, punch | keep, zero, zero | keep, punch]);
                let len = if self.random.once_in(20) { 0 } else { self.len() as i64 };
                Op::Fallocate { slot: self.used(), mode, offset: self.offset(), len }
            }
        }
    }

    fn mapping(&mut self) -> Op {
        let (map, offset, len) = (self.mapped(), self.offset() as usize, self.len());
        match self.random.below(10) {
            0..3 => {
                let len = 4096 * (1 + self.random.below(12) as usize);
                let map = self.random.below(MAPS) as usize;
                Op::Map { map, slot: self.used(), len, write: !self.random.once_in(4) }
            }
            3..6 => Op::Load { map, offset: offset % 40_000, len },
            6..9 => Op::Store { map, offset: offset % 40_000, len, seed: self.random.bits() },
            _ => match self.random.below(2) {
                0 => Op::Msync { map },
                _ => Op::Unmap { map },
            },
        }
    }

    fn make(&mut self) -> Op {
        let mode = *self.random.pick(&MODES);
        let which = self.random.below(10);
        let at = self.new_at(which < 5);
        match which {
            0..5 => Op::Mkdir { at, mode },
            5..8 => {
                let target = match self.random.below(8) {
                    // Up by one and down again: an actor's links do not leave its directory.
                    0 => format!("../{}", self.random.pick(&["a", "b", "root"])),
                    1 => "x".repeat(*self.random.pick(&[1, 59, 60, 61, 255, 4095]) as usize),
                    _ => {
                        let is_dir = self.random.once_in(2);
                        self.path(is_dir)
                    }
                };
                Op::Symlink { target, at }
            }
            _ => {
                let kind =
                    *self.random.pick(&[libc::S_IFIFO, libc::S_IFSOCK, libc::S_IFCHR, libc::S_IFBLK, libc::S_IFREG]);
                Op::Mknod { at, kind, mode: mode & !0o1000 }
            }
        }
    }

    fn rename(&mut self) -> Op {
        let from = self.old();
        let to = match self.random.below(8) {
            // Into itself.
            0 if self.random.once_in(2) => {
                At { dir: from.dir, path: format!("{}/{}", from.path, self.random.pick(&["a", "b"])) }
            }
            // Onto its own directory.
            1 if self.random.once_in(2) => {
                At { dir: from.dir, path: from.path.split_once('/').map_or("a", |(dir, _)| dir).to_owned() }
            }
            2 if self.random.once_in(2) => from.clone(),
            _ => self.either(),
        };
        let exclusive = libc::RENAME_NOREPLACE;
        let exchange = libc::RENAME_EXCHANGE;
        let flags =
            *self.random.weighted(&[(12, 0), (3, exclusive), (4, exchange), (1, exclusive | exchange), (1, 64)]);
        Op::Rename { from, to, flags }
    }

    fn id(&mut self, from: &[u32]) -> Option<u32> {
        (!self.random.once_in(3)).then(|| *self.random.pick(from))
    }

    fn time(&mut self) -> Time {
        match self.random.below(8) {
            0 => Time::Omit,
            1 => Time::Now,
            2 => Time::Fixed(0, 0),
            3 => Time::Fixed(-1_000_000_000, 999_999_999),
            4 => Time::Fixed(1 << 32, 123_456_789),
            _ => Time::Fixed(self.random.below(1_000_000_000) as i64, self.random.below(1_000_000_000) as i64),
        }
    }

    fn attributes(&mut self) -> Op {
        let follow = !self.random.once_in(3);
        match self.random.below(10) {
            0..3 => Op::Chmod { at: self.old(), mode: *self.random.pick(&MODES) },
            3 => Op::Fchmod { slot: self.used(), mode: *self.random.pick(&MODES) },
            4 | 5 => Op::Chown { at: self.old(), uid: self.id(&UIDS), gid: self.id(&GIDS), follow },
            6 => Op::Fchown { slot: self.used(), uid: self.id(&UIDS), gid: self.id(&GIDS) },
            7 | 8 => Op::Utimens { at: self.old(), atime: self.time(), mtime: self.time(), follow },
            _ => Op::Futimens { slot: self.used(), atime: self.time(), mtime: self.time() },
        }
    }

    fn xattr(&mut self) -> Op {
        let names = ["user.a", "user.a", "user.b", "trusted.t", "security.s", "user.", "bogus.x", "system.x"];
        let name = match self.random.below(40) {
            0 => format!("user.{}", "n".repeat(250 + self.random.below(2) as usize)),
            _ => (*self.random.pick(&names)).to_owned(),
        };
        let follow = !self.random.once_in(3);
        // What ext4 has room for in its one block.
        let value = vec![self.random.bits() as u8; self.random.below(120) as usize];
        match self.random.below(10) {
            0..4 => {
                let flags = *self.random.weighted(&[(6, 0), (1, libc::XATTR_CREATE), (1, libc::XATTR_REPLACE)]);
                Op::SetXattr { at: self.old(), name, value, flags, follow }
            }
            4 | 5 => {
                let room = *self.random.pick(&[0, 1, 1000, 1000, 1000]);
                Op::GetXattr { at: self.old(), name, room, follow }
            }
            6 => Op::ListXattr { at: self.old(), follow },
            7 => Op::RemoveXattr { at: self.old(), name, follow },
            8 => Op::FsetXattr { slot: self.used(), name, value },
            _ => Op::FgetXattr { slot: self.used(), name },
        }
    }

    fn acl(&mut self) -> Op {
        let access = !self.random.once_in(3);
        let name = if access { "system.posix_acl_access" } else { "system.posix_acl_default" }.to_owned();
        match self.random.below(8) {
            0..5 => {
                let value = self.acl_value();
                Op::SetXattr { at: self.old(), name, value, flags: 0, follow: true }
            }
            5 => Op::RemoveXattr { at: self.old(), name, follow: true },
            _ => Op::GetXattr { at: self.old(), name, room: 1000, follow: true },
        }
    }

    fn acl_value(&mut self) -> Vec<u8> {
        const NOBODY: u32 = u32::MAX;
        let mut bits = || self.random.below(8) as u16;
        let mut entries = vec![(0x01, bits(), NOBODY)];
        let (user, group, all, mask, other) = (bits(), bits(), bits(), bits(), bits());
        let named = bits();
        if named & 1 != 0 {
            entries.push((0x02, user, 1001));
        }
        if named & 3 == 3 {
            entries.push((0x02, group, 1003));
        }
        entries.push((0x04, all, NOBODY));
        if named & 4 != 0 {
            entries.push((0x08, group, 2000));
        }
        // Named entries need a mask; one in a few lists is not valid.
        if (entries.len() > 2) != self.random.once_in(12) {
            entries.push((0x10, mask, NOBODY));
        }
        entries.push((0x20, other, NOBODY));
        let mut value = 2u32.to_le_bytes().to_vec();
        for (tag, bits, id) in entries {
            value.extend(u16::to_le_bytes(tag));
            value.extend(bits.to_le_bytes());
            value.extend(id.to_le_bytes());
        }
        value
    }
}
