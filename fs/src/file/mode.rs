//! Who moves the bytes of an open file.

/// How an inode is open; the same for all its handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// The kernel reads, writes and maps the segment itself.
    Passthrough,
    /// Reads and writes come here.
    Server,
}

/// What an open asks for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wish {
    /// The kernel grants passthrough on this mount.
    pub passthrough: bool,
    /// The bytes must be seen here: every write is to be durable.
    pub see_bytes: bool,
}

/// The mode of an open. An inode that is open keeps its mode; so does one that is still mapped, which only
/// passthrough leaves behind.
pub(super) fn choose(current: Option<Mode>, wish: Wish, mapped: impl FnOnce() -> bool) -> Mode {
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
pub(super) fn is_synchronous(flags: i32) -> bool {
    // O_SYNC contains O_DSYNC.
    flags & libc::O_DSYNC != 0
}

/// `FMODE_EXEC` of the kernel's `include/linux/fs.h`, which an open by `execve` carries. `OPEN` passes it on.
const FMODE_EXEC: i32 = 0x20;

/// True if the kernel opens a file so to execute it.
pub(super) fn executes(flags: i32) -> bool {
    flags & FMODE_EXEC != 0 && !Access::of(flags).write
}

/// True if bytes can be changed through a handle with these flags, or made durable, without the server's hearing of it:
/// by a mapping and `msync`, or by each write.
pub(super) fn is_unheard(flags: i32) -> bool {
    let access = Access::of(flags);
    access.write && (access.read || is_synchronous(flags))
}

/// Who is about to be able to change the bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Changer {
    /// The server.
    Server,
    /// Whoever has a handle with these flags.
    Handle(i32),
    /// Programs of an earlier mount.
    Outlived,
}

impl Changer {
    /// True if bytes can be changed, or made durable, without the server's hearing of it.
    pub fn is_unheard(self) -> bool {
        match self {
            Self::Server => false,
            Self::Handle(flags) => is_unheard(flags),
            Self::Outlived => true,
        }
    }

    /// True if each change comes to the server first, where the kernel may have been `granted` to move bytes itself. A
    /// handle that appends is not given to it: it cannot be mapped, and should it lose `O_APPEND`, its writes still
    /// come here.
    pub fn asks(self, granted: bool) -> bool {
        match self {
            Self::Server => true,
            Self::Handle(flags) => !granted || (!Access::of(flags).read && flags & libc::O_APPEND != 0),
            Self::Outlived => false,
        }
    }
}

/// What the kernel is told about an open.
#[derive(Clone, Copy, Debug)]
pub(super) struct Told {
    pub mode: Mode,
    pub access: Access,
    /// Reads and writes come here all the same: the pool has a limit, or what is sealed of the file stays so.
    pub asks: bool,
    /// What the kernel has cached of the file is still true.
    pub keep_cache: bool,
    /// Its bytes are away, and it can be mapped all the same if nothing is cached.
    pub away: bool,
}

/// How the kernel treats an open, beyond who moves the bytes. The names are those of the kernel's flags (`FOPEN_*` in
/// `include/uapi/linux/fuse.h`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Manner {
    /// Each read and write comes here; nothing is cached.
    pub direct_io: bool,
    /// Closing is not heard of.
    pub no_flush: bool,
    /// What is cached of the file stays.
    pub keep_cache: bool,
}

impl Manner {
    /// As the next server reads it.
    pub(super) fn to_bits(self) -> u32 {
        u32::from(self.direct_io) | u32::from(self.no_flush) << 1 | u32::from(self.keep_cache) << 2
    }

    /// As the server before had noted it.
    pub(super) fn of_bits(bits: u32) -> Self {
        Self { direct_io: bits & 1 != 0, no_flush: bits & 2 != 0, keep_cache: bits & 4 != 0 }
    }
}

/// The manner that goes with it.
pub(super) fn manner(told: Told) -> Manner {
    let Told { mode, access, asks, keep_cache, away } = told;
    // Who is killed is seen closing what it has open to write.
    let no_flush = !access.write;
    match mode {
        // With direct I/O the kernel maps the segment itself, but sends reads and writes here.
        Mode::Passthrough => Manner { direct_io: asks, no_flush, ..Manner::default() },
        // Of what is away no more is asked for than is read; a mapping has the cache all the same.
        Mode::Server if away => Manner { direct_io: true, no_flush, keep_cache },
        // A file open for writing only cannot be mapped, so it needs no cache, and closing it has nothing to write
        // back; the others need it for mappings.
        Mode::Server if !access.read => Manner { direct_io: true, no_flush, keep_cache: false },
        Mode::Server => Manner { direct_io: false, no_flush, keep_cache },
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
        let of = |mode, flags, away| Told { mode, access: Access::of(flags), asks: false, keep_cache: false, away };
        let told = |mode, flags| manner(of(mode, flags, false));
        let quiet = Manner { no_flush: true, ..Manner::default() };
        let direct = Manner { direct_io: true, ..Manner::default() };
        assert_eq!(told(Mode::Passthrough, libc::O_RDONLY), quiet);
        assert_eq!(told(Mode::Passthrough, libc::O_WRONLY), Manner::default());
        assert_eq!(told(Mode::Passthrough, libc::O_RDWR), Manner::default());
        assert_eq!(told(Mode::Server, libc::O_WRONLY), direct);
        assert_eq!(told(Mode::Server, libc::O_RDWR), Manner::default());
        assert_eq!(told(Mode::Server, libc::O_RDONLY), quiet);
        let access = Access::of(libc::O_RDWR);
        let asks = Told { mode: Mode::Passthrough, access, asks: true, keep_cache: false, away: false };
        assert_eq!(manner(of(Mode::Server, libc::O_RDONLY, true)), Manner { no_flush: true, ..direct });
        assert_eq!(manner(asks), direct);
    }
}
