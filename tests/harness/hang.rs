//! A test that hangs for good: it is told what waits for what, and the test is ended, so that those behind it run.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crate::children::c_path;

/// Nothing that goes on takes so long, however busy the machine is, unless somebody made it longer.
fn for_good() -> Duration {
    let seconds = std::env::var("TENSORFS_HANG").map_or(15 * 60, |text| text.parse().expect("TENSORFS_HANG: seconds"));
    Duration::from_secs(seconds)
}

/// Where the mounts of tests are, by the threads that run these.
static MOUNTS: LazyLock<Mutex<HashMap<i32, Vec<PathBuf>>>> = LazyLock::new(Mutex::default);

fn mounts() -> std::sync::MutexGuard<'static, HashMap<i32, Vec<PathBuf>>> {
    MOUNTS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn this_thread() -> i32 {
    // SAFETY: takes nothing and always succeeds.
    unsafe { libc::gettid() }
}

/// The test of this thread has a mount here, until it ends.
pub(crate) fn note_mount(path: &Path) {
    if let Some(mounts) = mounts().get_mut(&this_thread()) {
        mounts.push(path.to_owned());
    }
}

/// Watches over the test that this thread runs.
pub(crate) struct Watch {
    thread: i32,
    _done: Sender<()>,
}

impl Watch {
    pub fn begin(test: &str) -> Self {
        let (done, ended) = channel();
        let (name, thread) = (test.to_owned(), this_thread());
        mounts().insert(thread, Vec::new());
        let for_good = for_good();
        thread::spawn(move || {
            if let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(for_good) {
                eprintln!("{name} has not ended in {} s; it is ended\n{}", for_good.as_secs(), report());
                end(thread);
            }
        });
        Self { thread, _done: done }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        mounts().remove(&self.thread);
    }
}

/// Whatever it waits for gives it an error: its mounts, and the programs that it has started.
fn end(thread: i32) {
    for path in mounts().get(&thread).into_iter().flatten() {
        let path = c_path(path);
        // SAFETY: plain system call with a NUL-terminated path.
        unsafe { libc::umount2(path.as_ptr(), libc::MNT_FORCE | libc::MNT_DETACH) };
    }
    let children = fs::read_to_string(format!("/proc/self/task/{thread}/children")).unwrap_or_default();
    for pid in children.split_whitespace().filter_map(|pid| pid.parse().ok()) {
        // SAFETY: plain system call. The pid is that of a child which that thread has not waited for.
        unsafe { libc::kill(pid, libc::SIGKILL) };
    }
}

/// What this process, its children and every server are doing.
fn report() -> String {
    let own = std::process::id();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut lines = String::new();
    for process in processes {
        let read = |name: &str| fs::read_to_string(process.path().join(name)).unwrap_or_default();
        let status = read("status");
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("?").trim();
        let is_own = [field("Pid:"), field("PPid:")].contains(&&*own.to_string());
        if !is_own && !field("Name:").starts_with("tensorfs") {
            continue;
        }
        let words = read("cmdline").replace('\0', " ");
        lines.push_str(&format!("process {} of {}: {words}\n", field("Pid:"), field("PPid:")));
        for task in fs::read_dir(process.path().join("task")).into_iter().flatten().flatten() {
            let read = |name: &str| fs::read_to_string(task.path().join(name)).unwrap_or_default();
            let stack = read("stack");
            let stack: Vec<&str> = stack.lines().filter_map(|line| line.split_whitespace().nth(1)).collect();
            let (name, call) = (read("comm"), read("syscall"));
            lines.push_str(&format!("  {}: call {}, in {}\n", name.trim(), call.trim(), stack.join(" < ")));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_has_this_process_and_its_children() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let is_whole =
            |report: &str| report.contains("sleep 1000") && report.contains(&format!("process {}", std::process::id()));
        // A program that is just being executed has no command line yet.
        let whole = (0..100).any(|_| is_whole(&report()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(whole);
    }

    #[test]
    fn who_waits_for_a_child_is_ended() {
        let (say, hear) = channel();
        let waiting = thread::spawn(move || {
            let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
            say.send(this_thread()).unwrap();
            child.wait().unwrap().success()
        });
        end(hear.recv().unwrap());
        assert!(!waiting.join().unwrap());
    }
}
