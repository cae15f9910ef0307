//! A keeper for a server whose own has died, and which has not the rights to start one: whoever asks for it takes the
//! descriptors from the server (pidfd_getfd(2)), which root may, and starts it.
//!
//! The server may have been taken over, and be any process of the pool's owner: it has no say in what the keeper is
//! started with, who has the rights of whoever asks. The program is that of whoever asks; pool and mount point are
//! those of the mount; of the server's own words the options count that are the server's business. What it hands over
//! has to be what it is to be.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::stat::{SFlag, fstat};
use nix::unistd::{Pid, geteuid};
use tensorfs_layout::pool::lock_of;

use crate::mounting::beforehand::could_take_over;
use crate::mounting::given;
use crate::mounting::keeper::alone::anew;
use crate::mounting::mountinfo::Mount;
use crate::mounting::options::MountOptions;
use crate::mounting::request::{MountRequest, PROGRAM};
use crate::show::failure::{At, Failure, reason};
use crate::show::output;

/// What the kernel calls EPERM alone.
const MAY_NOT: &str = "what it has open may not be taken from here: that takes the right to trace it, which root has \
                       (CAP_SYS_PTRACE), and who runs it only with kernel.yama.ptrace_scope=0";

/// Where its name begins so.
const HANDOVER: &str = "/memfd:tensorfs-handover";

/// True if a server has given up its rights.
pub fn is_confined(server: Pid) -> bool {
    let status = fs::read_to_string(format!("/proc/{server}/status")).unwrap_or_default();
    status.lines().any(|line| line.strip_prefix("NoNewPrivs:").is_some_and(|value| value.trim() == "1"))
}

/// Starts a keeper that has another server take over as soon as this one has ended. It logs to that file, if there is
/// one.
pub fn adopt(mount: &Mount, server: Pid, log: Option<&Path>) -> Result<(), Failure> {
    let pool = mount.source();
    if let Some(user) = mount.user().filter(|user| *user != geteuid().as_raw()) {
        let why = format!("it is a mount of user {user}'s, who can do this himself");
        return Err(Failure::at(mount.mount_point(), why));
    }
    let failed =
        |error: io::Error| Failure::at(pool, format!("cannot start a keeper for process {server}: {}", reason(&error)));
    let log = log.map(|path| std::path::absolute(path).at(path)).transpose()?;
    let (options, given) = said_by(server);
    if let (Some(own), None) = (options.log(), &log) {
        let file = own.display();
        output::complain(format!(
            "{}: its server says that it logs to {file}, for which nobody vouches; the log goes to syslog from now on \
             (--log {file} goes on there)",
            pool.display()
        ));
    }
    let handed = take_from(server, mount).map_err(failed)?;
    // What somebody else has mounted is his to unmount.
    let mountpoint = given.unwrap_or_else(|| mount.mount_point().into());
    let request = MountRequest::new(pool.into(), mountpoint, options.of_adopted(log));
    could_take_over(&request, handed[0].try_clone().map_err(failed)?)?;
    for descriptor in &handed {
        fcntl(descriptor, FcntlArg::F_SETFD(FdFlag::empty())).map_err(|errno| failed(errno.into()))?;
    }
    let numbers = handed.each_ref().map(|descriptor| descriptor.as_raw_fd().to_string());
    let mut arguments = request.server_arguments();
    arguments.insert(1, format!("--adopted={}", numbers.join(",")).into());
    // Nothing of the environment of whoever asks is for it.
    Command::new("/proc/self/exe")
        .arg0(PROGRAM)
        .args(arguments)
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map(drop)
        .map_err(failed)
}

/// The handover, `/dev/fuse`, the pool's lock, and the server itself.
fn take_from(server: Pid, mount: &Mount) -> io::Result<[OwnedFd; 4]> {
    let process = open_process(server)?;
    let find = |is_it: &dyn Fn(&Path, &OwnedFd) -> bool| -> io::Result<OwnedFd> {
        for entry in fs::read_dir(format!("/proc/{server}/fd"))?.flatten() {
            let Some(number) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            let copy = match take_copy(&process, number) {
                Err(error) if error.raw_os_error() == Some(libc::EPERM) => return Err(io::Error::other(MAY_NOT)),
                // It may have closed it by now, or made it another one.
                Err(_) => continue,
                Ok(copy) => copy,
            };
            let link = fs::read_link(format!("/proc/self/fd/{}", copy.as_raw_fd()))?;
            if is_it(&link, &copy) {
                return Ok(copy);
            }
        }
        Err(io::ErrorKind::NotFound.into())
    };
    let handover =
        find(&|link, copy| link.as_os_str().as_encoded_bytes().starts_with(HANDOVER.as_bytes()) && is_memory(copy))?;
    Ok([
        // The one that was found may be the one that the server has its lock with, which would not end with it.
        anew(&handover)?.into(),
        find(&|_, copy| given::is_of(mount, copy))?,
        find(&|_, copy| lock_of(mount.source()).is_some_and(|lock| is_file(copy, lock)))?,
        process,
    ])
}

/// True if it is a file in memory (memfd_create(2)): no other has seals.
pub fn is_memory(file: &OwnedFd) -> bool {
    let is_regular = fstat(file).is_ok_and(|found| found.st_mode & SFlag::S_IFMT.bits() == SFlag::S_IFREG.bits());
    is_regular && fcntl(file, FcntlArg::F_GET_SEALS).is_ok()
}

/// True if it is the file of this device with this number.
pub fn is_file(open: &OwnedFd, number: (u64, u64)) -> bool {
    fstat(open).is_ok_and(|found| (found.st_dev, found.st_ino) == number)
}

/// What a server says it was started with: options, and the mount point if that is a descriptor.
fn said_by(server: Pid) -> (MountOptions, Option<PathBuf>) {
    let line = fs::read(format!("/proc/{server}/cmdline")).unwrap_or_default();
    let line = line.strip_suffix(&[0]).unwrap_or(&line);
    let words = line.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned());
    let words: Vec<String> = words.collect();
    let given = words.last().map(PathBuf::from).filter(|last| given::number(last).is_some());
    (MountOptions::of_command_line(&words), given)
}

fn open_process(pid: Pid) -> io::Result<OwnedFd> {
    // SAFETY: the call takes integers.
    owned(unsafe { libc::syscall(libc::SYS_pidfd_open, pid.as_raw(), 0) })
}

fn take_copy(process: &OwnedFd, number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: the call takes integers.
    owned(unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), number, 0) })
}

fn owned(number: libc::c_long) -> io::Result<OwnedFd> {
    if number < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just opened it for this process.
    Ok(unsafe { OwnedFd::from_raw_fd(number as RawFd) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever may mount by `fusermount3` says what is mounted, and is what serves it.
    #[test]
    fn nobody_starts_a_keeper_for_what_others_have_mounted() {
        let user = geteuid().as_raw() + 1;
        let line = format!("40 27 0:33 / /home/mnt rw,nosuid,nodev - fuse.tensorfs /home/pool rw,user_id={user}");
        let refused = adopt(&Mount::of_line(&line), Pid::this(), None).unwrap_err().to_string();
        assert_eq!(refused, format!("/home/mnt: it is a mount of user {user}'s, who can do this himself"));
    }

    #[test]
    fn what_is_handed_over_is_what_it_is_to_be() {
        let memory =
            nix::sys::memfd::memfd_create(c"tensorfs-handover", nix::sys::memfd::MFdFlags::MFD_CLOEXEC).unwrap();
        assert!(is_memory(&memory));
        // In memory other files would have seals, too.
        let room = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = room.path().join("memfd:tensorfs-handover");
        assert!(!is_memory(&fs::File::create(&path).unwrap().into()));
        let mount = Mount::of_line("40 27 0:33 / /mnt rw - fuse.tensorfs /pool rw,user_id=0");
        assert!(!given::is_of(&mount, &fs::File::open("/dev/null").unwrap().into()));
    }
}
