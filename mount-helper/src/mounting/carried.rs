//! The carrier of a pool that is mounted with `carry`, as a process: started as the pool's owner, heard, and ended.

use std::ffi::{OsStr, OsString};
use std::io::{self, BufRead, BufReader};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use log::Level;
use nix::fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::fstat;
use nix::unistd::{Pid, Uid, User, geteuid};

use crate::mounting::process::Process;
use crate::show::{logging, text};

/// So long one has to end that is told to: what it was doing is gone on with by the next one.
const TO_END: Duration = Duration::from_secs(2);
/// So much of a line is logged.
const LINE: usize = 1000;
/// And so many of them a minute.
const LINES: u32 = 200;
const MINUTE: Duration = Duration::from_secs(60);

/// What the owner of the pool gets of the environment of whoever mounts, who is root and may have other secrets in it:
/// how stores are reached, and the credentials for them.
const HANDED: [&str; 14] = [
    "PATH",
    "LANG",
    "TZ",
    "RUST_LOG",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "no_proxy",
];
/// And all that begins so.
const OF_STORES: [&str; 3] = ["AWS_", "GOOGLE_", "AZURE_"];

/// Which directory a pool is, and whose. Whose rights a carrier has must not be for the owner to choose by what he puts
/// in the pool's place later.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Whose {
    directory: (u64, u64),
    owner: u32,
    group: u32,
}

impl Whose {
    /// Of a path without links: nobody can have another one's directory stand there.
    fn of(pool: &Path) -> io::Result<Self> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let how = OpenHow::new().flags(flags).resolve(ResolveFlag::RESOLVE_NO_SYMLINKS);
        let found = fstat(openat2(AT_FDCWD, pool, how)?)?;
        Ok(Self { directory: (found.st_dev, found.st_ino), owner: found.st_uid, group: found.st_gid })
    }
}

/// One that runs.
pub struct Carried {
    child: Child,
    handle: Process,
    since: Instant,
}

impl Carried {
    /// Starts one, with the rights of the pool's owner. It ends with this thread, however that ends.
    pub fn start(
        mut carrier: Command,
        (pool, whose): (&Path, &mut Option<Whose>),
        keep: Option<u32>,
    ) -> io::Result<Self> {
        carrier.arg("carry").arg("--watch");
        if let Some(days) = keep {
            carrier.arg(format!("--keep={days}"));
        }
        carrier.arg("--").arg(pool).current_dir("/");
        carrier.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let found = Whose::of(pool)?;
        if *whose.get_or_insert(found) != found {
            return Err(io::Error::other("another directory has its path by now, or it has another owner"));
        }
        let Whose { owner, group, .. } = found;
        if geteuid().is_root() && owner != 0 {
            // Without further groups.
            carrier.uid(owner).gid(group).env_clear().envs(std::env::vars_os().filter(|(name, _)| is_handed(name)));
            carrier.env("HOME", home_of(owner));
        }
        // SAFETY: prctl(2) may be called between fork and exec. The rights are the owner's by then.
        unsafe {
            carrier.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            });
        }
        let mut child = carrier.spawn()?;
        let heard = match (Process::open(child.id()), child.stderr.take()) {
            (Ok(handle), Some(says)) => hear(says).map(|()| handle),
            (Err(error), _) => Err(error),
            (_, None) => Err(io::ErrorKind::BrokenPipe.into()),
        };
        match heard {
            Ok(handle) => Ok(Self { child, handle, since: Instant::now() }),
            Err(error) => {
                let _ = child.kill().and_then(|()| child.wait());
                Err(error)
            }
        }
    }

    /// For how long it has been there.
    pub fn age(&self) -> Duration {
        self.since.elapsed()
    }

    /// How it has ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Ends it: whoever waits for that waits a moment.
    pub fn end(mut self) {
        // Fails only if it has ended, which is seen.
        let _ = kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGTERM);
        if !matches!(self.handle.wait(TO_END), Ok(true)) {
            let _ = self.child.kill();
        }
        // One that even this does not end waits for a host that does not answer.
        let _ = self.handle.wait(TO_END);
        let _ = self.child.try_wait();
    }
}

/// Readable once it has ended.
impl AsFd for Carried {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }
}

fn is_handed(name: &OsStr) -> bool {
    HANDED.iter().any(|one| name == *one) || OF_STORES.iter().any(|of| name.as_bytes().starts_with(of.as_bytes()))
}

fn home_of(user: u32) -> OsString {
    let found = User::from_uid(Uid::from_raw(user)).ok().flatten();
    found.map_or_else(|| "/".into(), |found| found.dir.into())
}

/// What it says is logged here.
fn hear(says: ChildStderr) -> io::Result<()> {
    let mut says = BufReader::new(says);
    let told = move || {
        let (mut since, mut count) = (Instant::now(), 0_u32);
        while let Ok(Some(line)) = line_of(&mut says) {
            if since.elapsed() >= MINUTE {
                (since, count) = (Instant::now(), 0);
            }
            count = count.saturating_add(1);
            if count > LINES {
                if count == LINES + 1 {
                    log::warn!(
                        "carrier: it says more than {LINES} lines a minute; the rest of this minute is left out"
                    );
                }
                continue;
            }
            let line = String::from_utf8_lossy(&line);
            let (level, said) = taken_apart(&line);
            logging::find_again();
            log::log!(level, "carrier: {}", text::plain(&said.chars().take(LINE).collect::<String>()));
        }
    };
    thread::Builder::new().name("hears".to_owned()).spawn(told).map(drop)
}

/// The next line, or as much of it as is logged: whoever says it may not be who was started. Nothing at the end.
fn line_of(says: &mut impl BufRead) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    loop {
        let some = says.fill_buf()?;
        if some.is_empty() {
            return Ok((!line.is_empty()).then_some(line));
        }
        let end = some.iter().position(|byte| *byte == b'\n');
        let (len, used) = (end.unwrap_or(some.len()), end.map_or(some.len(), |end| end + 1));
        line.extend_from_slice(&some[..len.min(4 * LINE - line.len())]);
        says.consume(used);
        if end.is_some() {
            return Ok(Some(line));
        }
    }
}

/// Its lines begin with when and how bad; when, the log says itself.
fn taken_apart(line: &str) -> (Level, &str) {
    let parts = line.strip_prefix('[').and_then(|rest| rest.split_once("] "));
    let level = parts.and_then(|(head, _)| head.split(' ').next_back()?.parse().ok());
    match (parts, level) {
        (Some((_, said)), Some(level)) => (level, said),
        _ => (Level::Warn, line),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_it_says_is_as_bad_as_it_says() {
        assert_eq!(taken_apart("[2026-11-29T10:00:00Z ERROR] a] b"), (Level::Error, "a] b"));
        assert_eq!(taken_apart("tensorfs remote: [x] y"), (Level::Warn, "tensorfs remote: [x] y"));
        assert_eq!(taken_apart("[x] y"), (Level::Warn, "[x] y"));
    }

    #[test]
    fn of_what_it_says_no_more_is_kept_than_is_logged() {
        let said = [&vec![b'x'; 100_000][..], b"\nshort\n\nlast"].concat();
        let mut says = BufReader::with_capacity(700, &said[..]);
        let mut lines = std::iter::from_fn(|| line_of(&mut says).unwrap());
        assert_eq!(lines.next().map(|line| line.len()), Some(4 * LINE));
        assert_eq!(lines.collect::<Vec<_>>(), [&b"short"[..], b"", b"last"]);
    }

    /// Whatever gets its path: whose rights its carrier has is decided once.
    #[test]
    fn another_directory_in_the_place_of_a_pool_is_carried_with_nobodys_rights() {
        let room = tempfile::tempdir().unwrap();
        let room = room.path().canonicalize().unwrap();
        let (pool, other) = (room.join("pool"), room.join("other"));
        std::fs::create_dir(&pool).unwrap();
        let mut whose = Some(Whose::of(&pool).unwrap());
        let mut start = || Carried::start(Command::new("/bin/true"), (&pool, &mut whose), None);
        start().unwrap().end();
        std::fs::rename(&pool, &other).unwrap();
        std::os::unix::fs::symlink(&other, &pool).unwrap();
        assert_eq!(start().err().and_then(|error| error.raw_os_error()), Some(libc::ELOOP));
        std::fs::remove_file(&pool).unwrap();
        std::fs::create_dir(&pool).unwrap();
        assert!(start().is_err());
        std::fs::remove_dir(&pool).unwrap();
        std::fs::rename(&other, &pool).unwrap();
        start().unwrap().end();
    }

    #[test]
    fn of_roots_environment_the_owner_gets_what_is_for_stores() {
        let handed = ["AWS_SECRET_ACCESS_KEY", "GOOGLE_APPLICATION_CREDENTIALS", "https_proxy", "PATH"];
        assert!(handed.iter().all(|name| is_handed(name.as_ref())));
        let kept = ["HOME", "SECRET_AWS_", "SSH_AUTH_SOCK", "LD_PRELOAD", "NOTIFY_SOCKET"];
        assert!(!kept.iter().any(|name| is_handed(name.as_ref())));
    }
}
