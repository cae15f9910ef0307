//! The control tree: `.tensorfs` in the root of the mount, found by name and not listed there.
//!
//! `info`, `README`, `placement` and `accesses` are made when they are opened; `placement` can be written, too. Below `tensors` are the directories of the pool again, with a
//! directory in the place of each file that holds tensors, and in that its tensors as `.npy` files.
//!
//! Nobody reads a byte through the tree that is kept from him outside of it: each object shows owner, mode and access
//! list of what it stands for, as far as they say who may read, and the kernel checks every step of a path by them. It is
//! told to keep none of it, so that a change counts at once.

mod draft;
mod index;
mod names;
mod npy;
mod numbers;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use fuser::{FileType, FopenFlags};
use tensorfs_formats::{Tensor, npy_len};
use tensorfs_layout::{Attributes, Ino, NAME_MAX, Object, ROOT, Timestamp};

use crate::acl::{self, Acl};
use crate::attributes::{LONG, Stat};
use crate::clock;
use crate::error::{Fault, Result};
use crate::filesystem::{Caller, Filesystem};
use crate::handles::Opened;
use crate::listing::{Listed, ListedPlus};
use crate::open::OpenReply;
use crate::replace::is_dying;
use crate::tensors::{Tensors, fault};

use index::{Found, TOP};
use numbers::{Look, Node};

pub(crate) use draft::{Draft, Moment, Who};
pub(crate) use index::{Index, number};
pub(crate) use npy::{Decoders, OpenTensor};
pub(crate) use numbers::Numbers;

/// The name of the control tree. Users cannot make, remove or move an object of that name in the root.
pub(crate) const NAME: &[u8] = b".tensorfs";

/// Numbers of the control tree's objects are above all that a pool hands out.
const FIRST: u64 = 1 << 63;
/// Beside [`FIRST`] and a pool's number of a directory: that directory in the tree.
const MIRROR: u64 = 1 << 62;

const DIRECTORY: Ino = Ino(FIRST);
const INFO: Ino = Ino(FIRST + 1);
const README: Ino = Ino(FIRST + 2);
const PLACEMENT: Ino = Ino(FIRST + 3);
const ACCESSES: Ino = Ino(FIRST + 4);
/// The root of the pool in the tree.
const TENSORS: Ino = Ino(FIRST | MIRROR | ROOT.0);

/// What is in the control directory: number, name, type.
const FIXED: [(Ino, &[u8], FileType); 5] = [
    (INFO, b"info", FileType::RegularFile),
    (README, b"README", FileType::RegularFile),
    (PLACEMENT, b"placement", FileType::RegularFile),
    (ACCESSES, b"accesses", FileType::RegularFile),
    (TENSORS, b"tensors", FileType::Directory),
];

const README_TEXT: &[u8] = include_bytes!("README.txt");

/// The cookies of `.` and `..`, and what is below the first one of a name.
const DOT: u64 = 1;
const DOT_DOT: u64 = 2;
const NAMES: u64 = 16;

/// Entries are taken in lots of this size.
const LOT: usize = 128;

/// True for an object of the control tree.
pub(crate) fn is_control(ino: Ino) -> bool {
    ino.0 >= FIRST
}

/// True for an object whose directory has to be looked into, which may take long.
pub(crate) fn is_slow(ino: Ino) -> bool {
    is_control(ino) && ![DIRECTORY, INFO, README, PLACEMENT, ACCESSES].contains(&ino)
}

/// True if opening a file of the tree may take long.
pub(crate) fn opens_slowly(ino: Ino) -> bool {
    is_slow(ino) || ino == ACCESSES
}

/// How long the kernel may keep what a name stands for.
pub(crate) fn name_ttl(ino: Ino) -> Duration {
    if is_slow(ino) { Duration::ZERO } else { LONG }
}

/// What an object of the pool is in the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// A directory in the place of a directory.
    Directory,
    /// A directory in the place of a file.
    Inside,
    /// One of its tensors.
    Tensor,
}

impl Role {
    fn kind(self) -> u32 {
        if self == Role::Tensor { libc::S_IFREG } else { libc::S_IFDIR }
    }

    /// What three bits of permission are worth in the tree: nobody writes, and who reads a file may search and list the
    /// directories in its place.
    fn rights(self, bits: u16) -> u16 {
        match (self, bits & 4 != 0) {
            (Role::Directory, _) => bits & 5,
            (Role::Inside, true) => 5,
            (Role::Tensor, true) => 4,
            (_, false) => 0,
        }
    }

    fn mode(self, mode: u32, has_list: bool) -> u32 {
        let class = |shift: u32| u32::from(self.rights((mode >> shift & 7) as u16)) << shift;
        let mut rights = class(6) | class(3) | class(0);
        // Without any bit for the group the kernel does not look at a list, and whom that names would count among the
        // others. This bit alone grants nobody anything: it is the list's mask, and its entries have no such bit.
        if has_list && mode & 0o070 != 0 && rights & 0o070 == 0 {
            rights |= 0o020;
        }
        self.kind() | rights
    }
}

/// The attributes of an object of the pool in one of its roles.
fn shown(object: &Object, role: Role) -> Attributes {
    let mode = role.mode(object.attributes.mode, object.xattr(acl::ACCESS).is_some());
    Attributes { mode, rdev: 0, segment: None, damaged: false, ..object.attributes.clone() }
}

/// What a name stands for.
enum Answer {
    Is(Node, Look),
    Nothing,
    /// Only the file says.
    MustRead,
}

/// An entry of a directory of the tree: what reading a directory needs of it.
struct Row {
    cookie: u64,
    name: Vec<u8>,
    node: Node,
    look: Look,
}

impl Row {
    fn kind(&self) -> FileType {
        if let Node::Tensor { .. } = self.node { FileType::RegularFile } else { FileType::Directory }
    }
}

impl Filesystem {
    /// What a name in the control tree stands for, or the name of the control tree itself in the root. The kernel must
    /// be told of what is found. `None` if a file has to be read for it, and `may_read` is false.
    pub fn control_lookup(&self, dir: Ino, name: &[u8], may_read: bool) -> Result<Option<Option<Stat>>> {
        if !is_control(dir) {
            return self.control_stat(DIRECTORY).map(|stat| Some(Some(stat)));
        }
        if name.len() > NAME_MAX {
            return Err(Fault::new(libc::ENAMETOOLONG));
        }
        if dir == DIRECTORY {
            let fixed = FIXED.iter().find(|(_, fixed, _)| *fixed == name);
            return fixed.map(|(ino, ..)| self.control_stat(*ino)).transpose().map(Some);
        }
        let (node, look) = match self.find(dir, name, may_read)? {
            Answer::Is(node, look) => (node, look),
            Answer::Nothing => return Ok(Some(None)),
            Answer::MustRead => return Ok(None),
        };
        let ino = self.numbers.tell(node, look);
        let stat = self.control_stat(ino);
        if stat.is_err() {
            self.numbers.forget(ino, 1);
        }
        match stat {
            Err(fault) if fault.errno == libc::ENOENT => Ok(Some(None)),
            stat => stat.map(|stat| Some(Some(stat))),
        }
    }

    fn find(&self, parent: Ino, name: &[u8], may_read: bool) -> Result<Answer> {
        match self.node(parent)?.0 {
            Node::Mirror(dir) => {
                let Some((ino, kind)) = ({
                    let view = self.pool.view();
                    view.lookup(dir, name).and_then(|ino| Some((ino, view.object(ino)?.kind())))
                }) else {
                    return Ok(Answer::Nothing);
                };
                Ok(self.in_place_of(ino, kind, parent, name, may_read))
            }
            Node::Directory { file, dir, .. } => {
                let tensors = match self.known_tensors(file) {
                    Some(tensors) => tensors,
                    None if !may_read => return Ok(Answer::MustRead),
                    None => match self.tensors_of(file)? {
                        Some(tensors) => tensors,
                        None => return Ok(Answer::Nothing),
                    },
                };
                match tensors.index.find(dir, name) {
                    None => Ok(Answer::Nothing),
                    Some(Found::Directory(dir)) => {
                        Ok(Answer::Is(Node::Directory { file, dir, parent, place: 0 }, Look::default()))
                    }
                    Some(Found::Tensor(ordinal)) => {
                        let node = node_of(file, &tensors, ordinal);
                        match self.numbers.look(&node) {
                            Some(look) => Ok(Answer::Is(node, look)),
                            None if !may_read => Ok(Answer::MustRead),
                            None => Ok(Answer::Is(node, look_of(&tensors, &self.read_tensor(&tensors, ordinal)?))),
                        }
                    }
                }
            }
            Node::Tensor { .. } => Err(Fault::new(libc::ENOTDIR)),
        }
    }

    /// The directory in the place of an object of the pool, if it has one.
    fn in_place_of(&self, ino: Ino, kind: u32, parent: Ino, name: &[u8], may_read: bool) -> Answer {
        match kind {
            libc::S_IFDIR => Answer::Is(Node::Mirror(ino), Look::default()),
            libc::S_IFREG => match self.has_tensors(ino, may_read) {
                Some(true) => {
                    let place = number((parent, name));
                    Answer::Is(Node::Directory { file: ino, dir: TOP, parent, place }, Look::default())
                }
                Some(false) => Answer::Nothing,
                None => Answer::MustRead,
            },
            _ => Answer::Nothing,
        }
    }

    fn read_tensor(&self, tensors: &Tensors, ordinal: u32) -> Result<Tensor> {
        let source = self.bytes_of(&tensors.version);
        let tensor = tensors.tensor(&source, ordinal);
        source.close();
        tensor.map_err(fault)
    }

    fn node(&self, ino: Ino) -> Result<(Node, Look)> {
        self.numbers.get(ino).ok_or(Fault::new(libc::ESTALE))
    }

    /// What an object of the control tree looks like.
    pub fn control_stat(&self, ino: Ino) -> Result<Stat> {
        if !is_slow(ino) {
            return self.fixed_stat(ino);
        }
        let (node, look) = self.node(ino)?;
        let (of, role) = match node {
            Node::Mirror(dir) => (dir, Role::Directory),
            Node::Directory { file, .. } => (file, Role::Inside),
            Node::Tensor { file, .. } => (file, Role::Tensor),
        };
        let view = self.pool.view();
        let Some(object) = view.object(of) else {
            // A tensor of a file that is gone, which somebody has open.
            return match role {
                Role::Tensor => Ok(self.orphan(ino, look)),
                _ => Err(Fault::new(libc::ENOENT)),
            };
        };
        // The kernel keeps a listing for as long as a directory's time stays the same, and what is listed may change with
        // the bytes of a file.
        let mtime = if role == Role::Tensor { look.mtime } else { clock::now() };
        let attributes = Attributes { mtime, ..shown(object, role) };
        let allocated = look.size.div_ceil(512) * 512;
        Ok(Stat { ino, attributes, links: 1, size: look.size, allocated, volatile: true })
    }

    fn orphan(&self, ino: Ino, look: Look) -> Stat {
        let never = Timestamp::default();
        let attributes = Attributes {
            mode: libc::S_IFREG,
            uid: 0,
            gid: 0,
            rdev: 0,
            atime: never,
            mtime: look.mtime,
            ctime: never,
            btime: never,
            segment: None,
            damaged: false,
        };
        let allocated = look.size.div_ceil(512) * 512;
        Stat { ino, attributes, links: 0, size: look.size, allocated, volatile: true }
    }

    /// The part of the tree that does not change: its owner and times are the root's.
    fn fixed_stat(&self, ino: Ino) -> Result<Stat> {
        let root = self.pool.view().object(ROOT).map(|root| root.attributes.clone()).ok_or(Fault::new(libc::ENOENT))?;
        let (mode, links, size) = match ino {
            DIRECTORY => (libc::S_IFDIR | 0o555, 2, 0),
            README => (libc::S_IFREG | 0o444, 1, README_TEXT.len() as u64),
            PLACEMENT | ACCESSES => return Ok(self.private_stat(ino, root)),
            // Its size is not known before it is opened.
            _ => (libc::S_IFREG | 0o444, 1, 0),
        };
        Ok(Stat { ino, attributes: Attributes { mode, ..root }, links, size, allocated: 0, volatile: false })
    }

    /// What belongs to whoever runs the server: the placement map, which others may read, and the uses of files.
    fn private_stat(&self, ino: Ino, root: Attributes) -> Stat {
        let (mode, size) = match ino {
            PLACEMENT => (0o644, self.pool.view().placement().len() as u64),
            _ => (0o400, 0),
        };
        let (uid, gid) = (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw());
        let attributes = Attributes { mode: libc::S_IFREG | mode, uid, gid, ..root };
        Stat { ino, attributes, links: 1, size, allocated: 0, volatile: true }
    }

    /// Begins to write the placement map.
    fn open_draft(&self, caller: Caller, flags: i32) -> Result<OpenReply> {
        self.check_writable()?;
        if !self.is_trusted(caller) {
            return Err(Fault::new(libc::EACCES));
        }
        let emptied = flags & libc::O_TRUNC != 0;
        let text = if emptied { Vec::new() } else { self.pool.view().placement().as_bytes().to_vec() };
        let handle = self.handles.insert(Opened::Draft(Arc::new(Draft::new(text, emptied))));
        Ok(OpenReply { handle, flags: FopenFlags::FOPEN_DIRECT_IO, backing: None })
    }

    /// What was written becomes the placement map, if its writer was not killed on the way.
    pub fn finish_draft(&self, caller: Caller, draft: &Draft, moment: Moment) -> Result<()> {
        let killed = matches!(moment, Moment::Closed(_)) && is_dying(caller.pid);
        draft.finish(if killed { Moment::Killed } else { moment }, |text| self.replace_placement(text))
    }

    /// Opens a file of the control tree.
    pub fn open_control(&self, caller: Caller, ino: Ino, flags: i32) -> Result<OpenReply> {
        if ino == PLACEMENT && flags & (libc::O_ACCMODE | libc::O_TRUNC) != libc::O_RDONLY {
            return self.open_draft(caller, flags);
        }
        if flags & (libc::O_ACCMODE | libc::O_TRUNC) != libc::O_RDONLY {
            return Err(Fault::new(libc::EACCES));
        }
        let opened = match ino {
            INFO => {
                let paths = caller.uid == 0 || caller.uid == nix::unistd::geteuid().as_raw();
                let mut text = serde_json::to_vec_pretty(&self.info(paths))
                    .map_err(|error| Fault::warn(libc::EIO, error.to_string()))?;
                text.push(b'\n');
                Opened::Control(Arc::from(text))
            }
            README => Opened::Control(Arc::from(README_TEXT)),
            PLACEMENT => Opened::Control(Arc::from(self.pool.view().placement().as_bytes())),
            ACCESSES if !self.is_trusted(caller) => return Err(Fault::new(libc::EACCES)),
            ACCESSES => Opened::Control(Arc::from(self.list_accesses())),
            _ => Opened::Tensor(Arc::new(self.open_tensor(ino)?)),
        };
        // The size that the kernel was told of an object that is made now is not to be gone by.
        let flags = if let Opened::Control(_) = opened { FopenFlags::FOPEN_DIRECT_IO } else { FopenFlags::empty() };
        Ok(OpenReply { handle: self.handles.insert(opened), flags, backing: None })
    }

    fn open_tensor(&self, ino: Ino) -> Result<OpenTensor> {
        let Node::Tensor { file, stamp, ordinal, .. } = self.node(ino)?.0 else { return Err(Fault::new(libc::EISDIR)) };
        // The kernel looks the name up again if what it knows is out of date.
        let stale = || Fault::new(libc::ESTALE);
        let tensors = self.tensors_of(file)?.filter(|tensors| tensors.stamp == stamp).ok_or_else(stale)?;
        let tensor = self.read_tensor(&tensors, ordinal)?;
        let source = self.bytes_of(&tensors.version);
        let opened = OpenTensor::new(file, tensors.format, tensors.version, tensor, source.clone());
        source.close();
        opened.map_err(fault)
    }

    /// `lseek(2)` to data or to a hole in a file of the control tree, which has none.
    pub fn control_seek(&self, ino: Ino, offset: i64, whence: i32) -> Result<i64> {
        let size = self.control_stat(ino)?.size as i64;
        match whence {
            _ if offset < 0 || offset >= size => Err(Fault::new(libc::ENXIO)),
            libc::SEEK_DATA => Ok(offset),
            libc::SEEK_HOLE => Ok(size),
            _ => Err(Fault::new(libc::EINVAL)),
        }
    }

    /// The access list of an object of the tree, which is the only extended attribute there.
    pub fn control_acl(&self, ino: Ino) -> Option<Vec<u8>> {
        let (of, role) = match self.numbers.get(ino).filter(|_| is_slow(ino))?.0 {
            Node::Mirror(dir) => (dir, Role::Directory),
            Node::Directory { file, .. } => (file, Role::Inside),
            Node::Tensor { file, .. } => (file, Role::Tensor),
        };
        let view = self.pool.view();
        let list = Acl::parse(view.object(of)?.xattr(acl::ACCESS)?)?;
        Some(list.reduced(|bits| role.rights(bits)).to_value())
    }

    /// Lists a directory of the tree. `take` says whether it is full, and what it refused comes again.
    pub fn control_readdir(&self, dir: Ino, cookie: u64, mut take: impl FnMut(Listed<'_>) -> bool) -> Result<()> {
        for (at, name, ino) in self.dots(dir)? {
            if cookie < at && take(Listed { cookie: at, name, ino, kind: FileType::Directory }) {
                return Ok(());
            }
        }
        if dir == DIRECTORY {
            for (at, (ino, name, kind)) in (NAMES..).zip(FIXED) {
                if cookie < at && take(Listed { cookie: at, name, ino, kind }) {
                    break;
                }
            }
            return Ok(());
        }
        self.rows(dir, cookie, &mut |row| {
            take(Listed { cookie: row.cookie, name: &row.name, ino: numbers::of(&row.node), kind: row.kind() })
        })
    }

    /// The same with attributes. The kernel is told of every object that it takes.
    pub fn control_readdirplus(
        &self,
        dir: Ino,
        cookie: u64,
        mut take: impl FnMut(ListedPlus<'_>) -> bool,
    ) -> Result<()> {
        for (at, name, ino) in self.dots(dir)? {
            let stat = if is_control(ino) { self.control_stat(ino)? } else { self.stat(ino)? };
            if cookie < at && take(ListedPlus { cookie: at, name, stat: &stat }) {
                return Ok(());
            }
        }
        if dir == DIRECTORY {
            for (at, (ino, name, _)) in (NAMES..).zip(FIXED) {
                if cookie < at && take(ListedPlus { cookie: at, name, stat: &self.control_stat(ino)? }) {
                    break;
                }
            }
            return Ok(());
        }
        // The kernel begins every listing this way, also if nobody wants attributes. How it goes on says more.
        if cookie < DOT_DOT {
            return Ok(());
        }
        self.rows(dir, cookie, &mut |row| {
            let ino = self.numbers.tell(row.node, row.look);
            let full = match self.control_stat(ino) {
                Ok(stat) => take(ListedPlus { cookie: row.cookie, name: &row.name, stat: &stat }),
                // Gone meanwhile.
                Err(_) => {
                    self.numbers.forget(ino, 1);
                    return false;
                }
            };
            if full {
                self.numbers.forget(ino, 1);
            }
            full
        })
    }

    fn dots(&self, dir: Ino) -> Result<[(u64, &'static [u8], Ino); 2]> {
        let parent = match dir {
            DIRECTORY => ROOT,
            TENSORS => DIRECTORY,
            _ => match self.node(dir)?.0 {
                Node::Mirror(dir) => {
                    let view = self.pool.view();
                    let object = view.object(dir).ok_or(Fault::new(libc::ENOENT))?;
                    numbers::of(&Node::Mirror(object.parent().unwrap_or(ROOT)))
                }
                Node::Directory { parent, .. } => parent,
                Node::Tensor { .. } => return Err(Fault::new(libc::ENOTDIR)),
            },
        };
        Ok([(DOT, b".", dir), (DOT_DOT, b"..", parent)])
    }

    /// Gives the entries of a directory behind a cookie until `take` says that it is full.
    fn rows(&self, parent: Ino, cookie: u64, take: &mut dyn FnMut(Row) -> bool) -> Result<()> {
        match self.node(parent)?.0 {
            Node::Mirror(dir) => {
                let mut cookie = cookie.max(DOT_DOT);
                loop {
                    let lot: Vec<(u64, Vec<u8>, Ino, u32)> = {
                        let view = self.pool.view();
                        let known = |(at, name, ino): (u64, &[u8], Ino)| {
                            (at, name.to_vec(), ino, view.object(ino).map_or(0, Object::kind))
                        };
                        view.entries_after(dir, cookie).map(known).take(LOT).collect()
                    };
                    let Some(&(last, ..)) = lot.last() else { return Ok(()) };
                    for (at, name, ino, kind) in lot {
                        if let Answer::Is(node, look) = self.in_place_of(ino, kind, parent, &name, true)
                            && take(Row { cookie: at, name, node, look })
                        {
                            return Ok(());
                        }
                    }
                    cookie = last;
                }
            }
            Node::Directory { file, dir, .. } => {
                let Some(tensors) = self.tensors_of(file)? else { return Ok(()) };
                let source = self.bytes_of(&tensors.version);
                // A directory has at most one entry for each tensor.
                let mut next = cookie.checked_sub(NAMES).map_or(0, |ordinal| ordinal + 1);
                while let Ok(from) = u32::try_from(next) {
                    let lot: Vec<_> = tensors.index.entries(dir, from).take(LOT).collect();
                    let Some(last) = lot.last() else { break };
                    next = u64::from(last.ordinal) + 1;
                    let ordinals: Vec<u32> = lot.iter().map(|entry| entry.ordinal).collect();
                    let (mut entries, mut full) = (lot.iter(), false);
                    let read = tensors.each(&source, &ordinals, &mut |ordinal, tensor| {
                        let Some(entry) = entries.next() else { return ControlFlow::Break(()) };
                        let (name, inside) = entry.name(tensor);
                        let (node, look) = match inside {
                            Some(dir) => (Node::Directory { file, dir, parent, place: 0 }, Look::default()),
                            None => (node_of(file, &tensors, ordinal), look_of(&tensors, tensor)),
                        };
                        full = take(Row { cookie: NAMES + u64::from(ordinal), name, node, look });
                        if full { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                    });
                    source.close();
                    read.map_err(fault)?;
                    if full {
                        break;
                    }
                }
                Ok(())
            }
            Node::Tensor { .. } => Err(Fault::new(libc::ENOTDIR)),
        }
    }
}

fn node_of(file: Ino, tensors: &Tensors, ordinal: u32) -> Node {
    Node::Tensor { file, segment: tensors.version.segment, stamp: tensors.stamp, ordinal }
}

fn look_of(tensors: &Tensors, tensor: &Tensor) -> Look {
    Look { size: npy_len(tensor).unwrap_or(0), mtime: tensors.version.mtime }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_control_tree_is_apart_from_the_pool() {
        assert!(!is_control(ROOT) && FIXED.iter().all(|(ino, ..)| is_control(*ino)));
        assert!(is_slow(TENSORS) && !is_slow(DIRECTORY) && !is_slow(ROOT));
    }

    #[test]
    fn rights_are_those_to_read() {
        assert_eq!(Role::Directory.mode(0o41777, false), libc::S_IFDIR | 0o555);
        assert_eq!(Role::Directory.mode(0o40731, false), libc::S_IFDIR | 0o511);
        assert_eq!(Role::Inside.mode(0o100640, false), libc::S_IFDIR | 0o550);
        assert_eq!(Role::Tensor.mode(0o104751, false), libc::S_IFREG | 0o440);
        assert_eq!(Role::Tensor.mode(0o100311, false), libc::S_IFREG);
        // A list whose mask grants only writing: named users must not become others.
        assert_eq!(Role::Tensor.mode(0o100624, true), libc::S_IFREG | 0o424);
        assert_eq!(Role::Tensor.mode(0o100604, true), libc::S_IFREG | 0o404);
        assert_eq!(Role::Tensor.mode(0o100624, false), libc::S_IFREG | 0o404);
        assert_eq!(Role::Tensor.mode(0o100644, true), libc::S_IFREG | 0o444);
    }
}
