//! All rooms of a mounted pool, and which of them does what a request asks: the tree, or the control tree. For each
//! operation that may wait there is its lane.

use std::sync::Arc;

use tensorfs_layout::Ino;
use tensorfs_layout::pool::{Bring, Follow, Leave, answering};

use crate::ask::Answers;
use crate::background::{Bringer, Follower, Jobs, Leaver, Mover};
use crate::caller::Caller;
use crate::content::Content;
use crate::content::control::{Control, Who};
use crate::error::{Fault, Result};
use crate::file::{Access, Files, Handle, Listed, ListedPlus, OpenReply, Stat, WriteRequest, Written};
use crate::lane::Lane;
use crate::protocol::Request;
use crate::shares::Share;
use crate::store::reserved::{TIER, is_control_name, is_own_xattr};
use crate::store::{Bytes, Had, Space, Store};
use crate::tree::{Change, New, Tree, Whole};
use crate::waits;

use super::realm::Realm;

/// What a name stands for.
pub(super) enum Found {
    Is(Stat),
    /// This, which may be another one soon.
    IsNow(Stat),
    /// Nothing, which the kernel may keep in mind.
    Nothing,
    /// Nothing now; it may be there soon without the kernel hearing of it.
    NothingYet,
    /// Only the bytes of a file say.
    MustRead,
}

/// What may need all bytes of a file.
#[derive(Clone, Copy, Debug)]
pub(super) enum Needs {
    /// To open it, with these flags.
    Open(Ino, i32),
    /// To give it another size.
    Size(Ino, Option<u64>),
    /// To have it in another tier.
    Tier(Ino),
}

/// A mounted pool.
pub(super) struct Filesystem {
    files: Arc<Files>,
    tree: Tree,
    content: Arc<Content>,
    control: Control,
    mover: Arc<Mover>,
    bringer: Arc<Bringer>,
    leaver: Leaver,
    follower: Follower,
    jobs: Arc<Jobs>,
    answers: Answers,
}

impl Filesystem {
    /// The rooms over a store.
    pub fn new(store: Arc<Store>) -> Self {
        let files = Arc::new(Files::new(store));
        let content = Arc::new(Content::new(files.clone()));
        let mover = Arc::new(Mover::new(files.clone()));
        let bringer = Arc::new(Bringer::new(files.clone()));
        let leaver = Leaver::new(files.clone(), bringer.clone(), mover.wishes().clone());
        let follower = Follower::new(files.clone(), bringer.clone());
        let jobs = Arc::new(Jobs::new(files.clone()));
        let answers = Answers::new(content.clone(), jobs.clone(), mover.clone());
        let (tree, control) = (Tree::new(files.clone()), Control::new(content.clone()));
        Self { files, tree, content, control, mover, bringer, leaver, follower, jobs, answers }
    }

    /// The files in use.
    pub fn files(&self) -> &Arc<Files> {
        &self.files
    }

    /// The store.
    pub fn store(&self) -> &Arc<Store> {
        self.files.store()
    }

    /// True if somebody looks at requests.
    pub fn is_traced(&self) -> bool {
        waits::noted()
    }

    /// The tensors of files.
    pub fn content(&self) -> &Content {
        &self.content
    }

    /// Who moves files to other tiers.
    pub fn mover(&self) -> &Arc<Mover> {
        &self.mover
    }

    /// Who brings files whose bytes are away.
    pub fn bringer(&self) -> &Bringer {
        &self.bringer
    }

    /// Answers the process that fetches them.
    pub fn bring(&self, caller: Caller, request: Bring) -> Result<Vec<u8>> {
        self.bringer.answer(caller, request).map(|reply| reply.encode())
    }

    /// Answers the process that has looked which files may leave.
    pub fn leave(&self, caller: Caller, request: Leave) -> Result<Vec<u8>> {
        self.leaver.answer(caller, request).map(|reply| reply.encode())
    }

    /// Answers the process that has looked whether there is a newer tree.
    pub fn follow(&self, caller: Caller, request: Follow) -> Result<Vec<u8>> {
        self.follower.answer(caller, request).map(|reply| reply.encode())
    }

    /// `Err` for who would change a tree that is its remote's.
    fn check_own(&self) -> Result<()> {
        if self.store().is_followed() { Err(Fault::new(libc::EROFS)) } else { Ok(()) }
    }

    /// True of what users have made, and not of the control tree.
    pub fn is_of_tree(&self, ino: Ino) -> bool {
        matches!(Realm::of(ino), Realm::Tree)
    }

    /// Where bytes of a file are that a request reads.
    pub fn had(&self, (ino, handle): (Ino, u64), (offset, size): (u64, u32)) -> Had {
        match Realm::of(ino) {
            Realm::Tree => self.store().awaited().had(ino, (offset, offset.saturating_add(size.into()))),
            Realm::Control => {
                let lacked = self.control.lacks(handle, offset, size);
                lacked.map_or(Had::Own, |(file, bytes)| Had::Away(file, bytes))
            }
        }
    }

    /// Where they are if they do not all come, and a program, which is not the kernel's cache, can have fewer.
    pub fn had_in_front(&self, ino: Ino, bytes: Bytes, fault: Fault) -> Result<Had> {
        let can_be = Realm::of(ino) == Realm::Tree && fault.errno == libc::EIO;
        let had = can_be.then(|| self.store().awaited().had_in_front(ino, bytes));
        had.flatten().ok_or(fault)
    }

    /// Reads where they are, and hands what was read to `take`. `flags` are the handle's, as they are now.
    pub fn read_had<T>(
        &self,
        had: Had,
        (ino, handle): (Ino, u64),
        (offset, size, flags): (u64, u32, i32),
        take: impl FnOnce(&[u8]) -> T,
    ) -> Result<T> {
        match had {
            Had::Own => self.read((ino, handle), offset, size, flags, take),
            Had::Come(pieces) => self.files.read_pieces(handle, pieces, (offset, size), take),
            Had::Nothing => Ok(take(&[])),
            Had::Away(..) => Err(Fault::new(libc::EIO)),
        }
    }

    /// A file whose bytes a request needs, all of them, and that is away.
    pub fn away_for(&self, needs: Needs) -> Option<Ino> {
        let ino = match needs {
            Needs::Open(ino, flags) => match Realm::of(ino) {
                Realm::Control => return self.control.away_behind(ino),
                Realm::Tree if flags & libc::O_TRUNC != 0 => return None,
                // Who only reads waits for what he reads.
                Realm::Tree if !Access::of(flags).write => return None,
                Realm::Tree => ino,
            },
            Needs::Size(_, None | Some(0)) => return None,
            Needs::Size(ino, Some(_)) | Needs::Tier(ino) => ino,
        };
        Some(ino).filter(|ino| self.store().awaited().is_away(*ino))
    }

    /// True if a request was done already, by a server that died before it had answered.
    fn was_done(&self, caller: Caller) -> bool {
        let done = caller.again && self.store().pool().recovery().requests.contains(&caller.unique);
        if done {
            answering(caller.unique);
        }
        done
    }

    /// What a name stands for that was made for a request before the server died that had it, if it was.
    fn made_before(&self, caller: Caller, dir: Ino, name: &[u8]) -> Result<Option<Stat>> {
        if self.was_done(caller) { self.tree.lookup(dir, name) } else { Ok(None) }
    }

    /// True if a name was removed for a request before the server died that had it.
    fn removed_before(&self, caller: Caller, dir: Ino, name: &[u8]) -> bool {
        self.was_done(caller) && self.store().view().lookup(dir, name).is_none()
    }

    /// The kernel is gone: whatever is still open counts as closed. False if what became of a file could not be
    /// recorded.
    pub fn close_all(&self) -> bool {
        self.control.close_all();
        self.files.close_all()
    }

    /// What programs have asked for that takes long.
    pub fn jobs(&self) -> &Jobs {
        &self.jobs
    }

    /// What a name in a directory stands for. Without `may_read` no byte of a file is read for it.
    pub fn lookup(&self, caller: Caller, dir: Ino, name: &[u8], may_read: bool) -> Result<Found> {
        if is_control_name(dir, name) {
            return self.control.root().map(Found::Is);
        }
        match Realm::of(dir) {
            Realm::Tree if self.store().is_followed() => {
                Ok(self.tree.lookup(dir, name)?.map_or(Found::NothingYet, Found::IsNow))
            }
            Realm::Tree => Ok(self.tree.lookup(dir, name)?.map_or(Found::Nothing, Found::Is)),
            Realm::Control => Ok(match self.control.lookup(caller, dir, name, may_read)? {
                Some(Some(stat)) => Found::Is(stat),
                Some(None) if self.control.lookup_lane(dir) == Lane::Here => Found::Nothing,
                Some(None) => Found::NothingYet,
                None => Found::MustRead,
            }),
        }
    }

    /// The kernel has forgotten so many of the times that it was told of an inode, or a listing's telling alone.
    pub fn forget(&self, ino: Ino, lookups: u64, of_listing: bool) {
        match Realm::of(ino) {
            Realm::Tree if of_listing => {}
            Realm::Tree => self.files.forgotten(ino),
            Realm::Control => self.control.forget(ino, lookups),
        }
    }

    /// What an inode looks like.
    pub fn getattr(&self, ino: Ino) -> Result<Stat> {
        match Realm::of(ino) {
            Realm::Tree => {
                let stat = self.files.stat(ino)?;
                Ok(Stat { volatile: stat.volatile || self.store().is_followed(), ..stat })
            }
            Realm::Control => self.control.stat(ino),
        }
    }

    /// Where [`Filesystem::setattr`] is done.
    pub fn setattr_lane(&self, ino: Ino, change: &Change) -> Lane {
        match Realm::of(ino) {
            Realm::Tree => self.tree.setattr_lane(ino, change),
            Realm::Control => Lane::Here,
        }
    }

    /// Changes attributes.
    pub fn setattr(&self, caller: Caller, ino: Ino, change: Change) -> Result<Stat> {
        self.check_own()?;
        match Realm::of(ino) {
            Realm::Tree => self.tree.setattr(caller, ino, change),
            Realm::Control => Err(Fault::new(libc::EPERM)),
        }
    }

    /// Where a symbolic link points.
    pub fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        self.tree.readlink(ino)
    }

    /// Makes a directory, a special file, or a regular file that is not opened yet.
    pub fn make(&self, caller: Caller, dir: Ino, name: &[u8], new: New) -> Result<Stat> {
        self.check_own()?;
        Realm::check_new_name(dir, name)?;
        match self.made_before(caller, dir, name)? {
            Some(made) => Ok(made),
            None => self.tree.make(caller, dir, name, new),
        }
    }

    /// Makes a symbolic link.
    pub fn symlink(&self, caller: Caller, dir: Ino, name: &[u8], target: &[u8]) -> Result<Stat> {
        self.check_own()?;
        Realm::check_new_name(dir, name)?;
        match self.made_before(caller, dir, name)? {
            Some(made) => Ok(made),
            None => self.tree.symlink(caller, dir, name, target),
        }
    }

    /// Gives an object another name.
    pub fn link(&self, caller: Caller, ino: Ino, dir: Ino, name: &[u8]) -> Result<Stat> {
        self.check_own()?;
        if Realm::of(ino) == Realm::Control {
            return Err(Fault::new(libc::EPERM));
        }
        Realm::check_new_name(dir, name)?;
        match self.made_before(caller, dir, name)?.filter(|made| made.ino == ino) {
            Some(made) => Ok(made),
            None => self.tree.link(caller, ino, dir, name),
        }
    }

    /// Removes a name of anything but a directory. Returns what is still to be retired.
    pub fn unlink(&self, caller: Caller, dir: Ino, name: &[u8]) -> Result<Option<Ino>> {
        self.check_own()?;
        Realm::check_old_name(dir, name)?;
        if self.removed_before(caller, dir, name) { Ok(None) } else { self.tree.unlink(caller, dir, name) }
    }

    /// Where [`Filesystem::unlink`] and [`Filesystem::rename`] are done.
    pub fn removal_lane(&self) -> Lane {
        self.tree.removal_lane()
    }

    /// Removes an empty directory. Returns what is still to be retired.
    pub fn rmdir(&self, caller: Caller, dir: Ino, name: &[u8]) -> Result<Option<Ino>> {
        self.check_own()?;
        Realm::check_old_name(dir, name)?;
        if self.removed_before(caller, dir, name) { Ok(None) } else { self.tree.rmdir(caller, dir, name) }
    }

    /// Something that has lost a name could not be retired at once: somebody else held it.
    pub fn retire(&self, ino: Ino) {
        self.files.retire(ino);
    }

    /// Moves a name, or exchanges two. Returns what is still to be retired.
    pub fn rename(&self, caller: Caller, from: (Ino, &[u8]), to: (Ino, &[u8]), flags: u32) -> Result<Option<Ino>> {
        self.check_own()?;
        Realm::check_old_name(from.0, from.1)?;
        Realm::check_old_name(to.0, to.1)?;
        // Of an exchange the names tell nothing; it is one transaction of its own.
        let exchanged = flags & libc::RENAME_EXCHANGE != 0 && self.was_done(caller);
        if exchanged || self.removed_before(caller, from.0, from.1) {
            return Ok(None);
        }
        self.tree.rename(caller, from, to, flags)
    }

    /// Where [`Filesystem::open`] is done.
    pub fn open_lane(&self, ino: Ino, flags: i32) -> Lane {
        match Realm::of(ino) {
            Realm::Tree => self.files.open_lane(ino, flags),
            Realm::Control => self.control.open_lane(ino),
        }
    }

    /// Opens a file.
    pub fn open(&self, caller: Caller, ino: Ino, flags: i32) -> Result<OpenReply> {
        match Realm::of(ino) {
            Realm::Tree => match self.files.opened_before(caller) {
                Some(opened) => Ok(opened),
                None => {
                    if Access::of(flags).write || flags & libc::O_TRUNC != 0 {
                        self.check_own()?;
                    }
                    let opened = self.files.open(caller, ino, flags)?;
                    // Who leaves no trace of having read it only looks.
                    if flags & libc::O_NOATIME == 0 && self.store().awaited().is_away(ino) {
                        self.bringer.wish(ino);
                    }
                    Ok(opened)
                }
            },
            Realm::Control => self.control.open(caller, ino, flags),
        }
    }

    /// Creates and opens a file.
    pub fn create(&self, caller: Caller, dir: Ino, name: &[u8], new: New, flags: i32) -> Result<(Stat, OpenReply)> {
        self.check_own()?;
        Realm::check_new_name(dir, name)?;
        if let Some(made) = self.made_before(caller, dir, name)? {
            let flags = flags & !(libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC);
            let opened = match self.files.opened_before(caller) {
                Some(opened) => opened,
                None => self.files.open_made(caller, made.ino, flags)?,
            };
            return Ok((made, opened));
        }
        self.tree.create(caller, dir, name, new, flags)
    }

    /// Where [`Filesystem::read`] is done.
    pub fn read_lane(&self, ino: Ino) -> Lane {
        match Realm::of(ino) {
            Realm::Tree => Lane::Here,
            Realm::Control => self.control.read_lane(ino),
        }
    }

    /// Reads, and hands what was read to `take`. `flags` are the handle's, as they are now.
    pub fn read<T>(
        &self,
        (ino, handle): (Ino, u64),
        offset: u64,
        size: u32,
        flags: i32,
        take: impl FnOnce(&[u8]) -> T,
    ) -> Result<T> {
        match Realm::of(ino) {
            Realm::Tree => self.files.read(handle, offset, size, flags, take),
            Realm::Control => self.control.read(handle, offset, size, take),
        }
    }

    /// True if the kernel must not keep what it reads through a handle: it moves other bytes of the file itself.
    pub fn is_uncached(&self, ino: Ino, handle: u64) -> bool {
        Realm::of(ino) == Realm::Tree && self.files.handle(handle).is_ok_and(|handle| handle.is_uncached())
    }

    /// Has the kernel drop what it has cached of a file's bytes.
    pub fn forget_bytes(&self, ino: Ino, offset: u64, len: u64) {
        self.files.store().link().forget_bytes(ino, offset, len);
    }

    /// Where [`Filesystem::write`] is done.
    pub fn write_lane(&self, ino: Ino, request: &WriteRequest) -> Lane {
        match Realm::of(ino) {
            Realm::Tree => self.files.write_lane(request),
            Realm::Control => Lane::Here,
        }
    }

    /// Writes for `who`, if the kernel says. What must be durable before it is answered, [`Filesystem::finish_write`]
    /// makes so.
    pub fn write(
        &self,
        caller: Caller,
        ino: Ino,
        who: Option<Who>,
        request: WriteRequest,
        data: &[u8],
    ) -> Result<Written> {
        match Realm::of(ino) {
            Realm::Tree => self.files.write(caller, request, data),
            Realm::Control => {
                let append = request.flags & libc::O_APPEND != 0;
                let count = self.control.write(request.handle, who, request.offset, data, append)?;
                Ok(Written { count, durable: None })
            }
        }
    }

    /// Makes a write durable. Done on [`Filesystem::commit_lane`].
    pub fn finish_write(&self, caller: Caller, handle: &Handle) -> Result<()> {
        self.files.finish_write(caller, handle)
    }

    /// Where what waits for a commit is done.
    pub fn commit_lane(&self) -> Lane {
        self.files.commit_lane()
    }

    /// Where [`Filesystem::flush`] is done.
    pub fn flush_lane(&self, ino: Ino) -> Lane {
        match Realm::of(ino) {
            Realm::Tree => self.files.flush_lane(),
            Realm::Control => self.control.close_lane(ino),
        }
    }

    /// A handle is closed by one of the processes that share it.
    pub fn flush(&self, caller: Caller, who: Who, (ino, handle): (Ino, u64)) -> Result<()> {
        match Realm::of(ino) {
            Realm::Tree => self.files.flush(caller, handle),
            Realm::Control => self.control.flush(caller, who, handle),
        }
    }

    /// Where [`Filesystem::release`] is done.
    pub fn release_lane(&self, ino: Ino) -> Lane {
        match Realm::of(ino) {
            Realm::Tree => Lane::Here,
            Realm::Control => self.control.close_lane(ino),
        }
    }

    /// The last use of a handle is over.
    pub fn release(&self, caller: Caller, (ino, handle): (Ino, u64)) {
        match Realm::of(ino) {
            Realm::Tree => self.files.release(caller, handle),
            Realm::Control => self.control.release(handle),
        }
    }

    /// Makes a file durable. Done on [`Filesystem::commit_lane`].
    pub fn fsync(&self, caller: Caller, (ino, handle): (Ino, u64)) -> Result<()> {
        match Realm::of(ino) {
            Realm::Tree => self.files.fsync(caller, handle),
            Realm::Control => self.control.fsync(handle),
        }
    }

    /// Makes everything durable. Done on [`Filesystem::commit_lane`].
    pub fn sync_all(&self) -> Result<()> {
        self.files.sync_all()
    }

    /// Where [`Filesystem::readdir`] and [`Filesystem::readdirplus`] are done.
    pub fn list_lane(&self, dir: Ino) -> Lane {
        match Realm::of(dir) {
            Realm::Tree => Lane::Here,
            Realm::Control => self.control.list_lane(dir),
        }
    }

    /// All that is in a directory whose names change together, if that is not too much.
    pub fn whole(&self, dir: Ino) -> Result<Option<Whole>> {
        if self.store().is_followed() && self.is_of_tree(dir) { self.tree.whole(dir) } else { Ok(None) }
    }

    /// Lists a directory from behind a cookie. `take` says whether it is full, and what it refused comes again.
    pub fn readdir(&self, dir: Ino, cookie: u64, take: impl FnMut(Listed<'_>) -> bool) -> Result<()> {
        match Realm::of(dir) {
            Realm::Tree => self.tree.readdir(dir, cookie, take),
            Realm::Control => self.control.readdir(dir, cookie, take),
        }
    }

    /// Lists a directory with the attributes of what is in it.
    pub fn readdirplus(&self, dir: Ino, cookie: u64, take: impl FnMut(ListedPlus<'_>) -> bool) -> Result<()> {
        match Realm::of(dir) {
            Realm::Tree => self.tree.readdirplus(dir, cookie, take),
            Realm::Control => self.control.readdirplus(dir, cookie, take),
        }
    }

    /// See [`Control::let_go_of_forgotten`].
    pub fn let_go_of_forgotten(&self) -> usize {
        self.control.let_go_of_forgotten()
    }

    /// The space of the pool, in bytes and objects.
    pub fn statfs(&self) -> Result<Space> {
        self.files.space()
    }

    /// Where [`Filesystem::setxattr`] is done: the tier, set on a file, moves it.
    pub fn setxattr_lane(&self, name: &[u8]) -> Lane {
        if name == TIER { Lane::Mover } else { Lane::Here }
    }

    /// What whoever waits in that lane has to have.
    pub fn setxattr_place(&self, caller: Caller, lane: Lane) -> Result<Option<Share>> {
        if lane == Lane::Mover { self.mover.place(caller).map(Some) } else { Ok(None) }
    }

    /// Sets an attribute.
    pub fn setxattr(&self, caller: Caller, ino: Ino, name: &[u8], value: &[u8], flags: i32) -> Result<()> {
        self.check_own()?;
        match Realm::of(ino) {
            Realm::Control => Err(Fault::new(libc::EPERM)),
            Realm::Tree if self.was_done(caller) => Ok(()),
            Realm::Tree if name == TIER && self.tree.is_regular(ino) => {
                self.mover.set_tier_of_file(caller, ino, value, flags)
            }
            Realm::Tree => self.tree.setxattr(caller, ino, name, value, flags),
        }
    }

    /// True if [`Filesystem::getxattr`] may have to read the file.
    pub fn may_read_for(&self, name: &[u8]) -> bool {
        is_own_xattr(name)
    }

    /// The value of an attribute. None if the file has to be read for it, and `may_read` is false.
    pub fn getxattr(&self, ino: Ino, name: &[u8], may_read: bool) -> Result<Option<Vec<u8>>> {
        match Realm::of(ino) {
            Realm::Control => self.control.getxattr(ino, name).map(Some),
            Realm::Tree if is_own_xattr(name) => self.content.own_xattr(ino, name, may_read),
            Realm::Tree => self.tree.getxattr(ino, name).map(Some),
        }
    }

    /// The names of all attributes that the caller may see, each with a NUL behind it.
    pub fn listxattr(&self, caller: Caller, ino: Ino) -> Vec<u8> {
        match Realm::of(ino) {
            Realm::Control => self.control.listxattr(ino),
            Realm::Tree => self.tree.listxattr(caller, ino),
        }
    }

    /// Removes an attribute.
    pub fn removexattr(&self, caller: Caller, ino: Ino, name: &[u8]) -> Result<()> {
        self.check_own()?;
        match Realm::of(ino) {
            Realm::Control => Err(Fault::new(libc::EPERM)),
            Realm::Tree if self.was_done(caller) => Ok(()),
            Realm::Tree => self.tree.removexattr(caller, ino, name),
        }
    }

    /// Where [`Filesystem::fallocate`] is done.
    pub fn fallocate_lane(&self, (ino, handle): (Ino, u64), mode: i32) -> Lane {
        match Realm::of(ino) {
            Realm::Tree => self.files.fallocate_lane(handle, mode),
            Realm::Control => Lane::Here,
        }
    }

    /// `fallocate(2)`.
    pub fn fallocate(&self, caller: Caller, (ino, handle): (Ino, u64), offset: u64, len: u64, mode: i32) -> Result<()> {
        match Realm::of(ino) {
            Realm::Tree => self.files.fallocate(caller, handle, offset, len, mode),
            Realm::Control => Err(Fault::new(libc::EBADF)),
        }
    }

    /// `lseek(2)` to data or to a hole.
    pub fn lseek(&self, (ino, handle): (Ino, u64), offset: i64, whence: i32) -> Result<i64> {
        match Realm::of(ino) {
            Realm::Tree => self.files.lseek(handle, offset, whence),
            Realm::Control => self.control.seek(ino, offset, whence),
        }
    }

    /// Where [`Filesystem::copy_file_range`] is done.
    pub fn copy_lane(&self, (to, handle): (Ino, u64), at: u64, len: u64) -> Lane {
        match Realm::of(to) {
            Realm::Tree => self.files.copy_lane((handle, at), len),
            Realm::Control => Lane::Here,
        }
    }

    /// `copy_file_range(2)`, from an offset of an open file to one of another.
    pub fn copy_file_range(
        &self,
        caller: Caller,
        (from, from_at): ((Ino, u64), u64),
        (to, to_at): ((Ino, u64), u64),
        len: u64,
    ) -> Result<u32> {
        match (Realm::of(from.0), Realm::of(to.0)) {
            (Realm::Tree, Realm::Tree) => self.files.copy_file_range(caller, (from.1, from_at), (to.1, to_at), len),
            // The kernel then reads and writes.
            (Realm::Control, _) => Err(Fault::new(libc::EXDEV)),
            (Realm::Tree, Realm::Control) => Err(Fault::new(libc::EBADF)),
        }
    }

    /// Where [`Filesystem::answer`] is done: it may have to wait for a file that is being committed.
    pub fn answer_lane(&self) -> Lane {
        Lane::Worker
    }

    /// Makes everything durable for who is no program that has written anything, but makes a second copy.
    pub fn commit_all(&self) -> Result<()> {
        self.store().keep_touched();
        self.files.commit_all()
    }

    /// Answers what a program asks the server.
    pub fn answer(&self, caller: Caller, on: (Ino, u64), request: Request) -> Result<Vec<u8>> {
        self.answers.answer(caller, on.0, on.1, request)
    }
}
