//! fuser's requests in this crate's terms, and its results in fuser's. Holds no rule.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, FopenFlags, INodeNo, InitFlags, IoctlFlags,
    KernelConfig, LockOwner, OpenFlags, PollEvents, PollFlags, PollNotifier, RenameFlags, ReplyAttr, ReplyBmap,
    ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLock,
    ReplyLseek, ReplyOpen, ReplyPoll, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use tensorfs_layout::Ino;
use tensorfs_layout::log::REMOTE_NAME;
use tensorfs_layout::pool::{BRING, Bring, COMMIT, FOLLOW, Follow, LEAVE, Leave};

use crate::caller::{Asker, Caller};
use crate::error::Result;
use crate::file::{Listed, WriteRequest, Written};
use crate::lane::Lane;
use crate::options::PassthroughMode;
use crate::protocol;
use crate::store::{Had, Wanted};
use crate::tree::{Change, New, When};
use crate::waits;

use super::answer;
use super::awake::{Awake, Serving};
use super::backlog::Backlog;
use super::begun::{Begun, Kind};
use super::convert::{caller, client_time, ino};
use super::filesystem::{Filesystem, Found, Needs};
use super::lanes::Lanes;
use super::listings::Listings;

/// The most bytes in one WRITE.
const MAX_WRITE: u32 = 1 << 20;

/// Requests that nobody waits for, such as reading ahead and releasing, that the kernel sends before one is answered.
/// One that waits for the host, or for bytes that are away, takes none of the places of the others until so many do:
/// more than may wait for such bytes.
const MAX_BACKGROUND: u16 = 2048;

/// What is asked of the host's filesystem and not of a file.
const HOST: Ino = Ino(0);

/// What this filesystem asks of every kernel that has it. Not among them: a write-back cache, which loses what a killed
/// server was not sent; remote locks, which hang a waiter if the server does; asynchronous direct I/O, after which the
/// kernel leaves in its cache what it loaded meanwhile; and what fuser cannot decode.
const WANTED: [InitFlags; 12] = [
    InitFlags::FUSE_ATOMIC_O_TRUNC,
    InitFlags::FUSE_HANDLE_KILLPRIV_V2,
    InitFlags::FUSE_POSIX_ACL,
    InitFlags::FUSE_DONT_MASK,
    InitFlags::FUSE_PARALLEL_DIROPS,
    InitFlags::FUSE_DO_READDIRPLUS,
    InitFlags::FUSE_READDIRPLUS_AUTO,
    InitFlags::FUSE_CACHE_SYMLINKS,
    InitFlags::FUSE_NO_OPENDIR_SUPPORT,
    InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
    InitFlags::FUSE_ASYNC_READ,
    InitFlags::FUSE_EXPORT_SUPPORT,
];

/// The filesystem as fuser sees it.
pub(super) struct Adapter {
    fs: Arc<Filesystem>,
    lanes: Arc<Lanes>,
    awake: Arc<Awake>,
    backlog: Arc<Backlog>,
    listings: Arc<Listings>,
}

/// Who asks, and what about: a file, or a name in a directory.
#[derive(Clone, Copy)]
struct Asked<'a>(Caller, Ino, Option<&'a [u8]>);

impl<'a> Asked<'a> {
    fn of(req: &Request, number: INodeNo) -> Self {
        Self(caller(req), ino(number), None)
    }

    fn named(req: &Request, dir: INodeNo, name: &'a OsStr) -> Self {
        Self(caller(req), ino(dir), Some(name.as_bytes()))
    }

    fn begin(self, fs: &Filesystem, kind: Kind) -> Begun {
        Begun::new(fs, kind, self.0, (self.1, self.2))
    }
}

/// Does the work of one request. A panic is answered with an I/O error, and the thread lives on.
fn attempt<T>(fs: &Filesystem, name: &str, work: impl FnOnce() -> Result<T>) -> std::result::Result<T, Errno> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(fault)) => {
            log::log!(fault.level, "{name}: {fault}");
            waits::note(|notes| notes.errno = fault.errno);
            Err(Errno::from_i32(fault.errno))
        }
        Err(_) => {
            fs.store().counters().panics.add(1);
            log::error!("{name}: the request panicked and got an I/O error");
            waits::note(|notes| notes.errno = libc::EIO);
            Err(Errno::EIO)
        }
    }
}

impl Adapter {
    /// A filesystem whose requests are done on these lanes.
    pub fn new(fs: Arc<Filesystem>, lanes: Arc<Lanes>, awake: Arc<Awake>) -> Self {
        Self { fs, lanes, awake, backlog: Arc::default(), listings: Arc::default() }
    }

    /// To be held until the request is answered, or handed on.
    fn serving(&self) -> Serving<'_> {
        self.awake.serving()
    }

    /// A request has come.
    fn count(&self, asked: Asked<'_>, kind: Kind) -> Begun {
        (kind.1)(self.fs.store().counters()).add(1);
        asked.begin(&self.fs, kind)
    }

    /// One has come that this filesystem does not know.
    fn refuse(&self, asked: Asked<'_>, kind: Kind) -> Errno {
        let mut begun = self.count(asked, kind);
        begun.start();
        waits::note(|notes| notes.errno = libc::ENOSYS);
        begun.answered(&self.fs);
        Errno::ENOSYS
    }

    /// Answers a request that took names away. A file that has no name left, but is held by somebody else just now, is
    /// retired on a worker.
    fn removal(
        &self,
        answer: impl FnOnce(std::result::Result<(), Errno>) + Send + 'static,
    ) -> impl FnOnce(std::result::Result<Option<Ino>, Errno>) + Send + 'static {
        let (lanes, fs) = (self.lanes.clone(), self.fs.clone());
        move |done| {
            let held = done.ok().flatten();
            answer(done.map(drop));
            if let Some(ino) = held {
                lanes.run(Lane::Worker, ino, &fs, move |fs| {
                    let _ = attempt(fs, "retiring a file", || {
                        fs.retire(ino);
                        Ok(())
                    });
                });
            }
        }
    }

    /// Does something for a caller in a lane. Of what reads files each user has a share, whatever files they are.
    fn run_for(&self, caller: Caller, lane: Lane, about: Ino, work: impl FnOnce(&Filesystem) + Send + 'static) {
        run_for(&self.lanes, &self.fs, caller, (lane, about), work);
    }

    /// Does the work of a request here.
    fn here<T>(
        &self,
        asked: Asked<'_>,
        kind: Kind,
        work: impl FnOnce(&Filesystem) -> Result<T>,
    ) -> std::result::Result<T, Errno> {
        let mut begun = self.count(asked, kind);
        begun.start();
        let done = attempt(&self.fs, kind.0, || work(&self.fs));
        begun.answered(&self.fs);
        done
    }

    /// Does the work of a request about a file in a lane, and hands what came of it to `answer`.
    fn lane<T>(
        &self,
        (lane, about): (Lane, Ino),
        asked: Asked<'_>,
        kind: Kind,
        work: impl FnOnce(&Filesystem) -> Result<T> + Send + 'static,
        answer: impl FnOnce(std::result::Result<T, Errno>) + Send + 'static,
    ) {
        let mut begun = self.count(asked, kind);
        self.lanes.run(lane, about, &self.fs, move |fs| {
            begun.start();
            let done = attempt(fs, kind.0, || work(fs));
            // Before the answer, so that whoever gets it finds it counted.
            begun.answered(fs);
            answer(done);
        });
    }
}

fn run_for(
    lanes: &Lanes,
    fs: &Arc<Filesystem>,
    caller: Caller,
    (lane, about): (Lane, Ino),
    work: impl FnOnce(&Filesystem) + Send + 'static,
) {
    let about = if lane == Lane::Reader { Ino(caller.uid.into()) } else { about };
    lanes.run(lane, about, fs, move |fs| Asker::waits(caller, || work(fs)));
}

/// What is done with a request when the bytes that it needs are here, or with the reason why they are not.
type WhenHere = Box<dyn FnOnce(&Filesystem, Result<()>) + Send>;

/// Goes on with a request for a caller once all bytes that it needs are here. It waits for them on no thread.
fn when_here(on: (Arc<Lanes>, Arc<Filesystem>), caller: Caller, (needs, about): (Needs, Ino), go: WhenHere) {
    let (lanes, fs) = &on;
    let Some(away) = fs.away_for(needs) else {
        let lane = if fs.is_of_tree(about) { Lane::Worker } else { Lane::Reader };
        return run_for(lanes, fs, caller, (lane, about), move |fs| go(fs, Ok(())));
    };
    let awaited = fs.store().awaited().clone();
    let resume = move |come: Result<()>| match come {
        Ok(()) => when_here(on, caller, (needs, about), go),
        Err(fault) => run_for(&on.0, &on.1, caller, (Lane::Worker, about), move |fs| go(fs, Err(fault))),
    };
    awaited.wait(caller, away, None, Box::new(resume));
}

/// What is done with a read once its bytes are somewhere, or with the reason why they are not.
type WhenHad = Box<dyn FnOnce(&Filesystem, Result<Had>) + Send>;

/// A read: of what, and for the kernel's cache or not.
#[derive(Clone, Copy)]
struct Read {
    on: (Ino, u64),
    bytes: (u64, u32),
    for_cache: bool,
}

/// Goes on with a read of what is read from a file whose bytes are away, once those that it needs have come.
fn when_had(here: (Arc<Lanes>, Arc<Filesystem>), caller: Caller, read: Read, go: WhenHad) {
    let had = here.1.had(read.on, read.bytes);
    let is_of_tree = here.1.is_of_tree(read.on.0);
    let lane = (if is_of_tree { Lane::Worker } else { Lane::Reader }, read.on.0);
    let Had::Away(ino, bytes) = had else {
        return run_for(&here.0, &here.1, caller, lane, move |fs| go(fs, Ok(had)));
    };
    let awaited = here.1.store().awaited().clone();
    let resume = move |come: Result<()>| match come {
        Ok(()) => when_had(here, caller, read, go),
        Err(fault) => run_for(&here.0, &here.1, caller, lane, move |fs| go(fs, Err(fault))),
    };
    let wanted = Wanted { bytes, for_cache: read.for_cache, by_name: !is_of_tree };
    awaited.wait(caller, ino, Some(wanted), Box::new(resume));
}

/// Answers a write, once it is durable if it must be.
fn finish_write(
    fs: &Arc<Filesystem>,
    lanes: &Lanes,
    (caller, number, mut begun): (Caller, Ino, Begun),
    written: std::result::Result<Written, Errno>,
    reply: ReplyWrite,
) {
    let (count, durable) = match written {
        Ok(Written { count, durable: Some(handle) }) => (count, handle),
        written => {
            answer::written(reply, written.map(|written| written.count));
            return begun.answered(fs);
        }
    };
    begun.hand_on();
    lanes.run(fs.commit_lane(), number, fs, move |fs| {
        begun.start();
        answer::written(reply, attempt(fs, "write", || fs.finish_write(caller, &durable)).map(|()| count));
        begun.answered(fs);
    });
}

/// What stands for the file that a name leads to, where it is not known yet.
fn about(dir: Ino, name: &[u8]) -> Ino {
    let tail = &name[name.len().saturating_sub(8)..];
    Ino(tail.iter().fold(dir.0, |sum, byte| sum.rotate_left(8) ^ u64::from(*byte)))
}

/// What a kernel can do.
pub(super) struct Greeted {
    /// Why it does not move the bytes, if it cannot.
    no_passthrough: Option<String>,
    /// It maps files of which it caches nothing for who reads them.
    maps_uncached: bool,
}

/// What the kernel is answered as it greets, and what it can do.
///
/// Of a tree whose names change together listings are read without what the names stand for, which the kernel would
/// keep.
pub(super) fn greet(config: &mut KernelConfig, mode: PassthroughMode, is_followed: bool) -> io::Result<Greeted> {
    let mut maps_uncached = false;
    let plus = [InitFlags::FUSE_DO_READDIRPLUS, InitFlags::FUSE_READDIRPLUS_AUTO];
    for wanted in WANTED.into_iter().filter(|wanted| !(is_followed && plus.contains(wanted))) {
        // The kernel is asked for what it has; what it lacks, this filesystem does without.
        let refused = config.add_capabilities(wanted).is_err();
        maps_uncached |= !refused && wanted == InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP;
        if refused && wanted == InitFlags::FUSE_POSIX_ACL {
            // With these the kernel checks permissions, also where whoever mounted did not ask for that.
            return Err(io::Error::new(io::ErrorKind::Unsupported, "this kernel knows no POSIX ACLs over FUSE"));
        }
    }
    let refused = if mode == PassthroughMode::Off {
        Some("switched off")
    } else if config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).is_err() {
        Some("the kernel has none (Linux 6.9 or newer with CONFIG_FUSE_PASSTHROUGH does)")
    } else {
        // Segments lie on a plain filesystem, and this one may still be stacked upon once.
        config.set_max_stack_depth(1).err().map(|_| "the stacking depth was refused")
    };
    let _ = config.set_max_write(MAX_WRITE);
    let _ = config.set_max_background(MAX_BACKGROUND);
    Ok(Greeted { no_passthrough: refused.map(str::to_owned), maps_uncached })
}

impl fuser::Filesystem for Adapter {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let store = self.fs.store();
        let greeted = greet(config, store.options().passthrough, store.is_followed())?;
        store.link().set_maps_uncached(greeted.maps_uncached);
        if let Some(reason) = greeted.no_passthrough {
            let _ = store.link().set_passthrough(|| Err(reason));
        }
        Ok(())
    }

    fn lookup(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let _serving = self.serving();
        let asked = Asked::named(req, parent, name);
        let (dir, name) = (ino(parent), name.as_bytes().to_vec());
        let (about, lanes, fs) = (about(dir, &name), self.lanes.clone(), self.fs.clone());
        let caller = caller(req);
        let mut begun = self.count(asked, ("lookup", |c| &c.lookup));
        self.lanes.run(Lane::Records, about, &self.fs, move |here| {
            begun.start();
            match attempt(here, "lookup", || here.lookup(caller, dir, &name, false)) {
                Ok(Found::MustRead) => {
                    begun.hand_on();
                    run_for(&lanes, &fs, caller, (Lane::Reader, about), move |fs| {
                        begun.start();
                        answer::lookup(reply, attempt(fs, "lookup", || fs.lookup(caller, dir, &name, true)));
                        begun.answered(fs);
                    })
                }
                found => {
                    if matches!(found, Ok(Found::Nothing | Found::NothingYet)) {
                        waits::note(|notes| notes.errno = libc::ENOENT);
                    }
                    answer::lookup(reply, found);
                    begun.answered(here);
                }
            }
        });
    }

    fn forget(&self, req: &Request, number: INodeNo, nlookup: u64) {
        let _serving = self.serving();
        let asked = Asked::of(req, number);
        let number = ino(number);
        // What a listing told of and the kernel did not take it forgets in somebody's name, else in nobody's
        // (`fuse_force_forget` of its `fs/fuse/readdir.c`): it may have the inode all the same.
        let of_listing = req.pid() != 0;
        self.lane(
            (Lane::Records, number),
            asked,
            ("forget", |c| &c.forget),
            move |fs| {
                fs.forget(number, nlookup, of_listing);
                Ok(())
            },
            drop,
        );
    }

    fn getattr(&self, req: &Request, number: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        let _serving = self.serving();
        let asked = Asked::of(req, number);
        let number = ino(number);
        self.lane(
            (Lane::Records, number),
            asked,
            ("getattr", |c| &c.getattr),
            move |fs| fs.getattr(number),
            |stat| answer::attr(reply, stat),
        );
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
        let asked = Asked::of(req, number);
        let when = |time: TimeOrNow| match time {
            TimeOrNow::Now => When::Now,
            TimeOrNow::SpecificTime(time) => When::At(client_time(time)),
        };
        let change = Change { mode, uid, gid, size, atime: atime.map(when), mtime: mtime.map(when) };
        let (caller, number) = (caller(req), ino(number));
        let kind: Kind = ("setattr", |c| &c.setattr);
        let needs = Needs::Size(number, size);
        if self.fs.away_for(needs).is_some() {
            let mut begun = self.count(asked, kind);
            let go = move |fs: &Filesystem, come: Result<()>| {
                begun.start();
                let done = attempt(fs, kind.0, || come.and_then(|()| fs.setattr(caller, number, change)));
                begun.answered(fs);
                answer::attr(reply, done);
            };
            return when_here((self.lanes.clone(), self.fs.clone()), caller, (needs, number), Box::new(go));
        }
        self.lane(
            (self.fs.setattr_lane(number, &change), number),
            asked,
            kind,
            move |fs| fs.setattr(caller, number, change),
            |stat| answer::attr(reply, stat),
        );
    }

    fn readlink(&self, req: &Request, number: INodeNo, reply: ReplyData) {
        let _serving = self.serving();
        let asked = Asked::of(req, number);
        match self.here(asked, ("readlink", |c| &c.readlink), |fs| fs.readlink(ino(number))) {
            Ok(target) => reply.data(&target),
            Err(errno) => reply.error(errno),
        }
    }

    fn mknod(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, rdev: u32, reply: ReplyEntry) {
        let _serving = self.serving();
        let asked = Asked::named(req, parent, name);
        let (dir, name, new) = (ino(parent), name.as_bytes(), New { mode, umask, rdev });
        answer::entry(reply, self.here(asked, ("mknod", |c| &c.mknod), |fs| fs.make(caller(req), dir, name, new)));
    }

    fn mkdir(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        let _serving = self.serving();
        let asked = Asked::named(req, parent, name);
        let new = New { mode: libc::S_IFDIR | mode & 0o7777, umask, rdev: 0 };
        let (dir, name) = (ino(parent), name.as_bytes());
        answer::entry(reply, self.here(asked, ("mkdir", |c| &c.mkdir), |fs| fs.make(caller(req), dir, name, new)));
    }

    fn unlink(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let _serving = self.serving();
        let asked = Asked::named(req, parent, name);
        let (caller, dir, name) = (caller(req), ino(parent), name.as_bytes().to_vec());
        self.lane(
            (self.fs.removal_lane(), about(dir, &name)),
            asked,
            ("unlink", |c| &c.unlink),
            move |fs| fs.unlink(caller, dir, &name),
            self.removal(|done| answer::empty(reply, done)),
        );
    }

    fn rmdir(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let _serving = self.serving();
        let asked = Asked::named(req, parent, name);
        let (caller, dir, name) = (caller(req), ino(parent), name.as_bytes().to_vec());
        self.lane(
            (Lane::Records, about(dir, &name)),
            asked,
            ("rmdir", |c| &c.rmdir),
            move |fs| fs.rmdir(caller, dir, &name),
            self.removal(|done| answer::empty(reply, done)),
        );
    }

    fn symlink(&self, req: &Request, parent: INodeNo, link_name: &OsStr, target: &Path, reply: ReplyEntry) {
        let _serving = self.serving();
        let asked = Asked::named(req, parent, link_name);
        let (dir, name, target) = (ino(parent), link_name.as_bytes(), target.as_os_str().as_bytes());
        answer::entry(
            reply,
            self.here(asked, ("symlink", |c| &c.symlink), |fs| fs.symlink(caller(req), dir, name, target)),
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
        let asked = Asked::named(req, parent, name);
        let (from, to) = ((ino(parent), name.as_bytes().to_vec()), (ino(newparent), newname.as_bytes().to_vec()));
        let (caller, flags) = (caller(req), flags.bits());
        self.lane(
            (self.fs.removal_lane(), about(from.0, &from.1)),
            asked,
            ("rename", |c| &c.rename),
            move |fs| fs.rename(caller, (from.0, &from.1), (to.0, &to.1), flags),
            self.removal(|done| answer::empty(reply, done)),
        );
    }

    fn link(&self, req: &Request, number: INodeNo, newparent: INodeNo, newname: &OsStr, reply: ReplyEntry) {
        let _serving = self.serving();
        let asked = Asked::named(req, newparent, newname);
        let (caller, number, dir, name) = (caller(req), ino(number), ino(newparent), newname.as_bytes().to_vec());
        self.lane(
            (Lane::Here, number),
            asked,
            ("link", |c| &c.link),
            move |fs| fs.link(caller, number, dir, &name),
            |made| answer::entry(reply, made),
        );
    }

    fn open(&self, req: &Request, number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let _serving = self.serving();
        let asked = Asked::of(req, number);
        let (caller, number) = (caller(req), ino(number));
        let mut begun = self.count(asked, ("open", |c| &c.open));
        let go = move |fs: &Filesystem, come: Result<()>| {
            begun.start();
            answer::open(reply, attempt(fs, "open", || come.and_then(|()| fs.open(caller, number, flags.0))));
            begun.answered(fs);
        };
        let needs = Needs::Open(number, flags.0);
        if self.fs.away_for(needs).is_some() {
            return when_here((self.lanes.clone(), self.fs.clone()), caller, (needs, number), Box::new(go));
        }
        self.run_for(caller, self.fs.open_lane(number, flags.0), number, move |fs| go(fs, Ok(())));
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
        let asked = Asked::named(req, parent, name);
        let new = New { mode: libc::S_IFREG | mode & 0o7777, umask, rdev: 0 };
        let (caller, dir, name) = (caller(req), ino(parent), name.as_bytes().to_vec());
        self.lane(
            (Lane::Here, about(dir, &name)),
            asked,
            ("create", |c| &c.create),
            move |fs| fs.create(caller, dir, &name, new, flags),
            |created| answer::create(reply, created),
        );
    }

    fn read(
        &self,
        req: &Request,
        number: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        flags: OpenFlags,
        lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let _serving = self.serving();
        let asked = Asked::of(req, number);
        let on = (ino(number), fh.0);
        let mut begun = self.count(asked, ("read", |c| &c.read));
        // `sendfile` and `splice` fill the kernel's cache all the same, and such a read has no owner.
        let stale = lock_owner.is_none() && self.fs.is_uncached(on.0, on.1);
        let wanted = Read { on, bytes: (offset, size), for_cache: lock_owner.is_none() };
        let go = move |fs: &Filesystem, had: Result<Had>| {
            begun.start();
            let had = had.or_else(|fault| match wanted.for_cache {
                true => Err(fault),
                false => fs.had_in_front(on.0, (offset, offset.saturating_add(size.into())), fault),
            });
            let mut reply = Some(reply);
            let take = |bytes: &[u8]| {
                if let Some(reply) = reply.take() {
                    reply.data(bytes);
                }
            };
            let done = attempt(fs, "read", || fs.read_had(had?, on, (offset, size, flags.0), take));
            if let (Err(errno), Some(reply)) = (done, reply) {
                reply.error(errno);
            }
            begun.answered(fs);
        };
        match self.fs.had(on, wanted.bytes) {
            Had::Away(..) => {
                let here = (self.lanes.clone(), self.fs.clone());
                when_had(here, caller(req), wanted, Box::new(go));
            }
            had => self.run_for(caller(req), self.fs.read_lane(on.0), on.0, move |fs| go(fs, Ok(had))),
        }
        if stale {
            self.lanes.run(Lane::Worker, on.0, &self.fs, move |fs| fs.forget_bytes(on.0, offset, size.into()));
        }
    }

    fn write(
        &self,
        req: &Request,
        number: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let _serving = self.serving();
        let asked = Asked::of(req, number);
        let (caller, number) = (caller(req), ino(number));
        let who = lock_owner.map(|owner| owner.0);
        let request = WriteRequest {
            handle: fh.0,
            offset,
            from_cache: write_flags.contains(WriteFlags::FUSE_WRITE_CACHE),
            drops_privileges: write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID),
            flags: flags.0,
        };
        let mut begun = self.count(asked, ("write", |c| &c.write));
        // What is written is copied only where much waits.
        let here = self.fs.write_lane(number, &request) == Lane::Here;
        if here && let Some(_admitted) = self.lanes.admit(number) {
            begun.start();
            let written = attempt(&self.fs, "write", || self.fs.write(caller, number, who, request, data));
            return finish_write(&self.fs, &self.lanes, (caller, number, begun), written, reply);
        }
        // What the kernel writes back has no asker who could be told to try again.
        let whose = (!request.from_cache).then_some(caller);
        let data = match attempt(&self.fs, "write", || self.backlog.copy(whose, data)) {
            Ok(data) => data,
            Err(errno) => {
                begun.start();
                return finish_write(&self.fs, &self.lanes, (caller, number, begun), Err(errno), reply);
            }
        };
        let (lanes, fs) = (self.lanes.clone(), self.fs.clone());
        self.lanes.run(Lane::Worker, number, &self.fs, move |here| {
            begun.start();
            let written = attempt(here, "write", || here.write(caller, number, who, request, data.bytes()));
            drop(data);
            finish_write(&fs, &lanes, (caller, number, begun), written, reply);
        });
    }

    fn flush(&self, req: &Request, number: INodeNo, fh: FileHandle, lock_owner: LockOwner, reply: ReplyEmpty) {
        let _serving = self.serving();
        let asked = Asked::of(req, number);
        let (caller, on) = (caller(req), (ino(number), fh.0));
        self.lane(
            (self.fs.flush_lane(on.0), on.0),
            asked,
            ("flush", |c| &c.flush),
            move |fs| fs.flush(caller, lock_owner.0, on),
            |done| answer::empty(reply, done),
        );
    }

    fn release(
        &self,
        req: &Request,
        number: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        let _serving = self.serving();
        let asked = Asked::of(req, number);
        let (caller, on) = (caller(req), (ino(number), fh.0));
        let mut begun = asked.begin(&self.fs, ("release", |c| &c.release));
        self.lanes.run(self.fs.release_lane(on.0), on.0, &self.fs, move |fs| {
            begun.start();
            let done = attempt(fs, "release", || {
                fs.release(caller, on);
                Ok(())
            });
            // Not before it is done: nobody waits for the answer, so the count is how a program sees that a close is
            // over.
            fs.store().counters().release.add(1);
            answer::empty(reply, done);
            begun.answered(fs);
        });
    }

    fn fsync(&self, req: &Request, number: INodeNo, fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        let _serving = self.serving();
        let asked = Asked::of(req, number);
        let (caller, on) = (caller(req), (ino(number), fh.0));
        self.lane(
            (self.fs.commit_lane(), on.0),
            asked,
            ("fsync", |c| &c.fsync),
            move |fs| fs.fsync(caller, on),
            |done| answer::empty(reply, done),
        );
    }

    fn opendir(&self, req: &Request, number: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let _serving = self.serving();
        let asked = Asked::of(req, number);
        if self.fs.store().is_followed() {
            // Of one that needs none the kernel would keep the listing.
            self.count(asked, ("opendir", |c| &c.opendir)).answered(&self.fs);
            return reply.opened(FileHandle(self.listings.open()), FopenFlags::empty());
        }
        // Listings need no handle; the kernel does not ask again.
        reply.error(self.refuse(asked, ("opendir", |c| &c.opendir)));
    }

    fn releasedir(&self, req: &Request, number: INodeNo, fh: FileHandle, _flags: OpenFlags, reply: ReplyEmpty) {
        let _serving = self.serving();
        self.count(Asked::of(req, number), ("releasedir", |c| &c.other)).answered(&self.fs);
        self.listings.close(fh.0);
        reply.ok();
    }

    fn getlk(
        &self,
        req: &Request,
        number: INodeNo,
        _fh: FileHandle,
        _lock_owner: LockOwner,
        _start: u64,
        _end: u64,
        _kind: i32,
        _pid: u32,
        reply: ReplyLock,
    ) {
        let _serving = self.serving();
        // Locks are the kernel's own, which does not ask.
        reply.error(self.refuse(Asked::of(req, number), ("getlk", |c| &c.getlk)));
    }

    fn setlk(
        &self,
        req: &Request,
        number: INodeNo,
        _fh: FileHandle,
        _lock_owner: LockOwner,
        _start: u64,
        _end: u64,
        _kind: i32,
        _pid: u32,
        _sleep: bool,
        reply: ReplyEmpty,
    ) {
        let _serving = self.serving();
        reply.error(self.refuse(Asked::of(req, number), ("setlk", |c| &c.setlk)));
    }

    fn readdir(&self, req: &Request, number: INodeNo, fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let _serving = self.serving();
        let asked = Asked::of(req, number);
        let dir = ino(number);
        let mut begun = self.count(asked, ("readdir", |c| &c.readdir));
        let listings = self.listings.clone();
        self.run_for(caller(req), self.fs.list_lane(dir), dir, move |fs| {
            begun.start();
            let mut take = |entry: Listed<'_>| answer::add_entry(&mut reply, &entry);
            let listed = attempt(fs, "readdir", || {
                let whole = match listings.get(fh.0, dir).filter(|_| offset > 0) {
                    Some(whole) => Some(whole),
                    None if offset > 0 => None,
                    None => fs.whole(dir)?.map(Arc::new),
                };
                let Some(whole) = whole else { return fs.readdir(dir, offset, take) };
                if offset == 0 {
                    listings.keep(fh.0, dir, &whole);
                }
                whole.list(offset, &mut take);
                Ok(())
            });
            match listed {
                Ok(()) => reply.ok(),
                Err(errno) => reply.error(errno),
            }
            begun.answered(fs);
        });
    }

    fn readdirplus(&self, req: &Request, number: INodeNo, _fh: FileHandle, offset: u64, mut reply: ReplyDirectoryPlus) {
        let _serving = self.serving();
        let asked = Asked::of(req, number);
        let dir = ino(number);
        let mut begun = self.count(asked, ("readdirplus", |c| &c.readdirplus));
        self.run_for(caller(req), self.fs.list_lane(dir), dir, move |fs| {
            begun.start();
            let listed = attempt(fs, "readdirplus", || {
                fs.readdirplus(dir, offset, |entry| answer::add_entry_plus(&mut reply, &entry))
            });
            match listed {
                Ok(()) => reply.ok(),
                Err(errno) => reply.error(errno),
            }
            begun.answered(fs);
        });
    }

    fn fsyncdir(&self, req: &Request, number: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        let _serving = self.serving();
        let asked = Asked::of(req, number);
        self.lane(
            (self.fs.commit_lane(), ino(number)),
            asked,
            ("fsyncdir", |c| &c.fsyncdir),
            Filesystem::sync_all,
            |done| answer::empty(reply, done),
        );
    }

    fn statfs(&self, req: &Request, number: INodeNo, reply: ReplyStatfs) {
        let _serving = self.serving();
        let asked = Asked::of(req, number);
        self.lane((Lane::Here, HOST), asked, ("statfs", |c| &c.statfs), Filesystem::statfs, |space| {
            answer::statfs(reply, space)
        });
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
        let _serving = self.serving();
        let asked = Asked::of(req, number);
        let (caller, number) = (caller(req), ino(number));
        let lane = self.fs.setxattr_lane(name.as_bytes());
        if lane == Lane::Here {
            let set = |fs: &Filesystem| fs.setxattr(caller, number, name.as_bytes(), value, flags);
            return answer::empty(reply, self.here(asked, ("setxattr", |c| &c.setxattr), set));
        }
        let place = match attempt(&self.fs, "setxattr", || self.fs.setxattr_place(caller, lane)) {
            Ok(place) => place,
            Err(errno) => return answer::empty(reply, Err(errno)),
        };
        let (name, value) = (name.as_bytes().to_vec(), value.to_vec());
        let needs = Needs::Tier(number);
        if value != REMOTE_NAME.as_bytes() && self.fs.away_for(needs).is_some() {
            let (mut begun, lanes) = (self.count(asked, ("setxattr", |c| &c.setxattr)), self.lanes.clone());
            let on = self.fs.clone();
            let go = move |_: &Filesystem, come: Result<()>| {
                // Copying it to yet another tier may take long.
                run_for(&lanes, &on, caller, (lane, number), move |fs| {
                    let _place = place;
                    begun.start();
                    let set = || come.and_then(|()| fs.setxattr(caller, number, &name, &value, flags));
                    let done = attempt(fs, "setxattr", set);
                    begun.answered(fs);
                    answer::empty(reply, done);
                });
            };
            return when_here((self.lanes.clone(), self.fs.clone()), caller, (needs, number), Box::new(go));
        }
        self.lane(
            (lane, number),
            asked,
            ("setxattr", |c| &c.setxattr),
            move |fs| {
                let _place = place;
                fs.setxattr(caller, number, &name, &value, flags)
            },
            |done| answer::empty(reply, done),
        );
    }

    fn getxattr(&self, req: &Request, number: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let _serving = self.serving();
        let asked = Asked::of(req, number);
        let (caller, number) = (caller(req), ino(number));
        if !self.fs.may_read_for(name.as_bytes()) {
            let get = |fs: &Filesystem| fs.getxattr(number, name.as_bytes(), false);
            let found = self.here(asked, ("getxattr", |c| &c.getxattr), get);
            return answer::xattr(reply, size, found.map(Option::unwrap_or_default));
        }
        let (name, lanes, fs) = (name.as_bytes().to_vec(), self.lanes.clone(), self.fs.clone());
        let mut begun = self.count(asked, ("getxattr", |c| &c.getxattr));
        self.lanes.run(Lane::Records, number, &self.fs, move |here| {
            begun.start();
            match attempt(here, "getxattr", || here.getxattr(number, &name, false)) {
                Ok(None) => {
                    begun.hand_on();
                    run_for(&lanes, &fs, caller, (Lane::Reader, number), move |fs| {
                        begun.start();
                        let found = attempt(fs, "getxattr", || fs.getxattr(number, &name, true));
                        answer::xattr(reply, size, found.map(Option::unwrap_or_default));
                        begun.answered(fs);
                    })
                }
                found => {
                    answer::xattr(reply, size, found.map(Option::unwrap_or_default));
                    begun.answered(here);
                }
            }
        });
    }

    fn listxattr(&self, req: &Request, number: INodeNo, size: u32, reply: ReplyXattr) {
        let _serving = self.serving();
        let asked = Asked::of(req, number);
        let list = |fs: &Filesystem| Ok(fs.listxattr(caller(req), ino(number)));
        answer::xattr(reply, size, self.here(asked, ("listxattr", |c| &c.listxattr), list));
    }

    fn removexattr(&self, req: &Request, number: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let _serving = self.serving();
        let asked = Asked::of(req, number);
        let remove = |fs: &Filesystem| fs.removexattr(caller(req), ino(number), name.as_bytes());
        answer::empty(reply, self.here(asked, ("removexattr", |c| &c.removexattr), remove));
    }

    fn access(&self, req: &Request, number: INodeNo, _mask: AccessFlags, reply: ReplyEmpty) {
        let _serving = self.serving();
        let asked = Asked::of(req, number);
        // The kernel checks permissions itself (default_permissions) and does not ask again.
        reply.error(self.refuse(asked, ("access", |c| &c.access)));
    }

    fn bmap(&self, req: &Request, number: INodeNo, _blocksize: u32, _idx: u64, reply: ReplyBmap) {
        let asked = Asked::of(req, number);
        reply.error(self.refuse(asked, ("bmap", |c| &c.other)));
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
        let asked = Asked::of(req, number);
        let request = if cmd == protocol::COMMAND { protocol::decode(in_data) } else { None };
        if cmd == COMMIT {
            let lane = (self.fs.answer_lane(), ino(number));
            let commit = |fs: &Filesystem| fs.commit_all().map(|()| Vec::new());
            let answer = |answered| answer::ioctl(reply, answered);
            return self.lane(lane, asked, ("ioctl", |c| &c.ioctl), commit, answer);
        }
        if cmd == BRING
            && let Some(request) = Bring::decode(in_data)
        {
            let (lane, caller) = ((self.fs.answer_lane(), ino(number)), caller(req));
            let answer = |answered| answer::ioctl(reply, answered);
            return self.lane(lane, asked, ("ioctl", |c| &c.ioctl), move |fs| fs.bring(caller, request), answer);
        }
        if cmd == LEAVE
            && let Some(request) = Leave::decode(in_data)
        {
            let (lane, caller) = ((self.fs.answer_lane(), ino(number)), caller(req));
            let answer = |answered| answer::ioctl(reply, answered);
            return self.lane(lane, asked, ("ioctl", |c| &c.ioctl), move |fs| fs.leave(caller, request), answer);
        }
        if cmd == FOLLOW
            && let Some(request) = Follow::decode(in_data)
        {
            let (lane, caller) = ((self.fs.answer_lane(), ino(number)), caller(req));
            let answer = |answered| answer::ioctl(reply, answered);
            return self.lane(lane, asked, ("ioctl", |c| &c.ioctl), move |fs| fs.follow(caller, request), answer);
        }
        let Some(request) = request else {
            let begun = self.count(asked, ("ioctl", |c| &c.ioctl));
            reply.error(Errno::ENOTTY);
            return begun.answered(&self.fs);
        };
        let (caller, on) = (caller(req), (ino(number), fh.0));
        self.lane(
            (self.fs.answer_lane(), on.0),
            asked,
            ("ioctl", |c| &c.ioctl),
            move |fs| fs.answer(caller, on, request),
            |answered| answer::ioctl(reply, answered),
        );
    }

    fn poll(
        &self,
        req: &Request,
        number: INodeNo,
        _fh: FileHandle,
        _ph: PollNotifier,
        _events: PollEvents,
        _flags: PollFlags,
        reply: ReplyPoll,
    ) {
        let asked = Asked::of(req, number);
        reply.error(self.refuse(asked, ("poll", |c| &c.other)));
    }

    fn fallocate(
        &self,
        req: &Request,
        number: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let _serving = self.serving();
        let asked = Asked::of(req, number);
        let (caller, on) = (caller(req), (ino(number), fh.0));
        self.lane(
            (self.fs.fallocate_lane(on, mode), on.0),
            asked,
            ("fallocate", |c| &c.fallocate),
            move |fs| fs.fallocate(caller, on, offset, length, mode),
            |done| answer::empty(reply, done),
        );
    }

    fn lseek(&self, req: &Request, number: INodeNo, fh: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        let _serving = self.serving();
        let asked = Asked::of(req, number);
        let on = (ino(number), fh.0);
        self.lane(
            (Lane::Here, on.0),
            asked,
            ("lseek", |c| &c.lseek),
            move |fs| fs.lseek(on, offset, whence),
            |found| match found {
                Ok(offset) => reply.offset(offset),
                Err(errno) => reply.error(errno),
            },
        );
    }

    fn copy_file_range(
        &self,
        req: &Request,
        ino_in: INodeNo,
        fh_in: FileHandle,
        offset_in: u64,
        ino_out: INodeNo,
        fh_out: FileHandle,
        offset_out: u64,
        len: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let _serving = self.serving();
        let asked = Asked::of(req, ino_out);
        let caller = caller(req);
        let (from, to) = (((ino(ino_in), fh_in.0), offset_in), ((ino(ino_out), fh_out.0), offset_out));
        self.lane(
            (self.fs.copy_lane(to.0, to.1, len), to.0.0),
            asked,
            ("copy_file_range", |c| &c.copy_file_range),
            move |fs| fs.copy_file_range(caller, from, to, len),
            |copied| answer::written(reply, copied),
        );
    }
}
