//! What is mounted where: `/proc/PID/mountinfo`.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::statfs::fstatfs;
use nix::unistd::geteuid;
use tensorfs_layout::pool::holder;

use crate::mounting::serving;
use crate::show::failure::{At, Failure};

/// The type tensorfs mounts with.
pub const FS_TYPE: &str = "fuse.tensorfs";

/// The table of this process.
const HERE: &str = "/proc/self/mountinfo";

/// One mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// The kernel's number of this mount: no other has it, be it of the same filesystem, or at the same place.
    id: u64,
    /// Major and minor number of the filesystem: what `stat` shows for its files. Bind mounts share it.
    device: (u32, u32),
    /// What of the filesystem is mounted: `/` is all of it, and a bind mount may have a directory.
    root: PathBuf,
    mount_point: PathBuf,
    options: OsString,
    fs_type: OsString,
    source: PathBuf,
    user: Option<u32>,
    lets_others_in: bool,
}

impl Mount {
    /// That of a line of the table.
    #[cfg(test)]
    pub fn of_line(line: &str) -> Self {
        parse_line(line.as_bytes()).expect("a line of the table")
    }

    /// Major and minor number of the filesystem.
    pub fn device(&self) -> (u32, u32) {
        self.device
    }

    /// Where it is mounted.
    pub fn mount_point(&self) -> &Path {
        &self.mount_point
    }

    /// Which directory of the filesystem it shows.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Whether it shows the filesystem from its root on.
    pub fn is_whole(&self) -> bool {
        self.root == Path::new("/")
    }

    /// Whether whoever goes to its mount point comes to it, and not to something that is mounted over it.
    pub fn is_in_sight(&self) -> bool {
        self.reach().is_some()
    }

    /// Its root, of which nothing is asked.
    fn reach(&self) -> Option<OwnedFd> {
        let (root, id) = pinned(&self.mount_point).ok()?;
        (id == self.id).then_some(root)
    }

    /// Whether it was mounted with an option that is the mount's own, such as `nodev`.
    pub fn has(&self, option: &str) -> bool {
        self.options.as_bytes().split(|byte| *byte == b',').any(|one| one == option.as_bytes())
    }

    /// The type of its filesystem.
    pub fn fs_type(&self) -> &OsStr {
        &self.fs_type
    }

    /// What is mounted; for tensorfs the pool.
    pub fn source(&self) -> &Path {
        &self.source
    }

    /// Whose mount it is, if it is one of FUSE.
    pub fn user(&self) -> Option<u32> {
        self.user
    }

    /// Whether the kernel lets in others than whose mount it is.
    pub fn lets_others_in(&self) -> bool {
        self.lets_others_in
    }

    /// Whether it is a mount of a pool.
    pub fn is_tensorfs(&self) -> bool {
        self.fs_type == FS_TYPE
    }

    /// Whether root must not believe it, nor wait for it: another user mounted it, and serves it.
    pub fn is_foreign(&self) -> bool {
        self.is_fuse() && self.user.is_some_and(|user| user != 0) && is_root_of_the_machine()
    }

    /// Whether who answers for it may be a program, or another machine, and so nobody for a while.
    pub fn may_not_answer(&self) -> bool {
        let remote: [&[u8]; 10] =
            [b"nfs", b"nfs4", b"cifs", b"smb3", b"9p", b"ceph", b"afs", b"lustre", b"fuseblk", b"virtiofs"];
        self.is_fuse() || remote.contains(&self.fs_type.as_bytes())
    }

    fn is_fuse(&self) -> bool {
        let name = self.fs_type.as_bytes();
        name == b"fuse" || name.starts_with(b"fuse.")
    }

    /// A FUSE mount whose server is gone. Of one that is foreign it is not asked, and of one that is not in sight it
    /// cannot be. Nor is a server asked that is seen to go on: it may hang.
    ///
    /// `stat` alone may be answered from the kernel's cache, long after the server died; `statfs` never is.
    pub fn is_dead(&self) -> bool {
        self.is_fuse()
            && !self.is_foreign()
            && !self.is_seen_to_go_on()
            && self.reach().is_some_and(|root| matches!(fstatfs(&root), Err(Errno::ENOTCONN | Errno::ECONNABORTED)))
    }

    /// Whether who has the pool serves this mount of it.
    fn is_seen_to_go_on(&self) -> bool {
        let holder = if self.is_tensorfs() { holder(&self.source).ok().flatten() } else { None };
        holder.is_some_and(|holder| serving::goes_on(holder.pid, self.device.1))
    }
}

/// A table of mounts, in the order they were made where they lie on top of each other.
#[derive(Debug, Clone, Default)]
pub struct Table(Vec<Mount>);

/// Root of a user namespace is somebody else outside of it: he may well be the one whose mount it is.
fn is_root_of_the_machine() -> bool {
    let is_itself = |map: String| map.split_whitespace().take(2).eq(["0", "0"]);
    geteuid().is_root() && std::fs::read_to_string("/proc/self/uid_map").ok().is_none_or(is_itself)
}

impl Table {
    /// What this process sees.
    pub fn read() -> io::Result<Table> {
        read_whole(HERE).map(|text| Table::parse(&text))
    }

    /// What this process sees; a failure names the file it is read from.
    pub fn here() -> Result<Table, Failure> {
        Table::read().at(Path::new(HERE))
    }

    /// What another process sees, which may live in another mount namespace.
    pub fn of(pid: u32) -> io::Result<Table> {
        Table::at(&format!("/proc/{pid}/mountinfo"))
    }

    /// One of these, by the name of its file.
    pub fn at(path: &str) -> io::Result<Table> {
        read_whole(path).map(|text| Table::parse(&text))
    }

    /// What tells the mount namespace, or what a process sees of it, from others: the number of its first mount, as
    /// each namespace has mounts of its own. `/proc/PID/ns/mnt` would have whoever looks at it wait for a process that
    /// executes a program.
    pub fn namespace(&self) -> Option<u64> {
        self.0.first().map(|mount| mount.id)
    }

    /// Lines that make no sense are left out: the kernel may add fields, not take them.
    fn parse(text: &[u8]) -> Table {
        Table(text.split(|&byte| byte == b'\n').filter_map(parse_line).collect())
    }

    /// What one sees at `path`: the mount on top of all others there.
    pub fn top_at(&self, path: &Path) -> Option<&Mount> {
        self.0.iter().rev().find(|mount| mount.mount_point == path)
    }

    /// Everything mounted below `path`.
    pub fn below(&self, path: &Path) -> impl Iterator<Item = &Mount> {
        self.0.iter().filter(move |mount| mount.mount_point.starts_with(path) && mount.mount_point != path)
    }

    /// Whether a mount is there yet, wherever it is by now.
    pub fn has(&self, mount: &Mount) -> bool {
        self.0.iter().any(|one| (one.id, one.device) == (mount.id, mount.device))
    }

    /// The mount by which something is open here, of which nothing is asked.
    pub fn of_open(&self, open: &impl AsRawFd) -> Option<&Mount> {
        let id = id_of(open).ok()?;
        self.0.iter().find(|mount| mount.id == id)
    }

    /// All mounts, the last one made first.
    pub fn latest_first(&self) -> impl Iterator<Item = &Mount> {
        self.0.iter().rev()
    }

    /// Where `pool` is mounted; a foreign mount may say of any that it is.
    pub fn of_pool(&self, pool: &Path) -> impl Iterator<Item = &Mount> {
        self.0.iter().filter(move |mount| mount.is_tensorfs() && mount.source == pool && !mount.is_foreign())
    }

    /// The mount that `path` (real) lies in: the kernel says which, whatever is mounted over what.
    pub fn around(&self, path: &Path) -> Option<&Mount> {
        match pinned(path) {
            Ok((_, id)) => self.0.iter().find(|mount| mount.id == id),
            Err(_) => path.ancestors().find_map(|ancestor| self.top_at(ancestor)),
        }
    }

    /// What one comes to who looks for a mount that is not in sight.
    pub fn over(&self, hidden: &Mount) -> Option<&Mount> {
        let found = hidden.mount_point.ancestors().find_map(|path| pinned(path).ok());
        found.and_then(|(_, id)| self.0.iter().find(|mount| mount.id == id && id != hidden.id))
    }
}

/// What is at a path, opened so that nothing is asked of its filesystem, and the number of the mount that it lies in.
fn pinned(path: &Path) -> io::Result<(OwnedFd, u64)> {
    let found = File::options().read(true).custom_flags(libc::O_PATH | libc::O_NOFOLLOW).open(path)?;
    let id = id_of(&found)?;
    Ok((found.into(), id))
}

/// The number of the mount by which something is open.
fn id_of(open: &impl AsRawFd) -> io::Result<u64> {
    let told = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", open.as_raw_fd()))?;
    let id = told.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok());
    Ok(id.ok_or(io::ErrorKind::InvalidData)?)
}

/// Tells by poll(2) (`POLLPRI`) that mounts have changed since it was asked last.
pub struct Changes(File);

impl Changes {
    /// Of what this process sees.
    pub fn of_mounts() -> io::Result<Self> {
        File::open(HERE).map(Self)
    }
}

impl AsFd for Changes {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The kernel gives the table out in pieces and may skip mounts if the table changes between two of them. It also tells
/// of changes, by poll(2): then it is read again.
fn read_whole(path: &str) -> io::Result<Vec<u8>> {
    const TRIES: usize = 100;
    let mut file = File::open(path)?;
    let mut text = Vec::new();
    for _ in 0..TRIES {
        text.clear();
        file.rewind()?;
        file.read_to_end(&mut text)?;
        let mut polled = [PollFd::new(file.as_fd(), PollFlags::POLLPRI)];
        poll(&mut polled, PollTimeout::ZERO)?;
        let changed = polled[0].revents().is_none_or(|events| events.contains(PollFlags::POLLERR));
        if !changed {
            break;
        }
    }
    Ok(text)
}

/// `36 35 98:0 /root /mount\040point rw,noatime shared:1 - fuse.tensorfs /the/pool rw,user_id=0`
fn parse_line(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|&byte| byte == b' ');
    let id = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    let device = parse_device(fields.nth(1)?)?;
    let root = unescape(fields.next()?).into();
    let mount_point = unescape(fields.next()?).into();
    let options = unescape(fields.next()?);
    // any number of optional fields, up to a lone dash
    fields.find(|field| *field == b"-")?;
    let fs_type = unescape(fields.next()?);
    let source = unescape(fields.next()?);
    let of_fuse = fields.next().unwrap_or_default();
    let user = parse_user(of_fuse);
    let lets_others_in = of_fuse.split(|byte| *byte == b',').any(|option| option == b"allow_other");
    Some(Mount { id, device, root, mount_point, options, fs_type, source: source.into(), user, lets_others_in })
}

/// Whose mount it is, as FUSE says among a mount's options.
fn parse_user(options: &[u8]) -> Option<u32> {
    std::str::from_utf8(options).ok()?.split(',').find_map(|option| option.strip_prefix("user_id=")?.parse().ok())
}

fn parse_device(field: &[u8]) -> Option<(u32, u32)> {
    let (major, minor) = std::str::from_utf8(field).ok()?.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// The kernel writes space, tab, newline, backslash and some others as `\` and three octal digits.
fn unescape(field: &[u8]) -> OsString {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, tail)) = rest.split_first() {
        match (byte, octal(tail)) {
            (b'\\', Some(escaped)) => {
                plain.push(escaped);
                rest = &tail[3..];
            }
            _ => {
                plain.push(byte);
                rest = tail;
            }
        }
    }
    OsString::from_vec(plain)
}

fn octal(text: &[u8]) -> Option<u8> {
    let digits = std::str::from_utf8(text.get(..3)?).ok()?;
    // from_str_radix would take a sign
    digits.bytes().all(|digit| digit.is_ascii_digit()).then(|| u8::from_str_radix(digits, 8).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8] = b"\
22 27 0:21 / /proc rw,nosuid - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
40 27 0:33 / /mnt/a\\040b\\134c rw,nosuid,nodev shared:7 master:2 - fuse.tensorfs /pools/p\\011q rw,user_id=0
41 40 0:34 / /mnt/a\\040b\\134c rw - tmpfs none rw
42 27 0:33 /sub /bind rw - fuse.tensorfs /pools/p\\011q rw
garbage
43 27 0:35 / /mnt/ab rw no dash
";

    #[test]
    fn reads_escapes_and_optional_fields() {
        let table = Table::parse(TEXT);
        assert_eq!(table.0.len(), 5);
        let mount = &table.0[2];
        assert_eq!(mount.device, (0, 33));
        assert_eq!(mount.mount_point, Path::new("/mnt/a b\\c"));
        assert_eq!(mount.source, Path::new("/pools/p\tq"));
        assert!(mount.is_tensorfs());
        assert!(mount.has("nodev") && mount.has("rw") && !mount.has("no") && !mount.has("user_id=0"));
    }

    #[test]
    fn keeps_broken_escapes_as_they_are() {
        assert_eq!(unescape(b"a\\04"), "a\\04");
        assert_eq!(unescape(b"\\999\\"), "\\999\\");
        assert_eq!(unescape(b"\\134040"), "\\040");
        assert_eq!(unescape(b"\\377").as_bytes(), b"\xff");
        assert_eq!(unescape(b"\\777"), "\\777");
        assert_eq!(unescape(b"\\+12"), "\\+12");
    }

    #[test]
    fn finds_the_mount_on_top() {
        let table = Table::parse(TEXT);
        let top = table.top_at(Path::new("/mnt/a b\\c")).unwrap();
        assert_eq!(top.fs_type, "tmpfs");
        assert!(table.top_at(Path::new("/mnt")).is_none());
        let around = table.around(Path::new("/bind/x/y")).unwrap();
        assert_eq!((around.mount_point(), around.root()), (Path::new("/bind"), Path::new("/sub")));
        assert!(!around.is_whole() && top.is_whole());
    }

    #[test]
    fn finds_all_mounts_of_a_pool() {
        let table = Table::parse(TEXT);
        let found: Vec<_> = table.of_pool(Path::new("/pools/p\tq")).map(|mount| &mount.mount_point).collect();
        assert_eq!(found, [Path::new("/mnt/a b\\c"), Path::new("/bind")]);
        assert_eq!(table.latest_first().next().map(|mount| &*mount.mount_point), Some(Path::new("/bind")));
        assert_eq!(table.below(Path::new("/mnt")).count(), 2);
    }

    #[test]
    fn reads_this_machine() {
        let table = Table::read().unwrap();
        assert!(table.top_at(Path::new("/")).is_some());
        assert!(!table.top_at(Path::new("/")).unwrap().is_dead());
        let around = table.around(Path::new("/proc/self")).unwrap();
        assert!(around.mount_point() == Path::new("/proc") && around.is_in_sight());
        let open = table.of_open(&File::open("/proc/self/status").unwrap()).unwrap();
        assert!(open == around && !open.may_not_answer());
        let of_type = |name: &str| Mount::of_line(&format!("40 27 0:33 / /p rw - {name} host:/p rw")).may_not_answer();
        assert!(["fuse", "fuse.sshfs", "nfs4", "cifs"].into_iter().all(of_type));
        assert!(!["ext4", "xfs", "tmpfs", "fusectl"].into_iter().any(of_type));
    }
}
