//! What a carrier that is locked in has done outside: by processes that were started before, and that do these few
//! things for its pool and no others, whoever asks. Where the pool is mounted they find out themselves.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// No errand is told in more bytes.
const ERRAND: u64 = 64 << 10;

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Errand {
    /// Start what fetches the files of the mount that are away.
    Bring,
    /// Say which files the server of the mount knows to be damaged.
    Known,
    /// Have one of them mended.
    Mend {
        /// Where it is.
        path: Vec<u8>,
        /// Its number.
        ino: u64,
    },
    /// Say when files were used.
    Uses,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// It is done.
    Done,
    /// What a program has said.
    Said {
        /// Whether it has ended well.
        is_well: bool,
        /// On standard output.
        output: Vec<u8>,
        /// On standard error.
        error: Vec<u8>,
    },
    /// Files by their numbers, and seconds since 1970.
    Used(Vec<(u64, i64)>),
    /// Why it is not done.
    Failed(String),
}

/// A process that does it, with the rights and the priority that its starter had then. It ends with him.
#[derive(Clone, Debug)]
pub struct Outside(Arc<Mutex<Pipes>>);

#[derive(Debug)]
struct Pipes {
    asks: ChildStdin,
    answers: BufReader<ChildStdout>,
    /// It is waited for by nobody: this process ends before it.
    _child: Child,
}

impl Outside {
    /// Starts one for a pool.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(pool: &Path) -> Result<Self> {
        let failed = |source| Error::Host { path: "tensorfs-carrier outside".into(), what: "start", source };
        let mut command = Command::new("/proc/self/exe");
        command.arg0("tensorfs-carrier").args(["outside", "--"]).arg(pool);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        // SAFETY: prctl(2) may be called between fork and exec.
        unsafe {
            command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            });
        }
        let mut child = command.spawn().map_err(failed)?;
        let (Some(asks), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(failed(io::ErrorKind::BrokenPipe.into()));
        };
        Ok(Self(Arc::new(Mutex::new(Pipes { asks, answers: BufReader::new(answers), _child: child }))))
    }

    /// Has something done, and waits for it.
    ///
    /// # Errors
    /// The process is gone, or does not speak as it should.
    pub fn ask(&self, errand: &Errand) -> io::Result<Answer> {
        let mut line = serde_json::to_vec(errand)?;
        line.push(b'\n');
        let mut pipes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        pipes.asks.write_all(&line)?;
        let mut line = String::new();
        match pipes.answers.read_line(&mut line)? {
            0 => Err(io::Error::other("the process that does it is gone")),
            _ => Ok(serde_json::from_str(&line)?),
        }
    }
}

/// Does what is asked for on standard input, a line each, until nobody asks any more.
///
/// # Errors
/// What is asked cannot be read, or nobody reads the answer.
pub fn serve(pool: &Path, run: impl Fn(&Errand, &Path) -> io::Result<Answer>) -> io::Result<()> {
    let mut asked = io::stdin().lock();
    loop {
        let mut line = Vec::new();
        let len = (&mut asked).take(ERRAND).read_until(b'\n', &mut line)?;
        if len == 0 {
            return Ok(());
        }
        let errand: Errand = serde_json::from_slice(&line)?;
        let done = mountpoint(pool).and_then(|at| run(&errand, &at));
        let answer = done.unwrap_or_else(|error| Answer::Failed(error.to_string()));
        let mut line = serde_json::to_vec(&answer)?;
        line.push(b'\n');
        let told = io::stdout().write_all(&line).and_then(|()| io::stdout().flush());
        match told {
            // Whoever asked was killed meanwhile.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            told => told?,
        }
    }
}

/// Where a pool is mounted: what stands in its directory says where to look, and whoever asks may write that. So it
/// counts if the kernel says that this very pool is what is mounted there.
fn mountpoint(pool: &Path) -> io::Result<PathBuf> {
    let not_mounted = || io::Error::other("it is not mounted");
    let holder = tensorfs_layout::pool::holder(pool).ok().flatten();
    let at = holder.and_then(|holder| holder.mountpoint).ok_or_else(not_mounted)?;
    let (pool, mounts) = (fs::canonicalize(pool)?, fs::read("/proc/self/mountinfo")?);
    if is_mounted(&mounts, &pool, &at) { Ok(at) } else { Err(not_mounted()) }
}

/// Whether the last line of proc_pid_mountinfo(5) about a place says that a pool is mounted there.
fn is_mounted(mounts: &[u8], pool: &Path, at: &Path) -> bool {
    let is_told = |field: &[u8], path: &Path| told_as(path) == field;
    let lines = mounts.split(|byte| *byte == b'\n').map(|line| line.split(|byte| *byte == b' ').collect::<Vec<_>>());
    let there = lines.rev().find(|fields| fields.get(4).is_some_and(|field| is_told(field, at)));
    there.is_some_and(|fields| {
        let behind = fields.iter().position(|field| *field == b"-").and_then(|dash| fields.get(dash + 1..dash + 3));
        matches!(behind, Some([b"fuse.tensorfs", source]) if is_told(source, pool))
    })
}

/// A path as it stands there.
fn told_as(path: &Path) -> Vec<u8> {
    let mut told = Vec::new();
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b' ' | b'\t' | b'\n' | b'\\' | b'#' => told.extend(format!("\\{byte:03o}").bytes()),
            byte => told.push(*byte),
        }
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_is_mounted_where_the_kernel_says_so() {
        let mounts = b"20 1 0:1 / / rw - ext4 /dev/vda rw\n\
            30 20 0:40 / /mnt/a\\040b rw,nosuid shared:1 - fuse.tensorfs /pools/p rw\n\
            31 20 0:41 / /mnt/c rw - fuse.tensorfs /pools/p rw\n\
            32 31 0:42 / /mnt/c rw - tmpfs /pools/p rw\n\
            33 20 0:43 / /mnt/d rw - fuse.other /pools/p rw\n";
        let is_at = |pool: &str, at: &str| is_mounted(mounts, Path::new(pool), Path::new(at));
        assert!(is_at("/pools/p", "/mnt/a b"));
        assert!(!is_at("/pools/q", "/mnt/a b"));
        for at in ["/", "/mnt/c", "/mnt/d", "/mnt", "/mnt/a"] {
            assert!(!is_at("/pools/p", at), "{at}");
        }
    }
}
