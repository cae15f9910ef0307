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

/// Whatever it waits for gives it an error: the programs that it has started, and its mounts. The programs first: they
/// would go on in the directories below the mounts, and say of these what is true of no mount.
fn end(thread: i32) {
    let children = fs::read_to_string(format!("/proc/self/task/{thread}/children")).unwrap_or_default();
    for pid in children.split_whitespace().filter_map(|pid| pid.parse().ok()) {
        // SAFETY: plain system call. The pid is that of a child which that thread has not waited for.
        unsafe { libc::kill(pid, libc::SIGKILL) };
    }
    for path in mounts().get(&thread).into_iter().flatten() {
        let path = c_path(path);
        // SAFETY: plain system call with a NUL-terminated path.
        unsafe { libc::umount2(path.as_ptr(), libc::MNT_FORCE | libc::MNT_DETACH) };
    }
}

/// What this process, its children and every server are doing: what is looked for first, in so few words that a runner
/// that shows the end of the output, or a part, has it.
fn report() -> String {
    let own = std::process::id().to_string();
    let mut processes: Vec<(usize, String)> = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|process| doing(&process.path(), &own))
        .collect();
    processes.sort_by_key(|(rank, _)| *rank);
    processes.into_iter().map(|(_, text)| text).collect()
}

/// What a process is doing, and whether that is told first.
fn doing(process: &Path, own: &str) -> Option<(usize, String)> {
    /// Of a stack, the calls that say what is waited for.
    const CALLS: usize = 4;
    let read = |path: &Path, name: &str| fs::read_to_string(path.join(name)).unwrap_or_default();
    let status = read(process, "status");
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("?").trim();
    let (pid, parent, is_server) = (field("Pid:"), field("PPid:"), field("Name:").starts_with("tensorfs"));
    let rank = [parent == own, pid == own, is_server].into_iter().position(|is_it| is_it)?;
    let words = read(process, "cmdline").replace('\0', " ");
    let mut text = format!("process {pid} of {parent}: {words}\n");
    for task in fs::read_dir(process.join("task")).into_iter().flatten().flatten() {
        let read = |name: &str| read(&task.path(), name);
        let (name, call, stack) = (read("comm"), read("syscall"), read("stack"));
        let calls: Vec<&str> = stack.lines().filter_map(|line| line.split_whitespace().nth(1)).take(CALLS).collect();
        // Most threads of a server wait for work.
        if rank == 2 && calls.first().is_some_and(|call| call.starts_with("futex_")) {
            continue;
        }
        let call = call.split(' ').take(4).collect::<Vec<_>>().join(" ");
        text.push_str(&format!("  {}: call {}, in {}\n", name.trim(), call.trim(), calls.join(" < ")));
    }
    Some((rank, text))
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
