//! Who keeps a mount busy: a best effort, for the message.

use std::ffi::OsStr;
use std::fs::{self, DirEntry};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use tensorfs_fs::file_of;
use tensorfs_layout::pool::lock_of;

use crate::mounting::mountinfo::Table;
use crate::mounting::process;

/// How many processes to name.
const MOST: usize = 5;

/// How a carrier is named: the kernel knows 15 characters of a name.
const CARRIER: &str = "tensorfs-carrie";
/// So many processes are between it and a program that asks for it, at most.
const BETWEEN: usize = 4;

/// How long to look around in /proc. Another process may be stuck, and keep everybody who looks at it waiting.
const PATIENCE: Duration = Duration::from_secs(2);

/// A look at one process takes less, or waits for that.
const A_LOOK: Duration = Duration::from_millis(200);
/// So many may wait.
const LOOKERS: usize = 8;

/// One clause for an error message: who uses files below `mountpoint`.
pub fn reason(mountpoint: &Path) -> String {
    if let Some(below) = mounted_below(mountpoint) {
        return format!("busy: {} is mounted below it", below.display());
    }
    let users = users_found_in_time(mountpoint);
    if users.is_empty() {
        return "busy: a file or directory in it is in use".to_owned();
    }
    let dots = if users.len() > MOST { ", ..." } else { "" };
    let named = &users[..users.len().min(MOST)];
    format!("busy: in use by {}{dots}", named.join(", "))
}

/// Whether the pool's carrier alone keeps it busy, as far as that is found soon: it asks the server now and then, or
/// has a program of ours ask.
pub fn is_by_carrier(mountpoint: &Path) -> bool {
    let users = users_found_in_time(mountpoint);
    !users.is_empty() && users.iter().all(|user| is_of_carrier(user))
}

/// True of one, of what it has started, and of a process that is gone by now.
fn is_of_carrier(user: &str) -> bool {
    let pid = user.split(' ').next().and_then(|pid| pid.parse().ok());
    let mut line = std::iter::successors(pid, |pid| process::parent(*pid)).take(1 + BETWEEN);
    pid.is_some_and(process::is_ending) || line.any(|pid| process::name(pid) == CARRIER)
}

fn mounted_below(mountpoint: &Path) -> Option<PathBuf> {
    let table = Table::read().ok()?;
    table.below(mountpoint).next().map(|mount| mount.mount_point().to_owned())
}

/// One more than is named, at most.
fn users_found_in_time(mountpoint: &Path) -> Vec<String> {
    let mountpoint = mountpoint.to_owned();
    name_in_time(move |process| uses(process, &mountpoint))
}

/// What comes of looking around in /proc, if that is known soon.
pub fn in_time<T: Send + 'static>(look: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (tell, hear) = mpsc::channel();
    // Nobody may wait for it any more.
    thread::Builder::new().spawn(move || drop(tell.send(look()))).ok()?;
    hear.recv_timeout(PATIENCE * 2).ok()
}

/// Whether a process has the lock of a pool open, as far as that can be told soon. Who has the pool names the process:
/// that may execute a program without end, so that the kernel has whoever looks at its descriptors wait; and what it
/// has open besides may be of a filesystem whose server does not answer, so none is asked.
pub fn has_locked(pid: u32, pool: &Path) -> Option<bool> {
    let pool = pool.to_owned();
    let look = move || {
        let lock = lock_of(&pool)?;
        let mut open = fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten();
        Some(open.any(|entry| file_of(&entry.path()) == Some(lock)))
    };
    in_time(look).flatten()
}

/// `pid (name)` of processes of which something holds, given their directories in /proc: a few, and only as far as they
/// are found soon. One that keeps whoever looks at it waiting, as it executes a program, keeps nobody from the others.
pub fn name_in_time(holds: impl Fn(&Path) -> bool + Send + Sync + 'static) -> Vec<String> {
    let processes = Arc::new(Mutex::new(fs::read_dir("/proc").into_iter().flatten().flatten()));
    let (holds, (tell, looked)) = (Arc::new(holds), mpsc::channel());
    let another = || {
        let (processes, holds, tell) = (Arc::clone(&processes), Arc::clone(&holds), tell.clone());
        thread::spawn(move || {
            loop {
                let next = processes.lock().unwrap_or_else(PoisonError::into_inner).next();
                let is_last = next.is_none();
                let user = next.and_then(|process| user(&process, &*holds));
                if tell.send((user, is_last)).is_err() || is_last {
                    return;
                }
            }
        });
    };
    let deadline = Instant::now() + PATIENCE;
    let mut found = Vec::new();
    another();
    // While one comes on, it looks at all. Who is late may be at the very one that is looked for.
    let (mut begun, mut ended) = (1, 0);
    while ended < begun && found.len() <= MOST && Instant::now() < deadline {
        match looked.recv_timeout(A_LOOK) {
            Ok((user, is_last)) => {
                found.extend(user);
                ended += usize::from(is_last);
            }
            Err(_) if begun < LOOKERS => {
                another();
                begun += 1;
            }
            Err(_) => {}
        }
    }
    found
}

/// `pid (name)` of a process, if something holds of it.
fn user(process: &DirEntry, holds: &dyn Fn(&Path) -> bool) -> Option<String> {
    let pid: u32 = process.file_name().to_str()?.parse().ok()?;
    if pid == std::process::id() && !cfg!(test) {
        return None; // inherited from a shell that is named anyway
    }
    if is_stuck(process) {
        return None;
    }
    holds(&process.path()).then(|| format!("{pid} ({})", process::name(pid)))
}

/// Whether a process waits in the kernel for something that no signal interrupts. To look at what it has open may mean
/// to wait with it; its `status` can always be read.
pub fn is_stuck(process: &DirEntry) -> bool {
    let status = fs::read_to_string(process.path().join("status")).unwrap_or_default();
    status.lines().any(|line| line.starts_with("State:\tD"))
}

/// Whether a process has a file, a directory or a mapping below `mountpoint`. Only the names that `/proc` shows are
/// looked at: a `stat` would go through the mount.
fn uses(dir: &Path, mountpoint: &Path) -> bool {
    let link_within = |link: &Path| fs::read_link(link).is_ok_and(|shown| shown_within(shown.as_os_str(), mountpoint));
    let one_of = ["cwd", "root", "exe"];
    if one_of.iter().any(|link| link_within(&dir.join(link))) {
        return true;
    }
    let open = fs::read_dir(dir.join("fd")).is_ok_and(|fds| fds.flatten().any(|fd| link_within(&fd.path())));
    open || fs::read(dir.join("maps")).is_ok_and(|maps| maps_within(&maps, mountpoint))
}

/// `start-end rwxp offset major:minor inode      /path`
fn maps_within(maps: &[u8], mountpoint: &Path) -> bool {
    maps.split(|&byte| byte == b'\n').any(|line| {
        let path = line.iter().position(|&byte| byte == b'/');
        path.is_some_and(|at| shown_within(OsStr::from_bytes(&line[at..]), mountpoint))
    })
}

/// Whether a path that `/proc` shows (an open file, a mapping) lies at or below `root`.
fn shown_within(shown: &OsStr, root: &Path) -> bool {
    let shown = shown.as_bytes();
    let shown = shown.strip_suffix(b" (deleted)").unwrap_or(shown);
    Path::new(OsStr::from_bytes(shown)).starts_with(root)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn finds_an_open_file_of_this_process() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap();
        assert_eq!(reason(&path), "busy: a file or directory in it is in use");
        let _open = File::create(path.join("x")).unwrap();
        let said = reason(&path);
        let me = format!("in use by {} (", std::process::id());
        assert!(said.contains(&me), "{said}");
    }

    #[test]
    fn a_carrier_is_told_from_others_by_its_name() {
        assert!(!is_of_carrier(&format!("{} (any)", std::process::id())) && !is_of_carrier("1 (init)"));
        let dir = tempfile::tempdir().unwrap();
        let carrier = dir.path().join("tensorfs-carrier");
        std::os::unix::fs::symlink("/bin/sh", &carrier).unwrap();
        // It starts another one, which says its number.
        let mut carrier = std::process::Command::new(carrier);
        carrier.args(["-c", "sleep 600 & echo $!; wait"]).stdout(std::process::Stdio::piped());
        let mut carrier = carrier.spawn().unwrap();
        let mut started = String::new();
        let mut says = std::io::BufReader::new(carrier.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut says, &mut started).unwrap();
        let started = started.trim();
        assert!(is_of_carrier(&format!("{} (any)", carrier.id())) && is_of_carrier(&format!("{started} (any)")));
        std::process::Command::new("kill").arg(started).status().unwrap();
        carrier.wait().unwrap();
        assert!(is_of_carrier(&format!("{started} (any)")), "it has ended");
    }

    #[test]
    fn nobody_waits_for_who_looks_around_for_long() {
        let (_gate, shut) = mpsc::channel::<()>();
        assert_eq!(in_time(move || shut.recv().is_ok()), None);
        assert_eq!(in_time(|| 1), Some(1));
    }

    #[test]
    fn one_that_is_waited_for_without_end_keeps_nobody_from_the_others() {
        let me = std::process::id().to_string();
        let is_me = me.clone();
        let holds = move |process: &Path| {
            while process.ends_with("1") {
                thread::park();
            }
            process.ends_with(&is_me)
        };
        let found = name_in_time(holds);
        assert!(found.iter().any(|user| user.starts_with(&format!("{me} ("))), "{found:?}");
    }

    #[test]
    fn reads_mappings() {
        let maps =
            b"7f00-7f01 rw-s 00000000 00:21 12                 /mnt/t/a b (deleted)\n7f02-7f03 rw-p 00000000 00:00 0\n";
        assert!(maps_within(maps, Path::new("/mnt/t")));
        assert!(!maps_within(maps, Path::new("/mnt/u")));
    }

    #[test]
    fn sees_what_lies_within() {
        let root = Path::new("/mnt/t");
        assert!(shown_within(OsStr::new("/mnt/t"), root));
        assert!(shown_within(OsStr::new("/mnt/t/x (deleted)"), root));
        assert!(shown_within(OsStr::new("/mnt/t (deleted)"), root));
        assert!(!shown_within(OsStr::new("/mnt/tx"), root));
        assert!(!shown_within(OsStr::new("socket:[12]"), root));
    }
}
