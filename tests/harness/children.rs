//! Other programs and helper processes.

use std::ffi::CString;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

/// A path as C takes it.
pub fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).expect("no NUL in a path")
}

/// Runs a command to its end.
pub fn run(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).output().unwrap_or_else(|e| panic!("{command:?}: {e}"))
}

/// Runs a command that must succeed; returns what it printed.
#[track_caller]
pub fn run_ok(command: &mut Command) -> String {
    let output = run(command);
    assert!(
        output.status.success(),
        "{command:?}: {}\n--- stdout\n{}\n--- stderr\n{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs a shell script in `directory`, ended by the first command that fails.
#[track_caller]
pub fn shell(directory: &Path, script: &str) -> String {
    run_ok(
        Command::new("bash")
            .args(["-euo", "pipefail", "-c", script])
            .current_dir(directory)
            .env("LC_ALL", "C")
            .env("HOME", directory)
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_AUTHOR_NAME", "A")
            .env("GIT_AUTHOR_EMAIL", "a@example.org")
            .env("GIT_COMMITTER_NAME", "A")
            .env("GIT_COMMITTER_EMAIL", "a@example.org"),
    )
}

/// A command of somebody who is in one group only: what to run is still to be said. Only root can become somebody else.
pub fn as_user(uid: u32, gid: u32) -> Command {
    let mut command = Command::new("setpriv");
    command.args([&format!("--reuid={uid}"), &format!("--regid={gid}"), "--clear-groups"]);
    command
}

/// A helper process (`tensorfs-test-child`) that is told what to do line by line.
#[derive(Debug)]
pub struct Child {
    process: std::process::Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

/// Starts a helper process; see `harness/bin/child.rs` for what it can do.
pub fn child<S: AsRef<std::ffi::OsStr>>(arguments: impl IntoIterator<Item = S>) -> Child {
    start("tensorfs-test-child", arguments)
}

/// Starts a program that cargo built beside the running test, to speak with it line by line.
pub fn start<S: AsRef<std::ffi::OsStr>>(name: &str, arguments: impl IntoIterator<Item = S>) -> Child {
    let mut process = program(name)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|e| panic!("start {name}: {e}"));
    Child { stdin: process.stdin.take(), stdout: BufReader::new(process.stdout.take().unwrap()), process }
}

/// A program that cargo built beside the running test, to be run.
pub fn program(name: &str) -> Command {
    Command::new(program_path(name))
}

/// Makes a program that is to be executed. Another process writes it: a file that this one has open for writing is so
/// in each child, too, until that executes its program, and "text file busy" until then.
#[track_caller]
pub fn write_program(path: &Path, bytes: &[u8]) {
    let mut writer = Command::new("sh");
    writer.args(["-c", "cat >\"$0\" && chmod 755 \"$0\""]).arg(path).stdin(Stdio::piped());
    let mut writer = writer.spawn().unwrap_or_else(|e| panic!("start sh: {e}"));
    writer.stdin.take().unwrap().write_all(bytes).unwrap();
    assert!(writer.wait().unwrap().success(), "{}: cannot be written", path.display());
}

/// Copies a program that is to be executed.
#[track_caller]
pub fn copy_program(from: impl AsRef<Path>, to: &Path) {
    write_program(to, &std::fs::read(from).unwrap());
}

/// Where it is.
pub(crate) fn program_path(name: &str) -> PathBuf {
    let mut path = std::env::current_exe().expect("the test's own path");
    path.pop();
    if path.ends_with("deps") {
        path.pop();
    }
    path.join(name)
}

impl Child {
    /// Process id.
    pub fn pid(&self) -> i32 {
        self.process.id() as i32
    }

    /// Sends a line, returns the answer.
    #[track_caller]
    pub fn ask(&mut self, line: &str) -> String {
        self.tell(line);
        self.answer()
    }

    /// Sends a line.
    #[track_caller]
    pub fn tell(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().expect("the child's input is open");
        writeln!(stdin, "{line}").expect("tell the child");
    }

    /// Waits for a line.
    #[track_caller]
    pub fn answer(&mut self) -> String {
        self.try_answer().unwrap_or_else(|ended| panic!("{ended}"))
    }

    /// Waits for a line, or says what became of the child instead.
    pub fn try_answer(&mut self) -> Result<String, String> {
        let mut answer = String::new();
        self.stdout.read_line(&mut answer).expect("child's answer");
        match answer.ends_with('\n') {
            true => Ok(answer.trim_end().to_owned()),
            false => Err(format!("the child ended instead of answering: {:?}", self.process.wait())),
        }
    }

    /// Ends it by closing its input; it must succeed.
    #[track_caller]
    pub fn end(mut self) {
        self.stdin = None;
        let status = self.process.wait().expect("wait for the child");
        assert!(status.success(), "child: {status}");
    }

    /// Waits for it without closing its input first.
    pub fn wait(mut self) -> ExitStatus {
        self.process.wait().expect("wait for the child")
    }

    /// Kills it with a signal, as a crash would.
    pub fn kill(mut self, signal: i32) {
        // SAFETY: plain system call; the process is ours and not yet reaped.
        assert_eq!(unsafe { libc::kill(self.pid(), signal) }, 0);
        let status = self.process.wait().expect("wait for the child");
        assert_eq!(status.signal(), Some(signal), "{status}");
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // After a failed assertion; does nothing to a child that has ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Whether a process, which need not be our child, is gone, or is a zombie that nobody has reaped yet. The first thread
/// can be a zombie while others still hold a pool, so all of them are looked at.
pub fn has_ended(pid: i32) -> bool {
    let ended = |task: &Path| {
        let status = std::fs::read_to_string(task.join("status")).unwrap_or_default();
        match status.lines().find_map(|line| line.strip_prefix("State:")) {
            Some(state) => state.trim_start().starts_with(['Z', 'X']),
            None => true,
        }
    };
    match std::fs::read_dir(format!("/proc/{pid}/task")) {
        Ok(tasks) => tasks.flatten().all(|task| ended(&task.path())),
        Err(_) => true,
    }
}

/// Waits until a process [has ended](has_ended).
pub fn wait_for_end(pid: i32) {
    while !has_ended(pid) {
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Waits for what another process is about to do. The limit only ends a test that has failed.
#[track_caller]
pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    for _ in 0..30_000 {
        if done() {
            return;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    panic!("{what}: not after a minute");
}
