//! The functions of libc that we stand before. Those that take any number of arguments are declared with as many as are
//! ever given: that is how they are called on the machines that tensorfs runs on.

use std::ffi::{c_char, c_int, c_long, c_uint, c_ulong, c_void};
use std::ptr::null_mut;

use libc::{dev_t, gid_t, iovec, mode_t, off_t, off64_t, size_t, ssize_t, uid_t};

use crate::device;
use crate::judge;
use crate::place::{self, Places};
use crate::real::Real;
use crate::table::Call;

/// Functions that are one call each: which call, and the files that it is about.
macro_rules! before {
    ($($call:ident $places:expr, $failed:expr; $name:ident($($argument:ident: $type:ty),*) -> $result:ty;)+) => {$(
        // SAFETY: takes the place of libc's function of this name and type, as a preloaded library is meant to.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $type),*) -> $result {
            let real = || real!($name($($argument: $type),*) -> $result);
            judge::call(Call::$call, || $places, $failed, real)
        }
    )+};
}

/// Calls libc.
macro_rules! real {
    ($name:ident($($argument:ident: $type:ty),*) -> $result:ty) => {{
        static REAL: Real = Real::new(
            // SAFETY: the name of a function has no NUL, and one is added.
            unsafe { std::ffi::CStr::from_bytes_with_nul_unchecked(concat!(stringify!($name), "\0").as_bytes()) },
        );
        // SAFETY: the function has this type, in the way that it is called.
        let real: unsafe extern "C" fn($($type),*) -> $result = unsafe { std::mem::transmute(REAL.get()) };
        // SAFETY: the arguments are handed on as they came.
        unsafe { real($($argument),*) }
    }};
}

before! {
    Open place::path(path), -1; open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    Open place::path(path), -1; open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    Open place::at(fd, path), -1; openat(fd: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    Open place::at(fd, path), -1; openat64(fd: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int;

    Read place::of(fd), -1; readv(fd: c_int, to: *const iovec, count: c_int) -> ssize_t;
    Read place::of(fd), -1; pread(fd: c_int, to: *mut c_void, len: size_t, at: off_t) -> ssize_t;
    Read place::of(fd), -1; pread64(fd: c_int, to: *mut c_void, len: size_t, at: off64_t) -> ssize_t;
    Read place::of(fd), -1; preadv(fd: c_int, to: *const iovec, count: c_int, at: off_t) -> ssize_t;
    Read place::of(fd), -1; preadv64(fd: c_int, to: *const iovec, count: c_int, at: off64_t) -> ssize_t;

    Write place::of(fd), -1; write(fd: c_int, from: *const c_void, len: size_t) -> ssize_t;
    Write place::of(fd), -1; pwrite(fd: c_int, from: *const c_void, len: size_t, at: off_t) -> ssize_t;
    Write place::of(fd), -1; pwrite64(fd: c_int, from: *const c_void, len: size_t, at: off64_t) -> ssize_t;
    Write place::of(fd), -1; pwritev(fd: c_int, from: *const iovec, count: c_int, at: off_t) -> ssize_t;
    Write place::of(fd), -1; pwritev64(fd: c_int, from: *const iovec, count: c_int, at: off64_t) -> ssize_t;

    Fdatasync place::of(fd), -1; fdatasync(fd: c_int) -> c_int;
    Fsync place::of(fd), -1; fsync(fd: c_int) -> c_int;
    SyncFileRange place::of(fd), -1;
        sync_file_range(fd: c_int, at: off64_t, len: off64_t, flags: c_uint) -> c_int;
    Syncfs place::of(fd), -1; syncfs(fd: c_int) -> c_int;

    Fallocate place::of(fd), -1; fallocate(fd: c_int, mode: c_int, at: off_t, len: off_t) -> c_int;
    Fallocate place::of(fd), -1; fallocate64(fd: c_int, mode: c_int, at: off64_t, len: off64_t) -> c_int;
    Ftruncate place::of(fd), -1; ftruncate(fd: c_int, len: off_t) -> c_int;
    Ftruncate place::of(fd), -1; ftruncate64(fd: c_int, len: off64_t) -> c_int;

    Unlink place::path(path), -1; unlink(path: *const c_char) -> c_int;
    Unlink place::path(path), -1; rmdir(path: *const c_char) -> c_int;
    Unlink place::at(fd, path), -1; unlinkat(fd: c_int, path: *const c_char, flags: c_int) -> c_int;
    Rename place::both(place::path(from), place::path(to)), -1;
        rename(from: *const c_char, to: *const c_char) -> c_int;
    Rename place::both(place::at(one, from), place::at(other, to)), -1;
        renameat(one: c_int, from: *const c_char, other: c_int, to: *const c_char) -> c_int;
    Rename place::both(place::at(one, from), place::at(other, to)), -1;
        renameat2(one: c_int, from: *const c_char, other: c_int, to: *const c_char, flags: c_uint) -> c_int;
    Link place::both(place::path(from), place::path(to)), -1; link(from: *const c_char, to: *const c_char) -> c_int;
    Link place::both(place::at(one, from), place::at(other, to)), -1;
        linkat(one: c_int, from: *const c_char, other: c_int, to: *const c_char, flags: c_int) -> c_int;

    Fstat place::of(fd), -1; fstat(fd: c_int, to: *mut c_void) -> c_int;
    Fstat place::of(fd), -1; fstat64(fd: c_int, to: *mut c_void) -> c_int;
    Fstat place::path(path), -1; stat(path: *const c_char, to: *mut c_void) -> c_int;
    Fstat place::path(path), -1; stat64(path: *const c_char, to: *mut c_void) -> c_int;
    Fstat place::path(path), -1; lstat(path: *const c_char, to: *mut c_void) -> c_int;
    Fstat place::path(path), -1; lstat64(path: *const c_char, to: *mut c_void) -> c_int;
    Fstat place::at(fd, path), -1; fstatat(fd: c_int, path: *const c_char, to: *mut c_void, flags: c_int) -> c_int;
    Fstat place::at(fd, path), -1; fstatat64(fd: c_int, path: *const c_char, to: *mut c_void, flags: c_int) -> c_int;
    Fstat place::at(fd, path), -1;
        statx(fd: c_int, path: *const c_char, flags: c_int, mask: c_uint, to: *mut c_void) -> c_int;

    Copy place::of(to), -1;
        copy_file_range(
            from: c_int, from_at: *mut off64_t, to: c_int, to_at: *mut off64_t, len: size_t, flags: c_uint
        ) -> ssize_t;
    Copy place::of(to), -1; sendfile(to: c_int, from: c_int, at: *mut off_t, len: size_t) -> ssize_t;
    Copy place::of(to), -1; sendfile64(to: c_int, from: c_int, at: *mut off64_t, len: size_t) -> ssize_t;
    Seek place::of(fd), -1; lseek(fd: c_int, at: off_t, whence: c_int) -> off_t;
    Seek place::of(fd), -1; lseek64(fd: c_int, at: off64_t, whence: c_int) -> off64_t;
    Mkdir place::path(path), -1; mkdir(path: *const c_char, mode: mode_t) -> c_int;
    Mkdir place::at(fd, path), -1; mkdirat(fd: c_int, path: *const c_char, mode: mode_t) -> c_int;
    List place::path(path), null_mut(); opendir(path: *const c_char) -> *mut c_void;
    List place::of(fd), null_mut(); fdopendir(fd: c_int) -> *mut c_void;
    Map place::of(fd), libc::MAP_FAILED;
        mmap(at: *mut c_void, len: size_t, protection: c_int, flags: c_int, fd: c_int, from: off_t) -> *mut c_void;
    Map place::of(fd), libc::MAP_FAILED;
        mmap64(at: *mut c_void, len: size_t, protection: c_int, flags: c_int, fd: c_int, from: off64_t) -> *mut c_void;
    Statfs place::path(path), -1; statfs(path: *const c_char, to: *mut c_void) -> c_int;
    Statfs place::path(path), -1; statfs64(path: *const c_char, to: *mut c_void) -> c_int;
    Statfs place::path(path), -1; statvfs(path: *const c_char, to: *mut c_void) -> c_int;
    Statfs place::path(path), -1; statvfs64(path: *const c_char, to: *mut c_void) -> c_int;
    Statfs place::of(fd), -1; fstatvfs(fd: c_int, to: *mut c_void) -> c_int;
    Statfs place::of(fd), -1; fstatvfs64(fd: c_int, to: *mut c_void) -> c_int;
    Statfs place::of(fd), -1; fstatfs(fd: c_int, to: *mut c_void) -> c_int;
    Statfs place::of(fd), -1; fstatfs64(fd: c_int, to: *mut c_void) -> c_int;
    Times place::of(fd), -1; futimens(fd: c_int, times: *const c_void) -> c_int;
    Mode place::of(fd), -1; fchmod(fd: c_int, mode: mode_t) -> c_int;
    Mode place::of(fd), -1; fchown(fd: c_int, owner: uid_t, group: gid_t) -> c_int;
    Mkdir place::at(fd, path), -1;
        mknodat(fd: c_int, path: *const c_char, mode: mode_t, device: dev_t) -> c_int;
}

// SAFETY: takes the place of libc's function of this name and type, as a preloaded library is meant to.
#[unsafe(no_mangle)]
unsafe extern "C" fn read(fd: c_int, to: *mut c_void, len: size_t) -> ssize_t {
    let real = || real!(read(fd: c_int, to: *mut c_void, len: size_t) -> ssize_t);
    let read = judge::call(Call::Read, || place::of(fd), -1, real);
    // Only now: a thread that reads requests waits in here for long.
    let is_wanted = |len: &usize| *len > 0 && judge::is_wanted(&[Call::Request, Call::Answer]);
    let Some(len) = usize::try_from(read).ok().filter(is_wanted) else {
        return read;
    };
    // SAFETY: so many bytes of the buffer were just written.
    let request = unsafe { std::slice::from_raw_parts(to.cast::<u8>(), len) };
    match Some(request).filter(|_| device::is(fd)).and_then(device::asked) {
        Some(kind) => judge::call(Call::Request, || device::place(kind), -1, || read),
        None => read,
    }
}

// SAFETY: takes the place of libc's function of this name and type, as a preloaded library is meant to.
#[unsafe(no_mangle)]
unsafe extern "C" fn writev(fd: c_int, from: *const iovec, count: c_int) -> ssize_t {
    let real = || real!(writev(fd: c_int, from: *const iovec, count: c_int) -> ssize_t);
    if !judge::is_wanted(&[Call::Answer]) || count < 1 || !device::is(fd) {
        return judge::call(Call::Write, || place::of(fd), -1, real);
    }
    // SAFETY: whoever calls this gives it so many parts, each of bytes that can be read.
    let answer = unsafe { std::slice::from_raw_parts((*from).iov_base.cast::<u8>(), (*from).iov_len) };
    match device::answered(answer) {
        Some(kind) => judge::call(Call::Answer, || device::place(kind), -1, real),
        None => real(),
    }
}

/// Registers a file for passthrough: `struct fuse_backing_map` begins with its descriptor.
const BACKING_OPEN: c_ulong = 0x4010_e501;

/// What `command` is about, if it is a call.
fn of_fcntl(command: c_int, argument: c_ulong) -> Option<Call> {
    match command {
        libc::F_SETLEASE if argument as c_int != libc::F_UNLCK => Some(Call::Lease),
        libc::F_SETLK | libc::F_SETLKW | libc::F_OFD_SETLK | libc::F_OFD_SETLKW => Some(Call::Lock),
        _ => None,
    }
}

// SAFETY: takes the place of libc's function of this name and type, as a preloaded library is meant to.
#[unsafe(no_mangle)]
unsafe extern "C" fn fcntl(fd: c_int, command: c_int, argument: c_ulong) -> c_int {
    let real = || real!(fcntl(fd: c_int, command: c_int, argument: c_ulong) -> c_int);
    match of_fcntl(command, argument) {
        Some(call) => judge::call(call, || place::of(fd), -1, real),
        None => real(),
    }
}

// SAFETY: takes the place of libc's function of this name and type, as a preloaded library is meant to.
#[unsafe(no_mangle)]
unsafe extern "C" fn fcntl64(fd: c_int, command: c_int, argument: c_ulong) -> c_int {
    let real = || real!(fcntl64(fd: c_int, command: c_int, argument: c_ulong) -> c_int);
    match of_fcntl(command, argument) {
        Some(call) => judge::call(call, || place::of(fd), -1, real),
        None => real(),
    }
}

// SAFETY: takes the place of libc's function of this name and type, as a preloaded library is meant to.
#[unsafe(no_mangle)]
unsafe extern "C" fn ioctl(fd: c_int, command: c_ulong, argument: *mut c_void) -> c_int {
    let real = || real!(ioctl(fd: c_int, command: c_ulong, argument: *mut c_void) -> c_int);
    // As a number of 32 bits: some callers extend its sign.
    match command & 0xffff_ffff {
        BACKING_OPEN => {
            // SAFETY: this command takes a structure that begins with the descriptor.
            let backing = || place::of(unsafe { *argument.cast::<c_int>() });
            judge::call(Call::Backing, backing, -1, real)
        }
        command if command == libc::FICLONERANGE as c_ulong || command == libc::FICLONE as c_ulong => {
            judge::call(Call::Copy, || place::of(fd), -1, real)
        }
        _ => real(),
    }
}

/// Calls that the program makes without a function of their own.
// SAFETY: takes the place of libc's function of this name and type, as a preloaded library is meant to.
#[unsafe(no_mangle)]
unsafe extern "C" fn syscall(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    let real = || {
        real!(syscall(
            number: c_long, a: c_long, b: c_long, c: c_long, d: c_long, e: c_long, f: c_long
        ) -> c_long)
    };
    let (call, places): (Call, &dyn Fn() -> Places) = match number {
        libc::SYS_openat | libc::SYS_openat2 => (Call::Open, &|| place::at(a as c_int, b as *const c_char)),
        libc::SYS_statx => (Call::Fstat, &|| place::at(a as c_int, b as *const c_char)),
        libc::SYS_copy_file_range => (Call::Copy, &|| place::of(c as c_int)),
        libc::SYS_renameat2 => (Call::Rename, &|| {
            place::both(place::at(a as c_int, b as *const c_char), place::at(c as c_int, d as *const c_char))
        }),
        _ => return real(),
    };
    judge::call(call, places, -1, real)
}
