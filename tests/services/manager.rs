//! A service manager, as far as a unit of tensorfs has to do with it: it hears what it is told (sd_notify(3)), keeps
//! descriptors, and gives them to what it starts (sd_listen_fds(3)); and it restarts, stops and kills as systemd does
//! with `Type=notify`, `KillMode=mixed` and `ExecStop=`.

use std::fs::{self, File};
use std::io::IoSliceMut;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Output, Stdio};

use nix::fcntl::{FcntlArg, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
use tempfile::TempDir;
use tensorfs_tests::{Mount, scratch, unmounting, wait_for_end, wait_until};

use super::host::Host;
use super::service::Service;

pub const UNIT: &str = "tensorfs@test.service";

/// What is kept, with its name.
pub type Store = Vec<(String, OwnedFd)>;

/// What is of one unit.
struct Unit {
    socket: UnixDatagram,
    store: Store,
    said: Vec<String>,
}

pub struct Manager {
    room: TempDir,
    host: Host<Vec<Unit>>,
    unit: usize,
    main: Option<Child>,
}

impl Manager {
    pub fn new() -> Self {
        Self::on(Host::begin())
    }

    /// Of another unit.
    pub fn beside(&self) -> Self {
        Self::on(self.host.clone())
    }

    fn on(host: Host<Vec<Unit>>) -> Self {
        let room = scratch();
        // What systemctl says of the unit.
        let script = "#!/bin/sh\ncat \"$(dirname \"$0\")/$1\"\n";
        fs::write(room.path().join("systemctl"), script).unwrap();
        fs::set_permissions(room.path().join("systemctl"), PermissionsExt::from_mode(0o755)).unwrap();
        let path = room.path().join("notify");
        let unit = host.run(move |units| {
            let socket = UnixDatagram::bind(path).unwrap();
            socket.set_nonblocking(true).unwrap();
            units.push(Unit { socket, store: Store::new(), said: Vec::new() });
            units.len() - 1
        });
        Self { room, host, unit, main: None }
    }

    /// What it keeps, to be looked at and changed.
    pub fn store<T: Send + 'static>(&self, look: impl FnOnce(&mut Store) -> T + Send + 'static) -> T {
        let unit = self.unit;
        self.host.run(move |units| look(&mut units[unit].heard().store))
    }

    /// What this and another one keep.
    pub fn both(&self, other: &Self, look: impl FnOnce(&mut Store, &mut Store) + Send + 'static) {
        let (unit, other) = (self.unit, other.unit);
        self.host.run(move |units| {
            let [own, theirs] = units.get_disjoint_mut([unit, other]).unwrap();
            look(&mut own.heard().store, &mut theirs.heard().store);
        });
    }

    /// Runs a command to its end.
    fn run(&self, mut command: Command) -> Output {
        self.host.run(move |_| command.output().unwrap())
    }

    fn command(&self, mount: &Mount, options: &[&str]) -> Command {
        let mounting = mount.mounting();
        let mut command = Command::new("sh");
        command.args(["-c", "LISTEN_PID=$$; export LISTEN_PID; exec \"$@\"", "sh"]);
        command.arg(mounting.get_program()).args(mounting.get_args()).arg("--foreground").args(options);
        let path = format!("{}:{}", self.room.path().display(), std::env::var("PATH").unwrap());
        command.env("PATH", path).env("NOTIFY_SOCKET", self.room.path().join("notify")).stdin(Stdio::null());
        command
    }

    /// Starts the main process.
    pub fn begin(&mut self, mount: &Mount, options: &[&str]) {
        let (mut command, unit) = (self.command(mount, options), self.unit);
        let errors = self.room.path().join("errors");
        command.stdout(Stdio::null());
        self.main = Some(self.host.run(move |units| {
            let unit = units[unit].heard();
            unit.said.clear();
            command.stderr(File::create(errors).unwrap());
            unit.start(command)
        }));
    }

    /// What the main process said that was started last, beside its log.
    pub fn errors(&self) -> String {
        fs::read_to_string(self.room.path().join("errors")).unwrap()
    }

    /// Waits for the end of the main process, and says whether that was in order.
    pub fn wait(&mut self) -> bool {
        self.main.take().unwrap().wait().unwrap().success()
    }

    /// The command of `ExecStop=`, as a job is run for the unit.
    pub fn stopping(&self, mount: &Mount, options: &[&str], job: &str) -> Output {
        let count = self.store(|store| store.len());
        fs::write(self.room.path().join("list-jobs"), format!("7 {UNIT} {job} running\n")).unwrap();
        fs::write(self.room.path().join("show"), format!("NFileDescriptorStore={count}\n")).unwrap();
        let mut command = self.command(mount, options);
        command.args(["--restarting", UNIT]);
        self.run(command)
    }

    /// `ExecStop=`, then SIGTERM if that has not ended it, and SIGKILL for what is left.
    fn end(&mut self, mount: &Mount, options: &[&str], job: &str) -> Output {
        let servers = servers(mount);
        let _unmounting = unmounting();
        let said = self.stopping(mount, options, job);
        let mut main = self.main.take().unwrap();
        if main.try_wait().unwrap().is_none() {
            kill(main.id() as i32, libc::SIGTERM);
        }
        main.wait().unwrap();
        servers.into_iter().for_each(finish);
        said
    }

    /// Kills all of the unit.
    pub fn kill(&mut self, mount: &Mount) {
        let servers = servers(mount);
        self.main.as_mut().unwrap().kill().unwrap();
        self.wait();
        servers.into_iter().for_each(finish);
    }
}

impl Service for Manager {
    fn main(&self) -> i32 {
        self.main.as_ref().unwrap().id() as i32
    }

    fn kept(&self) -> usize {
        self.store(|store| store.len())
    }

    fn start(&mut self, mount: &Mount, options: &[&str]) {
        self.begin(mount, options);
        wait_until("READY=1", || {
            assert_eq!(self.main.as_mut().unwrap().try_wait().unwrap(), None, "{}", mount.log());
            let unit = self.unit;
            self.host.run(move |units| units[unit].heard().said.iter().any(|line| line == "READY=1"))
        });
    }

    fn restart(&mut self, mount: &Mount, options: &[&str]) -> String {
        let said = self.end(mount, options, "restart");
        self.start(mount, options);
        String::from_utf8(said.stderr).unwrap()
    }

    fn kill_and_start(&mut self, mount: &Mount, options: &[&str]) {
        self.kill(mount);
        self.start(mount, options);
    }

    fn stop(&mut self, mount: &Mount) {
        self.end(mount, &[], "stop");
        self.store(Vec::clear);
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        if let Some(mut main) = self.main.take() {
            let _ = main.kill();
            let _ = main.wait();
        }
    }
}

/// Who serves a mount.
fn servers(mount: &Mount) -> Vec<i32> {
    let holder = tensorfs_layout::pool::holder(mount.pool()).unwrap();
    holder.map(|holder| holder.pid as i32).filter(|pid| *pid > 0).into_iter().collect()
}

pub fn kill(pid: i32, signal: i32) {
    // SAFETY: takes integers.
    unsafe { libc::kill(pid, signal) };
}

fn finish(pid: i32) {
    kill(pid, libc::SIGKILL);
    wait_for_end(pid);
}

impl Unit {
    /// When all that was said has been heard.
    fn heard(&mut self) -> &mut Self {
        while self.hear() {}
        self
    }

    /// Hears one message, if there is one.
    fn hear(&mut self) -> bool {
        let (mut bytes, mut space) = ([0; 4096], nix::cmsg_space!([RawFd; 64]));
        let mut buffer = [IoSliceMut::new(&mut bytes)];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        let heard = recvmsg::<()>(self.socket.as_raw_fd(), &mut buffer, Some(&mut space), flags);
        let Ok(heard) = heard else { return false };
        let (len, mut came) = (heard.bytes, Vec::new());
        for part in heard.cmsgs().unwrap() {
            if let ControlMessageOwned::ScmRights(numbers) = part {
                // SAFETY: the kernel has just opened them for this thread.
                came.extend(numbers.into_iter().map(|number| unsafe { OwnedFd::from_raw_fd(number) }));
            }
        }
        let text = String::from_utf8(bytes[..len].to_vec()).unwrap();
        let has = |line: &str| text.lines().any(|one| one == line);
        let name = text.lines().find_map(|line| line.strip_prefix("FDNAME=")).unwrap_or("stored").to_owned();
        if has("FDSTORE=1") {
            self.store.extend(came.drain(..).map(|one| (name.clone(), one)));
        }
        if has("FDSTOREREMOVE=1") {
            self.store.retain(|(other, _)| *other != name);
        }
        self.said.push(text);
        true
    }

    /// Starts a program with what is kept.
    fn start(&mut self, mut command: Command) -> Child {
        // What is at its end is kept no longer.
        self.store.retain(|(_, one)| {
            let mut polled = [PollFd::new(one.as_fd(), PollFlags::empty())];
            poll(&mut polled, PollTimeout::ZERO).unwrap_or(0) == 0
        });
        let names: Vec<&str> = self.store.iter().map(|(name, _)| &**name).collect();
        command.env("LISTEN_FDS", names.len().to_string()).env("LISTEN_FDNAMES", names.join(":"));
        // Above those that they become.
        let copy = |one: &OwnedFd| fcntl(one, FcntlArg::F_DUPFD_CLOEXEC(500)).unwrap();
        // SAFETY: the kernel has just opened it for this thread.
        let own = |number: RawFd| unsafe { OwnedFd::from_raw_fd(number) };
        let copies: Vec<OwnedFd> = self.store.iter().map(|(_, one)| own(copy(one))).collect();
        let numbers: Vec<RawFd> = copies.iter().map(AsRawFd::as_raw_fd).collect();
        let put = move || {
            for (at, number) in (3..).zip(&numbers) {
                // SAFETY: takes integers.
                if unsafe { libc::dup2(*number, at) } < 0 {
                    return Err(std::io::Error::last_os_error());
                }
            }
            Ok(())
        };
        // SAFETY: dup2(2) may be called between fork and exec.
        unsafe { command.pre_exec(put) };
        command.spawn().unwrap()
    }
}
