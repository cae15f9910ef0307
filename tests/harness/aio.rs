//! Asynchronous writes, as libaio makes them.

use std::ffi::c_long;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// `struct iocb` of `include/uapi/linux/aio_abi.h`, little-endian.
#[repr(C)]
#[derive(Default)]
struct Request {
    data: u64,
    key: u32,
    rw_flags: u32,
    opcode: u16,
    priority: i16,
    fd: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    event_fd: u32,
}

/// `struct io_event`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Event {
    data: u64,
    request: u64,
    result: i64,
    more: i64,
}

/// `IOCB_CMD_PWRITE`.
const PWRITE: u16 = 1;

fn check(result: c_long) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Writes all of them at once, each at its offset, and waits until all are written.
pub fn write_at_once(file: &File, writes: &[(u64, &[u8])]) -> io::Result<()> {
    let mut context: u64 = 0;
    // SAFETY: the kernel writes the context's number to where the pointer says.
    check(unsafe { libc::syscall(libc::SYS_io_setup, writes.len(), &mut context) })?;
    let done = submit(context, file, writes);
    // SAFETY: the context is the one from above. The kernel waits for what is still being written.
    check(unsafe { libc::syscall(libc::SYS_io_destroy, context) })?;
    done
}

fn submit(context: u64, file: &File, writes: &[(u64, &[u8])]) -> io::Result<()> {
    let request = |(offset, bytes): &(u64, &[u8])| Request {
        opcode: PWRITE,
        fd: file.as_raw_fd() as u32,
        buffer: bytes.as_ptr() as u64,
        bytes: bytes.len() as u64,
        offset: *offset as i64,
        ..Request::default()
    };
    let requests: Vec<Request> = writes.iter().map(request).collect();
    let pointers: Vec<*const Request> = requests.iter().map(std::ptr::from_ref).collect();
    // SAFETY: the requests, and the bytes that they name, live until the context is destroyed.
    let submitted = check(unsafe { libc::syscall(libc::SYS_io_submit, context, pointers.len(), pointers.as_ptr()) })?;
    let mut events = vec![Event::default(); submitted];
    let none = std::ptr::null_mut::<libc::timespec>();
    // SAFETY: there is room for as many events as are waited for.
    let got = check(unsafe {
        libc::syscall(libc::SYS_io_getevents, context, submitted, submitted, events.as_mut_ptr(), none)
    })?;
    let short = events.iter().zip(writes).any(|(event, (_, bytes))| event.result != bytes.len() as i64);
    match submitted == writes.len() && got == submitted && !short {
        true => Ok(()),
        false => Err(io::Error::other(format!("{submitted} of {} writes: {:?}", writes.len(), results(&events)))),
    }
}

fn results(events: &[Event]) -> Vec<i64> {
    events.iter().map(|event| event.result).collect()
}
