//! Who moves the bytes of an open file.

use fuser::FopenFlags;

/// How an inode is open; the same for all its handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// The kernel reads, writes and maps the segment itself.
    Passthrough,
    /// Reads and writes come here.
    Server,
}

/// What an open asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wish {
    /// The kernel grants passthrough on this mount.
    pub passthrough: bool,
    /// The bytes must be seen here: every write is to be durable, or the limit is near.
    pub see_bytes: bool,
}

/// The mode of an open. An inode that is open keeps its mode; so does one that is still mapped, which only
/// passthrough leaves behind.
pub(crate) fn choose(current: Option<Mode>, wish: Wish, mapped: impl FnOnce() -> bool) -> Mode {
    match current {
        Some(mode) => mode,
        None if !wish.passthrough => Mode::Server,
        None if wish.see_bytes && !mapped() => Mode::Server,
        None => Mode::Passthrough,
    }
}

/// Read and write access of an open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    pub read: bool,
    pub write: bool,
}

impl Access {
    /// The access that open flags ask for.
    pub fn of(flags: i32) -> Self {
        match flags & libc::O_ACCMODE {
            libc::O_WRONLY => Self { read: false, write: true },
            libc::O_RDONLY => Self { read: true, write: false },
            libc::O_RDWR => Self { read: true, write: true },
            // Linux opens so for `ioctl` alone, see open(2).
            _ => Self { read: false, write: false },
        }
    }
}

/// True if every write through a handle with these flags must be durable when it returns.
pub(crate) fn is_synchronous(flags: i32) -> bool {
    // O_SYNC contains O_DSYNC.
    flags & libc::O_DSYNC != 0
}

/// `FMODE_EXEC` of the kernel's `include/linux/fs.h`, which an open by `execve` carries. `OPEN` passes it on.
const FMODE_EXEC: i32 = 0x20;

/// True if the kernel opens a file so to execute it.
pub(crate) fn executes(flags: i32) -> bool {
    flags & FMODE_EXEC != 0 && !Access::of(flags).write
}

/// True if bytes can be changed through a handle with these flags, or made durable, without the server's hearing of it: by a
/// mapping and `msync`, or by each write.
pub(crate) fn is_unheard(flags: i32) -> bool {
    let access = Access::of(flags);
    access.write && (access.read || is_synchronous(flags))
}

/// What the kernel is told about an open.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Told {
    pub mode: Mode,
    pub access: Access,
    /// Closing must be heard of: it makes data durable, or a replace is pending.
    pub hear_close: bool,
    /// What the kernel has cached of the file is still true.
    pub keep_cache: bool,
}

/// The flags that say so.
pub(crate) fn fopen_flags(told: Told) -> FopenFlags {
    match told.mode {
        // FOPEN_PASSTHROUGH itself goes with the backing id.
        Mode::Passthrough if told.access.write && told.hear_close => FopenFlags::empty(),
        Mode::Passthrough => FopenFlags::FOPEN_NOFLUSH,
        // A file open for writing only cannot be mapped, so it needs no cache, and closing it has nothing to write back; the
        // others need it for mappings.
        Mode::Server if !told.access.read && told.hear_close => FopenFlags::FOPEN_DIRECT_IO,
        Mode::Server if !told.access.read => FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_NOFLUSH,
        Mode::Server => {
            let mut flags = FopenFlags::empty();
            flags.set(FopenFlags::FOPEN_KEEP_CACHE, told.keep_cache);
            flags.set(FopenFlags::FOPEN_NOFLUSH, !told.access.write);
            flags
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Wish = Wish { passthrough: true, see_bytes: false };
    const SEE: Wish = Wish { passthrough: true, see_bytes: true };
    const NONE: Wish = Wish { passthrough: false, see_bytes: false };

    #[test]
    fn an_open_inode_keeps_its_mode() {
        assert_eq!(choose(Some(Mode::Server), PLAIN, || false), Mode::Server);
        assert_eq!(choose(Some(Mode::Passthrough), SEE, || false), Mode::Passthrough);
    }

    #[test]
    fn a_closed_inode_follows_the_wish_unless_it_is_mapped() {
        assert_eq!(choose(None, PLAIN, || unreachable!()), Mode::Passthrough);
        assert_eq!(choose(None, SEE, || false), Mode::Server);
        assert_eq!(choose(None, SEE, || true), Mode::Passthrough);
        assert_eq!(choose(None, NONE, || unreachable!()), Mode::Server);
    }

    #[test]
    fn both_sync_flags_count_and_others_do_not() {
        assert!(is_synchronous(libc::O_SYNC | libc::O_WRONLY));
        assert!(is_synchronous(libc::O_DSYNC));
        assert!(!is_synchronous(libc::O_RDWR | libc::O_APPEND | libc::O_DIRECT));
    }

    #[test]
    fn flags_per_mode() {
        let told = |mode, flags, hear_close| {
            fopen_flags(Told { mode, access: Access::of(flags), hear_close, keep_cache: false })
        };
        assert_eq!(told(Mode::Passthrough, libc::O_RDONLY, true), FopenFlags::FOPEN_NOFLUSH);
        assert_eq!(told(Mode::Passthrough, libc::O_WRONLY, false), FopenFlags::FOPEN_NOFLUSH);
        assert_eq!(told(Mode::Passthrough, libc::O_RDWR, true), FopenFlags::empty());
        assert_eq!(told(Mode::Server, libc::O_WRONLY, true), FopenFlags::FOPEN_DIRECT_IO);
        let quiet = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_NOFLUSH;
        assert_eq!(told(Mode::Server, libc::O_WRONLY, false), quiet);
        assert_eq!(told(Mode::Server, libc::O_RDWR, false), FopenFlags::empty());
        assert_eq!(told(Mode::Server, libc::O_RDONLY, true), FopenFlags::FOPEN_NOFLUSH);
    }
}
