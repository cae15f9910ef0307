//! fuser's requests in this crate's terms, and its results in fuser's. Holds no rule.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Generation, INodeNo, InitFlags, IoctlFlags,
    KernelConfig, LockOwner, OpenFlags, PollEvents, PollFlags, PollNotifier, RenameFlags, ReplyAttr, ReplyBmap,
    ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek,
    ReplyOpen, ReplyPoll, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use tensorfs_layout::{Domain, Ino};

use crate::ask;
use crate::attributes::{LONG, Stat, client_time};
use crate::capacity::BLOCK;
use crate::control;
use crate::counters::{Counter, Counters};
use crate::error::Result;
use crate::file_xattrs::{TIER, is_own};
use crate::filesystem::{Caller, Filesystem};
use crate::io::WriteRequest;
use crate::mode::is_unheard;
use crate::namespace::New;
use crate::open::OpenReply;
use crate::options::PassthroughMode;
use crate::setattr::{Change, When};

/// Inode numbers are never used again, so they need no generations.
const GENERATION: Generation = Generation(0);

/// The most bytes in one WRITE.
const MAX_WRITE: u32 = 1 << 20;

/// What this filesystem asks of every kernel that has it. Not among them: a write-back cache, which loses what a killed
/// server was not sent; remote locks, which hang a waiter if the server does; and what fuser cannot decode.
const WANTED: [InitFlags; 13] = [
    InitFlags::FUSE_ATOMIC_O_TRUNC,
    InitFlags::FUSE_HANDLE_KILLPRIV_V2,
    InitFlags::FUSE_POSIX_ACL,
    InitFlags::FUSE_DONT_MASK,
    InitFlags::FUSE_PARALLEL_DIROPS,
    InitFlags::FUSE_DO_READDIRPLUS,
    InitFlags::FUSE_READDIRPLUS_AUTO,
    InitFlags::FUSE_ASYNC_DIO,
    InitFlags::FUSE_CACHE_SYMLINKS,
    InitFlags::FUSE_NO_OPENDIR_SUPPORT,
    InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
    InitFlags::FUSE_ASYNC_READ,
    InitFlags::FUSE_EXPORT_SUPPORT,
];

/// The filesystem as fuser sees it.
pub(crate) struct Adapter(pub Arc<Filesystem>);

type Which = fn(&Counters) -> &Counter;

fn caller(req: &Request) -> Caller {
    Caller { unique: req.unique().0, uid: req.uid(), gid: req.gid(), pid: req.pid() }
}

fn ino(number: INodeNo) -> Ino {
    Ino(number.0)
}

/// From the arrival of a request until the thread is about to wait for the next one.
struct Serving<'a>(&'a Filesystem);

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        self.0.latency.note();
        if let Some(device) = &*self.0.device.read() {
            self.0.linger.wait(device);
        }
    }
}

/// Does the work of one request. A panic is answered with an I/O error, and the thread lives on.
fn attempt<T>(fs: &Filesystem, name: &str, work: impl FnOnce() -> Result<T>) -> std::result::Result<T, Errno> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(fault)) => {
            log::log!(fault.level, "{name}: {fault}");
            Err(Errno::from_i32(fault.errno))
        }
        Err(_) => {
            fs.counters.panics.add(1);
            log::error!("{name}: the request panicked and got an I/O error");
            Err(Errno::EIO)
        }
    }
}

impl Adapter {
    fn attempt<T>(
        &self,
        name: &'static str,
        counter: Which,
        work: impl FnOnce(&Filesystem) -> Result<T>,
    ) -> std::result::Result<T, Errno> {
        counter(&self.0.counters).add(1);
        attempt(&self.0, name, || work(&self.0))
    }

    /// To be held until the request is answered.
    fn serving(&self) -> Serving<'_> {
        Serving(&self.0)
    }

    /// Does the work on another thread, if it may wait for a disk.
    fn later(&self, slow: bool, counter: Which, work: impl FnOnce(&Arc<Filesystem>) + Send + 'static) {
        counter(&self.0.counters).add(1);
        if slow {
            let fs = self.0.clone();
            self.0.workers.run(move || work(&fs));
        } else {
            work(&self.0);
        }
    }

    /// Does the work of a request on the tree of tensors, which may read any amount of any file.
    fn on_tensors(&self, counter: Which, work: impl FnOnce(&Arc<Filesystem>) + Send + 'static) {
        counter(&self.0.counters).add(1);
        let fs = self.0.clone();
        self.0.readers.run(move || work(&fs));
    }

    /// Looks a name up in the tree of tensors: here if nothing has to be read for it.
    fn lookup_in_tree(&self, parent: Ino, name: Vec<u8>, reply: ReplyEntry) {
        let answer = |reply: ReplyEntry, found: std::result::Result<Option<Stat>, Errno>| match found {
            // What is not there now may be there soon, without the kernel hearing of it.
            Ok(None) => reply.error(Errno::ENOENT),
            Ok(Some(stat)) => answer_entry(reply, Ok(stat)),
            Err(errno) => reply.error(errno),
        };
        match self.attempt("lookup", |c| &c.lookup, |fs| fs.control_lookup(parent, &name, false)) {
            Ok(Some(found)) => answer(reply, Ok(found)),
            Err(errno) => answer(reply, Err(errno)),
            Ok(None) => {
                let fs = self.0.clone();
                self.0.readers.run(move || answer(reply, attempt(&fs, "lookup", || fs.lookup(parent, &name))));
            }
        }
    }

    /// True if a commit waits for a disk rather than for memory.
    fn commits_slowly(&self) -> bool {
        self.0.pool.domain() == Domain::Cached
    }
}

fn answer_entry(reply: ReplyEntry, result: std::result::Result<Stat, Errno>) {
    match result {
        Ok(stat) => {
            reply.entry_with_ttls(&stat.ttl(), &control::name_ttl(stat.ino), &stat.file_attr(), GENERATION);
        }
        Err(errno) => reply.error(errno),
    }
}

fn answer_empty(reply: ReplyEmpty, result: std::result::Result<(), Errno>) {
    match result {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(errno),
    }
}

fn answer_open(reply: ReplyOpen, result: std::result::Result<OpenReply, Errno>) {
    match result {
        Ok(OpenReply { handle, flags, backing: Some(backing) }) => {
            // SAFETY: the number is of this session, and ours until `backing` is dropped; it is not closed here.
            let id = unsafe { reply.wrap_backing(backing.id()) };
            reply.opened_passthrough(FileHandle(handle), flags, &id);
            id.into_raw();
        }
        Ok(OpenReply { handle, flags, backing: None }) => reply.opened(FileHandle(handle), flags),
        Err(errno) => reply.error(errno),
    }
}

fn answer_xattr(reply: ReplyXattr, size: u32, result: std::result::Result<Vec<u8>, Errno>) {
    match result {
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() > size as usize => reply.error(Errno::ERANGE),
        Ok(value) => reply.data(&value),
        Err(errno) => reply.error(errno),
    }
}

impl fuser::Filesystem for Adapter {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        for wanted in WANTED {
            // The kernel is asked for what it has; what it lacks, this filesystem does without.
            let _ = config.add_capabilities(wanted);
        }
        let passthrough = if self.0.options.passthrough == PassthroughMode::Off {
            Err("switched off".to_owned())
        } else if config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).is_err() {
            Err("the kernel has none (Linux 6.9 or newer with CONFIG_FUSE_PASSTHROUGH does)".to_owned())
        } else {
            // Segments lie on a plain filesystem, and this one may still be stacked upon once.
            config.set_max_stack_depth(1).map(|_| ()).map_err(|_| "the stacking depth was refused".to_owned())
        };
        if let Err(reason) = passthrough {
            let _ = self.0.passthrough.set(Err(reason));
        }
        let _ = config.set_max_write(MAX_WRITE);
        let _ = config.set_max_background(64);
        Ok(())
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let _serving = self.serving();
        if control::is_slow(ino(parent)) {
            return self.lookup_in_tree(ino(parent), name.as_bytes().to_vec(), reply);
        }
        match self.attempt("lookup", |c| &c.lookup, |fs| fs.lookup(ino(parent), name.as_bytes())) {
            Ok(Some(stat)) => answer_entry(reply, Ok(stat)),
            Ok(None) => {
                // Node 0 tells the kernel that there is nothing, and that it may remember that.
                let nothing =
                    Stat { ino: Ino(0), attributes: nothing(), links: 0, size: 0, allocated: 0, volatile: false };
                reply.entry(&LONG, &nothing.file_attr(), GENERATION);
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn forget(&self, _req: &Request, number: INodeNo, nlookup: u64) {
        let _serving = self.serving();
        self.0.counters.forget.add(1);
        if control::is_control(ino(number)) {
            self.0.numbers.forget(ino(number), nlookup);
        } else {
            self.0.forgotten(ino(number));
        }
    }

    fn getattr(&self, _req: &Request, number: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        let _serving = self.serving();
        let number = ino(number);
        let result = self.attempt(
            "getattr",
            |c| &c.getattr,
            |fs| {
                if control::is_control(number) {
                    return fs.control_stat(number);
                }
                fs.stat(number)
            },
        );
        match result {
            Ok(stat) => reply.attr(&stat.ttl(), &stat.file_attr()),
            Err(errno) => reply.error(errno),
        }
    }

    fn setattr(
        &self,
        req: &Request,
        number: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let _serving = self.serving();
        let when = |time: TimeOrNow| match time {
            TimeOrNow::Now => When::Now,
            TimeOrNow::SpecificTime(time) => When::At(client_time(time)),
        };
        let change = Change { mode, uid, gid, size, atime: atime.map(when), mtime: mtime.map(when) };
        let (caller, number) = (caller(req), ino(number));
        let slow = self.commits_slowly() && size.is_some_and(|size| self.0.cuts_recorded(number, size));
        self.later(
            slow,
            |c| &c.setattr,
            move |fs| match attempt(fs, "setattr", || fs.setattr(caller, number, change)) {
                Ok(stat) => reply.attr(&stat.ttl(), &stat.file_attr()),
                Err(errno) => reply.error(errno),
            },
        );
    }

    fn readlink(&self, _req: &Request, number: INodeNo, reply: ReplyData) {
        let _serving = self.serving();
        match self.attempt("readlink", |c| &c.readlink, |fs| fs.readlink(ino(number))) {
            Ok(target) => reply.data(&target),
            Err(errno) => reply.error(errno),
        }
    }

    fn mknod(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, rdev: u32, reply: ReplyEntry) {
        let _serving = self.serving();
        let new = New { mode, umask, rdev };
        answer_entry(
            reply,
            self.attempt("mknod", |c| &c.mknod, |fs| fs.make(caller(req), ino(parent), name.as_bytes(), new)),
        );
    }

    fn mkdir(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        let _serving = self.serving();
        let new = New { mode: libc::S_IFDIR | mode & 0o7777, umask, rdev: 0 };
        answer_entry(
            reply,
            self.attempt("mkdir", |c| &c.mkdir, |fs| fs.make(caller(req), ino(parent), name.as_bytes(), new)),
        );
    }

    fn unlink(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let _serving = self.serving();
        answer_empty(
            reply,
            self.attempt("unlink", |c| &c.unlink, |fs| fs.unlink(caller(req), ino(parent), name.as_bytes())),
        );
    }

    fn rmdir(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let _serving = self.serving();
        answer_empty(
            reply,
            self.attempt("rmdir", |c| &c.rmdir, |fs| fs.rmdir(caller(req), ino(parent), name.as_bytes())),
        );
    }

    fn symlink(&self, req: &Request, parent: INodeNo, link_name: &OsStr, target: &Path, reply: ReplyEntry) {
        let _serving = self.serving();
        let target = target.as_os_str().as_bytes();
        answer_entry(
            reply,
            self.attempt(
                "symlink",
                |c| &c.symlink,
                |fs| fs.symlink(caller(req), ino(parent), link_name.as_bytes(), target),
            ),
        );
    }

    fn rename(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let _serving = self.serving();
        let (from, to) = ((ino(parent), name.as_bytes()), (ino(newparent), newname.as_bytes()));
        answer_empty(reply, self.attempt("rename", |c| &c.rename, |fs| fs.rename(caller(req), from, to, flags)));
    }

    fn link(&self, req: &Request, number: INodeNo, newparent: INodeNo, newname: &OsStr, reply: ReplyEntry) {
        let _serving = self.serving();
        answer_entry(
            reply,
            self.attempt(
                "link",
                |c| &c.link,
                |fs| fs.link(caller(req), ino(number), ino(newparent), newname.as_bytes()),
            ),
        );
    }

    fn open(&self, req: &Request, number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let _serving = self.serving();
        let (caller, number) = (caller(req), ino(number));
        if control::opens_slowly(number) {
            return self.on_tensors(
                |c| &c.open,
                move |fs| answer_open(reply, attempt(fs, "open", || fs.open_control(caller, number, flags.0))),
            );
        }
        // Emptying a file that is in use may wait for its other handles, whose release must find a thread.
        let empties = flags.0 & libc::O_TRUNC != 0;
        let writes = empties || flags.0 & libc::O_ACCMODE != libc::O_RDONLY;
        // And a sealed file is thawed first.
        let slow = (empties && self.0.nodes.peek(number).is_some())
            || (writes && self.commits_slowly() && self.0.is_frozen(number, is_unheard(flags.0)));
        self.later(
            slow,
            |c| &c.open,
            move |fs| {
                let result = attempt(fs, "open", || fs.open(caller, number, flags.0));
                answer_open(reply, result);
            },
        );
    }

    fn create(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let _serving = self.serving();
        let new = New { mode: libc::S_IFREG | mode & 0o7777, umask, rdev: 0 };
        let result = self.attempt(
            "create",
            |c| &c.create,
            |fs| fs.create(caller(req), ino(parent), name.as_bytes(), new, flags),
        );
        match result {
            // One time to live counts for the name and the attributes here, and a name's is long: the kernel knows of
            // all writes but those through a mapping, which are told to it.
            Ok((stat, OpenReply { handle, flags, backing: Some(backing) })) => {
                // SAFETY: the number is of this session, and ours until `backing` is dropped; it is not closed here.
                let id = unsafe { reply.wrap_backing(backing.id()) };
                reply.created_passthrough(&LONG, &stat.file_attr(), GENERATION, FileHandle(handle), flags, &id);
                id.into_raw();
            }
            Ok((stat, OpenReply { handle, flags, backing: None })) => {
                reply.created(&LONG, &stat.file_attr(), GENERATION, FileHandle(handle), flags);
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn read(
        &self,
        _req: &Request,
        number: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let _serving = self.serving();
        let read = move |fs: &Filesystem| {
            let mut reply = Some(reply);
            let result = attempt(fs, "read", || {
                fs.read(fh.0, offset, size, flags.0, |bytes| {
                    if let Some(reply) = reply.take() {
                        reply.data(bytes);
                    }
                })
            });
            if let (Err(errno), Some(reply)) = (result, reply) {
                reply.error(errno);
            }
        };
        if control::is_slow(ino(number)) {
            self.on_tensors(|c| &c.read, move |fs| read(fs));
        } else {
            self.0.counters.read.add(1);
            read(&self.0);
        }
    }

    fn write(
        &self,
        req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let _serving = self.serving();
        let caller = caller(req);
        let who = lock_owner.map(|owner| owner.0);
        let request = WriteRequest { who, handle: fh.0, offset, write_flags, flags: flags.0 };
        let written = match self.attempt("write", |c| &c.write, |fs| fs.write(caller, request, data)) {
            Ok(written) => written,
            Err(errno) => return reply.error(errno),
        };
        let Some(handle) = written.durable else { return reply.written(written.count) };
        let finish = move |fs: &Arc<Filesystem>| match attempt(fs, "write", || fs.finish_write(caller, &handle)) {
            Ok(()) => reply.written(written.count),
            Err(errno) => reply.error(errno),
        };
        if self.commits_slowly() {
            let fs = self.0.clone();
            self.0.workers.run(move || finish(&fs));
        } else {
            finish(&self.0);
        }
    }

    fn flush(&self, req: &Request, _ino: INodeNo, fh: FileHandle, lock_owner: LockOwner, reply: ReplyEmpty) {
        let _serving = self.serving();
        let caller = caller(req);
        let slow = self.commits_slowly() && self.0.flush_commits();
        self.later(
            slow,
            |c| &c.flush,
            move |fs| {
                answer_empty(reply, attempt(fs, "flush", || fs.flush(caller, lock_owner.0, fh.0)));
            },
        );
    }

    fn release(
        &self,
        req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        let _serving = self.serving();
        let done = attempt(&self.0, "release", || {
            self.0.release(caller(req), fh.0);
            Ok(())
        });
        // Not before it is done: nobody waits for the answer, so the count is how a program sees that a close is over.
        self.0.counters.release.add(1);
        answer_empty(reply, done);
    }

    fn fsync(&self, req: &Request, number: INodeNo, fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        let _serving = self.serving();
        let caller = caller(req);
        self.later(
            self.commits_slowly(),
            |c| &c.fsync,
            move |fs| {
                answer_empty(reply, attempt(fs, "fsync", || fs.fsync(caller, ino(number), fh.0)));
            },
        );
    }

    fn opendir(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let _serving = self.serving();
        // Listings need no handle; the kernel does not ask again.
        self.0.counters.opendir.add(1);
        reply.error(Errno::ENOSYS);
    }

    fn readdir(&self, _req: &Request, number: INodeNo, _fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let _serving = self.serving();
        let number = ino(number);
        let list = move |fs: &Filesystem| {
            let listed = attempt(fs, "readdir", || {
                fs.readdir(number, offset, |entry| {
                    reply.add(INodeNo(entry.ino.0), entry.cookie, entry.kind, OsStr::from_bytes(entry.name))
                })
            });
            match listed {
                Ok(()) => reply.ok(),
                Err(errno) => reply.error(errno),
            }
        };
        if control::is_slow(number) {
            self.on_tensors(|c| &c.readdir, move |fs| list(fs));
        } else {
            self.0.counters.readdir.add(1);
            list(&self.0);
        }
    }

    fn readdirplus(
        &self,
        _req: &Request,
        number: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let _serving = self.serving();
        let number = ino(number);
        let list = move |fs: &Filesystem| {
            let listed = attempt(fs, "readdirplus", || {
                fs.readdirplus(number, offset, |entry| {
                    let attr = entry.stat.file_attr();
                    let name = OsStr::from_bytes(entry.name);
                    reply.add(attr.ino, entry.cookie, name, &entry.stat.ttl(), &attr, GENERATION)
                })
            });
            match listed {
                Ok(()) => reply.ok(),
                Err(errno) => reply.error(errno),
            }
        };
        if control::is_slow(number) {
            self.on_tensors(|c| &c.readdirplus, move |fs| list(fs));
        } else {
            self.0.counters.readdirplus.add(1);
            list(&self.0);
        }
    }

    fn fsyncdir(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        let _serving = self.serving();
        self.later(
            self.commits_slowly(),
            |c| &c.fsyncdir,
            move |fs| {
                answer_empty(reply, attempt(fs, "fsyncdir", || fs.sync_all()));
            },
        );
    }

    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        let _serving = self.serving();
        match self.attempt("statfs", |c| &c.statfs, |fs| fs.space()) {
            Ok(space) => reply.statfs(
                space.total / BLOCK,
                space.free / BLOCK,
                space.available / BLOCK,
                space.objects,
                space.free_objects,
                BLOCK as u32,
                tensorfs_layout::NAME_MAX as u32,
                BLOCK as u32,
            ),
            Err(errno) => reply.error(errno),
        }
    }

    fn setxattr(
        &self,
        req: &Request,
        number: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        if name.as_bytes() == TIER {
            // Set on a file, it moves the file.
            let (caller, number, value) = (caller(req), ino(number), value.to_vec());
            self.0.counters.setxattr.add(1);
            let fs = self.0.clone();
            return self.0.movers.run(move || {
                answer_empty(reply, attempt(&fs, "setxattr", || fs.setxattr(caller, number, TIER, &value, flags)));
            });
        }
        let _serving = self.serving();
        answer_empty(
            reply,
            self.attempt(
                "setxattr",
                |c| &c.setxattr,
                |fs| fs.setxattr(caller(req), ino(number), name.as_bytes(), value, flags),
            ),
        );
    }

    fn getxattr(&self, _req: &Request, number: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let _serving = self.serving();
        let number = ino(number);
        if is_own(name.as_bytes()) {
            // Counting tensors may read the file.
            let name = name.as_bytes().to_vec();
            return self.on_tensors(
                |c| &c.getxattr,
                move |fs| answer_xattr(reply, size, attempt(fs, "getxattr", || fs.getxattr(number, &name))),
            );
        }
        let result = self.attempt("getxattr", |c| &c.getxattr, |fs| fs.getxattr(number, name.as_bytes()));
        answer_xattr(reply, size, result);
    }

    fn listxattr(&self, req: &Request, number: INodeNo, size: u32, reply: ReplyXattr) {
        let _serving = self.serving();
        let result = self.attempt("listxattr", |c| &c.listxattr, |fs| Ok(fs.listxattr(caller(req), ino(number))));
        answer_xattr(reply, size, result);
    }

    fn removexattr(&self, req: &Request, number: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let _serving = self.serving();
        answer_empty(
            reply,
            self.attempt(
                "removexattr",
                |c| &c.removexattr,
                |fs| fs.removexattr(caller(req), ino(number), name.as_bytes()),
            ),
        );
    }

    fn access(&self, _req: &Request, _ino: INodeNo, _mask: AccessFlags, reply: ReplyEmpty) {
        let _serving = self.serving();
        // The kernel checks permissions itself (default_permissions) and does not ask again.
        self.0.counters.access.add(1);
        reply.error(Errno::ENOSYS);
    }

    fn bmap(&self, _req: &Request, _ino: INodeNo, _blocksize: u32, _idx: u64, reply: ReplyBmap) {
        self.0.counters.other.add(1);
        reply.error(Errno::ENOSYS);
    }

    fn ioctl(
        &self,
        req: &Request,
        number: INodeNo,
        fh: FileHandle,
        _flags: IoctlFlags,
        cmd: u32,
        in_data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        let _serving = self.serving();
        let request = if cmd == ask::COMMAND { ask::decode(in_data) } else { None };
        let Some(request) = request else {
            self.0.counters.ioctl.add(1);
            return reply.error(Errno::ENOTTY);
        };
        let (caller, number) = (caller(req), ino(number));
        // It may have to wait for a file that is being committed.
        self.later(
            true,
            |c| &c.ioctl,
            move |fs| match attempt(fs, "ioctl", || fs.answer(caller, number, fh.0, request)) {
                Ok(answer) => reply.ioctl(answer.len() as i32, &answer),
                Err(errno) => reply.error(errno),
            },
        );
    }

    fn poll(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _ph: PollNotifier,
        _events: PollEvents,
        _flags: PollFlags,
        reply: ReplyPoll,
    ) {
        self.0.counters.other.add(1);
        reply.error(Errno::ENOSYS);
    }

    fn fallocate(
        &self,
        req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let _serving = self.serving();
        let caller = caller(req);
        // Punching and zeroing commit first, and large ranges take their time.
        let slow = self.commits_slowly() && mode & !libc::FALLOC_FL_KEEP_SIZE != 0;
        self.later(
            slow,
            |c| &c.fallocate,
            move |fs| {
                answer_empty(reply, attempt(fs, "fallocate", || fs.fallocate(caller, fh.0, offset, length, mode)));
            },
        );
    }

    fn lseek(&self, _req: &Request, number: INodeNo, fh: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        let _serving = self.serving();
        let number = ino(number);
        let seek = |fs: &Filesystem| {
            if control::is_control(number) {
                return fs.control_seek(number, offset, whence);
            }
            fs.lseek(fh.0, offset, whence)
        };
        match self.attempt("lseek", |c| &c.lseek, seek) {
            Ok(offset) => reply.offset(offset),
            Err(errno) => reply.error(errno),
        }
    }

    fn copy_file_range(
        &self,
        req: &Request,
        _ino_in: INodeNo,
        fh_in: FileHandle,
        offset_in: u64,
        _ino_out: INodeNo,
        fh_out: FileHandle,
        offset_out: u64,
        len: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let _serving = self.serving();
        let caller = caller(req);
        self.later(
            len > u64::from(MAX_WRITE),
            |c| &c.copy_file_range,
            move |fs| {
                let copy = || fs.copy_file_range(caller, (fh_in.0, offset_in), (fh_out.0, offset_out), len);
                match attempt(fs, "copy_file_range", copy) {
                    Ok(copied) => reply.written(copied),
                    Err(errno) => reply.error(errno),
                }
            },
        );
    }
}

/// Attributes of nothing, for the answer that a name does not exist.
fn nothing() -> tensorfs_layout::Attributes {
    let never = tensorfs_layout::Timestamp::default();
    tensorfs_layout::Attributes {
        mode: libc::S_IFREG,
        uid: 0,
        gid: 0,
        rdev: 0,
        atime: never,
        mtime: never,
        ctime: never,
        btime: never,
        segment: None,
        damaged: false,
    }
}
