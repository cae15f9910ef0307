//! Asking a server that may hang. Whoever asks one cannot be ended then, not even by SIGKILL: the kernel waits for an
//! answer to what a server has been given. So a process of its own asks, which is left behind if that takes too long:
//! what this one has open, be it what a mount is served by, ends with this one.

use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use nix::unistd::{Uid, User};
use serde::de::DeserializeOwned;

use crate::show::failure::reason;

/// So many processes may be left behind at a time.
const MOST: usize = 8;
static LEFT: AtomicUsize = AtomicUsize::new(0);

/// So long an answer is waited for.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// What is read of an answer.
const LONGEST: u64 = 64 << 20;

/// What this program says, as JSON, when it is started with these arguments; or why it says nothing.
pub fn ask<T: DeserializeOwned>(arguments: &[&OsStr], patience: Duration) -> Result<T, String> {
    answer(arguments, None, patience)
}

/// As [`ask`], but a process of another user's does so, who may trace it: what it says counts as his.
pub fn ask_as<T: DeserializeOwned>(user: u32, arguments: &[&OsStr], patience: Duration) -> Result<T, String> {
    answer(arguments, Some(user), patience)
}

fn answer<T: DeserializeOwned>(arguments: &[&OsStr], user: Option<u32>, patience: Duration) -> Result<T, String> {
    let cannot = |error: io::Error| format!("cannot ask: {}", reason(&error));
    if LEFT.load(Relaxed) >= MOST {
        return Err(format!("{MOST} processes that have asked still wait for servers that do not answer"));
    }
    let mut asking = Command::new("/proc/self/exe");
    asking.arg0("tensorfs").args(arguments);
    asking.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    if let Some(user) = user {
        let group = User::from_uid(Uid::from_raw(user)).ok().flatten().map_or(user, |found| found.gid.as_raw());
        // Without root's environment and further groups.
        asking.uid(user).gid(group).env_clear().current_dir("/");
    }
    let (tell, hear) = channel();
    let mut child = asking.spawn().map_err(cannot)?;
    let mut pipe = child.stdout.take().ok_or_else(|| cannot(io::ErrorKind::BrokenPipe.into()))?;
    let said = thread::Builder::new().spawn(move || {
        let mut text = String::new();
        let read = pipe.by_ref().take(LONGEST).read_to_string(&mut text);
        // Nobody may listen any more.
        let _ = tell.send(read.map(|_| text));
    });
    said.map_err(cannot)?;
    let answer = match hear.recv_timeout(patience) {
        Ok(Ok(text)) => serde_json::from_str(&text).map_err(|_| "whoever asked ended without an answer".to_owned()),
        Ok(Err(error)) => Err(cannot(error)),
        Err(_) => Err(format!("the server did not answer within {} s", patience.as_secs_f64())),
    };
    // It is waited for beside: it may be held for as long as the server is.
    let _ = child.kill();
    LEFT.fetch_add(1, Relaxed);
    let waiting = thread::Builder::new().spawn(move || {
        let _ = child.wait();
        LEFT.fetch_sub(1, Relaxed);
    });
    if waiting.is_err() {
        LEFT.fetch_sub(1, Relaxed);
    }
    answer
}
