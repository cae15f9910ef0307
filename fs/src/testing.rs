//! For tests: how readers are locked in, and, where crashes are tried, the filesystem without a kernel. What a mount
//! would ask for comes as calls, one at a time, and is done by the same code in the same order; bytes go to the
//! segments as the kernel moves them in passthrough.

use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tensorfs_layout::log::{Origin, Seal};
use tensorfs_layout::pool::Pool;
use tensorfs_layout::segment::SealedRun;
use tensorfs_layout::{Ino, SegmentId};

use crate::background::{commit_if_changed, seal_file};
use crate::caller::Caller;
use crate::content::Content;
use crate::content::control::{Control, right_number};
pub use crate::content::values::arrays_of;
use crate::error::Fault;
use crate::file::{Files, Grown};
use crate::handover::Handover;
pub use crate::handover::LeftBehind;
use crate::options::{Durability, Options};
use crate::reader::lock_in as lock_in_as_a_reader;
pub use crate::reader::{Heard, Question, heard, said_of};
use crate::store::{Backing, Kernel, Store};
use crate::tree::{Change, New, Tree};

/// Locks this process in as a reader is, for good; see `reader/jail.rs`. Returns what of it was not to be had.
pub fn lock_in() -> Vec<String> {
    lock_in_as_a_reader()
}

/// Root asks.
const CALLER: Caller = Caller { unique: 0, again: false, uid: 0, gid: 0, pid: 1 };

/// The error number that the client gets.
pub type Errno = i32;

/// No kernel is there.
struct NoKernel;

impl Kernel for NoKernel {
    fn register(&self, _: BorrowedFd<'_>) -> io::Result<Backing> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn inherited(&self, id: u32) -> Backing {
        Backing::nobodys(id)
    }

    fn forget_attributes(&self, _: Ino) {}

    fn forget_name(&self, _: Ino, _: &[u8]) {}

    fn knows(&self, _: Ino) -> bool {
        true
    }

    fn forget_bytes(&self, _: Ino, _: u64, _: u64) {}
}

/// An open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle(u64);

/// The filesystem over a pool, driven directly.
pub struct Direct {
    files: Arc<Files>,
    tree: Tree,
    /// Where there is a server before.
    control: Option<Control>,
}

impl std::fmt::Debug for Direct {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Direct").finish_non_exhaustive()
    }
}

fn errno<T>(result: Result<T, Fault>) -> Result<T, Errno> {
    result.map_err(|fault| fault.errno)
}

impl Direct {
    /// Serves a pool.
    pub fn new(pool: Arc<Pool>, durability: Durability) -> Self {
        let files = Arc::new(Files::new(Arc::new(Store::new(pool, Options::default(), durability, 1024))));
        // Its callers write the files that it looks into.
        files.readers().stay_here();
        Self { tree: Tree::new(files.clone()), files, control: None }
    }

    /// Serves a pool in the place of a server that has died and has left this.
    pub fn take_over(pool: Arc<Pool>, left: LeftBehind<'_>) -> io::Result<Self> {
        let keeper = nix::unistd::getppid();
        let handover = Handover::open(left.write()?, None, keeper)?;
        handover.close_unused(|_| ());
        let options = Options { handover: Some(handover), ..Options::default() };
        let files = Arc::new(Files::new(Arc::new(Store::new(pool, options, Durability::Fsync, 1024))));
        files.readers().stay_here();
        files.store().link().connect(Arc::new(NoKernel));
        let (tree, control) = (Tree::new(files.clone()), Control::new(Arc::new(Content::new(files.clone()))));
        files.inherit();
        Ok(Self { tree, files, control: Some(control) })
    }

    fn control(&self) -> Result<&Control, Errno> {
        self.control.as_ref().ok_or(libc::ENOSYS)
    }

    /// An object of the control tree that a server before had told of: looks at it in each way. Errors are as good as
    /// answers.
    pub fn look_at(&self, ino: Ino) {
        let Ok(control) = self.control() else { return };
        let _ = control.stat(ino);
        let mut names = Vec::new();
        let _ = control.readdir(ino, 0, |entry| {
            names.push(entry.name.to_vec());
            names.len() > 100
        });
        for name in names {
            if let Ok(Some(Some(found))) = control.lookup(CALLER, ino, &name, true) {
                control.forget(found.ino, 1);
            }
        }
        let _ = control.readdirplus(ino, 0, |_| false);
        let _ = control.getxattr(ino, b"user.tensorfs.tensors");
        if let Ok(opened) = control.open(CALLER, ino, libc::O_RDONLY) {
            let _ = control.read(opened.handle, 0, 1 << 16, |_| ());
            control.release(opened.handle);
        }
    }

    /// The object of the control tree at a path below it, which is known from then on.
    pub fn look_up(&self, path: &[&str]) -> Result<Ino, Errno> {
        let control = self.control()?;
        let mut ino = errno(control.root())?.ino;
        for name in path {
            let found = errno(control.lookup(CALLER, ino, name.as_bytes(), true))?;
            ino = found.flatten().ok_or(libc::ENOENT)?.ino;
        }
        Ok(ino)
    }

    /// Opens a file of the control tree.
    pub fn open_view(&self, ino: Ino) -> Result<u64, Errno> {
        errno(self.control()?.open(CALLER, ino, libc::O_RDONLY)).map(|opened| opened.handle)
    }

    /// What a server that takes over now would find of the control tree: objects, and open files.
    pub fn leaves(&self) -> io::Result<[Vec<[u8; 60]>; 2]> {
        let handover = self.files.store().link().handover().ok_or(io::ErrorKind::NotFound)?;
        let next = Handover::open(handover.share()?, None, nix::unistd::getppid())?;
        // The kernel has it all still.
        next.leave();
        let shown = next.inherited_shown().map(|(slip, _)| slip).collect();
        Ok([shown, next.inherited_views().map(|(slip, _)| slip).collect()])
    }

    /// `read` of an open file of the control tree from its begin.
    pub fn read_view(&self, handle: u64, size: u32) -> Result<Vec<u8>, Errno> {
        errno(self.control()?.read(handle, 0, size, <[u8]>::to_vec))
    }

    /// The last use of an open file of the control tree is over.
    pub fn release_view(&self, handle: u64) {
        self.control.iter().for_each(|control| control.release(handle));
    }

    /// The number that what is said of an object of the control tree has.
    pub fn right_number(slip: &[u8; 60]) -> Option<Ino> {
        right_number(slip)
    }

    /// The file that a handle is of.
    pub fn file_of(&self, handle: u64) -> Result<Ino, Errno> {
        errno(self.files.handle(handle)).map(|handle| handle.ino())
    }

    /// `read` of so many bytes from the begin of a file, as the server does it.
    pub fn read(&self, handle: u64, size: u32) -> Result<Vec<u8>, Errno> {
        errno(self.files.read(handle, 0, size, 0, <[u8]>::to_vec))
    }

    /// The last use of a handle is over.
    pub fn release(&self, handle: u64) {
        self.files.release(CALLER, handle);
    }

    /// The pool.
    pub fn pool(&self) -> &Pool {
        self.files.store().pool()
    }

    /// `mkdir`, and `mknod` of what is no file.
    pub fn make(&self, dir: Ino, name: &str, mode: u32) -> Result<Ino, Errno> {
        errno(self.tree.make(CALLER, dir, name.as_bytes(), New { mode, umask: 0, rdev: 0 })).map(|stat| stat.ino)
    }

    /// `symlink`.
    pub fn symlink(&self, dir: Ino, name: &str, target: &str) -> Result<Ino, Errno> {
        errno(self.tree.symlink(CALLER, dir, name.as_bytes(), target.as_bytes())).map(|stat| stat.ino)
    }

    /// `link`.
    pub fn link(&self, ino: Ino, dir: Ino, name: &str) -> Result<(), Errno> {
        errno(self.tree.link(CALLER, ino, dir, name.as_bytes()).map(drop))
    }

    /// `unlink`.
    pub fn unlink(&self, dir: Ino, name: &str) -> Result<(), Errno> {
        self.then_forget(errno(self.tree.unlink(CALLER, dir, name.as_bytes())).map(drop))
    }

    /// `rmdir`.
    pub fn rmdir(&self, dir: Ino, name: &str) -> Result<(), Errno> {
        self.then_forget(errno(self.tree.rmdir(CALLER, dir, name.as_bytes())).map(drop))
    }

    /// `rename`, or an exchange of the two names.
    pub fn rename(&self, from: (Ino, &str), to: (Ino, &str), exchange: bool) -> Result<(), Errno> {
        let flags = if exchange { libc::RENAME_EXCHANGE } else { 0 };
        self.then_forget(
            errno(self.tree.rename(CALLER, (from.0, from.1.as_bytes()), (to.0, to.1.as_bytes()), flags)).map(drop),
        )
    }

    /// `open(O_CREAT | O_EXCL | O_WRONLY)`.
    pub fn create(&self, dir: Ino, name: &str, mode: u32) -> Result<(Ino, Handle), Errno> {
        let new = New { mode: libc::S_IFREG | mode, umask: 0, rdev: 0 };
        let created = self.tree.create(CALLER, dir, name.as_bytes(), new, libc::O_WRONLY);
        errno(created).map(|(stat, reply)| (stat.ino, Handle(reply.handle)))
    }

    /// `open` of an existing file.
    pub fn open(&self, ino: Ino, flags: i32) -> Result<Handle, Errno> {
        errno(self.files.open(CALLER, ino, flags)).map(|reply| Handle(reply.handle))
    }

    /// The segment that serves an open file.
    pub fn segment(&self, handle: Handle) -> Result<SegmentId, Errno> {
        let handle = errno(self.files.handle(handle.0))?;
        errno(self.files.serving_segment(&handle))
    }

    /// `pwrite`, as the kernel does it in passthrough: the server hears nothing of it, unless it changes what stays
    /// sealed while the file is open.
    pub fn write(&self, handle: Handle, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        errno(self.files.handle(handle.0).and_then(|handle| self.files.thaw_before(&handle, offset)))?;
        let segment = self.segment(handle)?;
        let io = |error: std::io::Error| error.raw_os_error().unwrap_or(libc::EIO);
        let fd = self.files.store().segments().open(segment, libc::O_RDWR).map_err(io)?;
        std::fs::File::from(fd).write_all_at(bytes, offset).map_err(io)
    }

    /// `fsync`.
    pub fn fsync(&self, _ino: Ino, handle: Handle) -> Result<(), Errno> {
        errno(self.files.fsync(CALLER, handle.0))
    }

    /// `close`: FLUSH, then RELEASE.
    pub fn close(&self, handle: Handle) -> Result<(), Errno> {
        let flushed = errno(self.files.flush(CALLER, handle.0));
        self.files.release(CALLER, handle.0);
        self.then_forget(flushed)
    }

    /// What has neither name nor handle any more, the kernel forgets.
    fn then_forget(&self, result: Result<(), Errno>) -> Result<(), Errno> {
        self.files.store().removed().all().into_iter().for_each(|ino| self.files.forgotten(ino));
        result
    }

    /// `truncate`.
    pub fn truncate(&self, ino: Ino, size: u64) -> Result<(), Errno> {
        errno(self.tree.setattr(CALLER, ino, Change { size: Some(size), ..Change::default() }).map(drop))
    }

    /// `chmod` and `chown`.
    pub fn change(&self, ino: Ino, mode: Option<u32>, uid: Option<u32>) -> Result<(), Errno> {
        errno(self.tree.setattr(CALLER, ino, Change { mode, uid, ..Change::default() }).map(drop))
    }

    /// `fallocate`.
    pub fn fallocate(&self, handle: Handle, offset: u64, len: u64, mode: i32) -> Result<(), Errno> {
        errno(self.files.fallocate(CALLER, handle.0, offset, len, mode))
    }

    /// `setxattr`.
    pub fn set_xattr(&self, ino: Ino, name: &str, value: &[u8]) -> Result<(), Errno> {
        errno(self.tree.setxattr(CALLER, ino, name.as_bytes(), value, 0))
    }

    /// `removexattr`.
    pub fn remove_xattr(&self, ino: Ino, name: &str) -> Result<(), Errno> {
        errno(self.tree.removexattr(CALLER, ino, name.as_bytes()))
    }

    /// `fsync` of a directory, and `tensorfs sync`.
    pub fn sync(&self) -> Result<(), Errno> {
        errno(self.files.sync_all())
    }

    /// Commits, and seals a file if nothing can write it.
    pub fn seal(&self, ino: Ino) -> Result<(), Errno> {
        errno(self.files.store().commit())?;
        errno(seal_file(&self.files, ino, false, &|| false)).map(drop)
    }

    /// Commits, and seals provisionally most of what a file that is open has grown by, whatever it holds.
    pub fn seal_open(&self, ino: Ino) -> Result<(), Errno> {
        let store = self.files.store();
        errno(store.commit())?;
        errno(store.settle_value(ino))?;
        let node = self.files.node(ino);
        let file = self.files.lock(&node);
        let Some(Grown { segment, from, to }) = file.grown() else { return Ok(()) };
        // As if the last frame was not complete.
        let to = to - (to - from) / 4;
        if store.is_in_log_alone(ino) {
            return Ok(());
        }
        let mut bytes = vec![0; (to - from) as usize];
        let read = store
            .segments()
            .open(segment, libc::O_RDONLY)
            .and_then(|fd| std::fs::File::from(fd).read_exact_at(&mut bytes, from));
        read.map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))?;
        let half = bytes.len() / 2;
        let run = |offset: u64, bytes: &[u8]| {
            let seal = Seal { crc: tensorfs_formats::crc32c(bytes), description: Box::default() };
            SealedRun { offset, len: bytes.len() as u64, seal, origin: Origin::default() }
        };
        let runs = vec![run(from, &bytes[..half]), run(from + half as u64, &bytes[half..])];
        errno(store.pool().seal_provisionally(ino, segment, runs).map(drop).map_err(Into::into))
    }

    /// What only the log holds becomes durable in the segments.
    pub fn settle_values(&self) -> Result<(), Errno> {
        self.files.doubt_values(Instant::now() + Duration::from_secs(60));
        errno(self.files.store().pool().settle_values().map_err(Into::into))
    }

    /// One round of what goes on in the background; `quiet` if the one before had nothing to do.
    pub fn round(&self, quiet: bool) -> Result<bool, Errno> {
        self.settle_values()?;
        let quiet = errno(commit_if_changed(&self.files, quiet))?;
        let pool = self.files.store().pool();
        pool.unlink_covered();
        errno(pool.maintain().map_err(Into::into))?;
        Ok(quiet)
    }
}
