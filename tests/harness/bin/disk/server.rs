//! The disk as a file: what the kernel asks of it.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, UNIX_EPOCH};

use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request, Session,
    WriteFlags,
};

use crate::faults::{Faults, Kind};
use crate::sectors::Sectors;

const DISK: INodeNo = INodeNo(2);
const FOR_EVER: Duration = Duration::from_secs(1 << 30);

/// A disk that is served.
pub struct Served {
    sectors: Mutex<Sectors>,
    faults: Mutex<Faults>,
}

impl Served {
    /// As an image has it.
    pub fn new(image: &File) -> io::Result<Served> {
        Ok(Served { sectors: Mutex::new(Sectors::read_from(image)?), faults: Mutex::default() })
    }

    pub fn sectors(&self) -> MutexGuard<'_, Sectors> {
        self.sectors.lock().unwrap()
    }

    pub fn faults(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock().unwrap()
    }
}

/// Serves a disk as `MOUNTPOINT/disk` until the process ends.
pub fn serve(disk: Arc<Served>, mountpoint: &Path) -> io::Result<BackgroundSession> {
    Session::new(Adapter(disk), mountpoint, &Config::default())?.spawn()
}

struct Adapter(Arc<Served>);

impl Adapter {
    /// Does what a request asks, if it is not to fail, and answers it, later if it is to be slow: others do not wait.
    fn answer<T: Send + 'static>(
        &self,
        (kind, bytes, data): (Kind, Range<u64>, &[u8]),
        work: impl FnOnce(&mut Sectors) -> T,
        reply: impl FnOnce(Result<T, Errno>) + Send + 'static,
    ) {
        let (fails, delay) = self.0.faults().ask(kind, bytes, data);
        let done = if fails { Err(Errno::EIO) } else { Ok(work(&mut self.0.sectors())) };
        if delay.is_zero() {
            return reply(done);
        }
        std::thread::spawn(move || {
            std::thread::sleep(delay);
            reply(done);
        });
    }

    fn attributes(&self, ino: INodeNo) -> FileAttr {
        let disk = ino == DISK;
        let size = if disk { self.0.sectors().size() } else { 0 };
        FileAttr {
            ino,
            size,
            blocks: size / 512,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind: if disk { FileType::RegularFile } else { FileType::Directory },
            perm: 0o700,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }
}

impl Filesystem for Adapter {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match name.to_str() {
            Some("disk") => reply.entry(&FOR_EVER, &self.attributes(DISK), Generation(0)),
            _ => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&FOR_EVER, &self.attributes(ino));
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        // The kernel keeps nothing of a disk in memory: what fails must be asked of it.
        let direct = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
        reply.opened(FileHandle(0), direct);
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let what = (Kind::Read, offset..offset + u64::from(size), &[][..]);
        self.answer(
            what,
            |sectors| sectors.read(offset, size as usize),
            |done| match done {
                Ok(bytes) => reply.data(&bytes),
                Err(errno) => reply.error(errno),
            },
        );
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let len = data.len() as u32;
        let what = (Kind::Write, offset..offset + u64::from(len), data);
        self.answer(
            what,
            |sectors| sectors.write(offset, data),
            move |done| match done {
                Ok(()) => reply.written(len),
                Err(errno) => reply.error(errno),
            },
        );
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.answer((Kind::Flush, 0..u64::MAX, &[]), Sectors::flush, |done| match done {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        });
    }

    fn fallocate(&self, _: &Request, _: INodeNo, _: FileHandle, offset: u64, length: u64, _: i32, reply: ReplyEmpty) {
        // The block layer asks for zeroes, or gives up what it does not need; either may read as zeroes.
        let what = (Kind::Write, offset..offset + length, &[][..]);
        let zero = |sectors: &mut Sectors| {
            let (end, zeroes) = ((offset + length).min(sectors.size()), vec![0; 1 << 20]);
            let mut at = offset;
            while at < end {
                let part = (end - at).min(zeroes.len() as u64);
                sectors.write(at, &zeroes[..part as usize]);
                at += part;
            }
        };
        self.answer(what, zero, |done| match done {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        });
    }
}
