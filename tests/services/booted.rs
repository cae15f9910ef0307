//! A real systemd: the first process of its own namespaces, on the files of this machine, with a test's units and no
//! others. A test runs twice: as it is, where it makes the namespaces and runs itself in there, and in there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use tempfile::TempDir;
use tensorfs_tests::{Mount, Setup, is_root, nobody_unmounts, run, scratch, wait_for_end, wait_until};

use super::host::Host;
use super::service::Service;

/// What a test that asks for it sets.
const WANTED: &str = "TENSORFS_SYSTEMD";
/// What says in the namespaces where the units are.
const ROOM: &str = "TENSORFS_SYSTEMD_ROOM";
/// Where distributions have it.
const PROGRAMS: [&str; 2] = ["/usr/lib/systemd/systemd", "/lib/systemd/systemd"];
/// The units, as they are installed.
const UNITS: [(&str, &str); 3] = [
    ("tensorfs@.service", include_str!("../../examples/systemd/tensorfs@.service")),
    ("tensorfs-scrub@.service", include_str!("../../examples/systemd/tensorfs-scrub@.service")),
    ("tensorfs-scrub@.timer", include_str!("../../examples/systemd/tensorfs-scrub@.timer")),
];
/// The only instance.
pub const NAME: &str = "tensorfs@test.service";

/// Makes the namespaces. `$1` is the program, `$2` the room.
const BOOT: &str = r#"
set -e
mkdir "$2/cgroup"
mount -t cgroup2 cgroup2 "$2/cgroup"
mkdir "$2/cgroup/$3"
echo $$ > "$2/cgroup/$3/cgroup.procs"
# Mounts of other tests are none of its business.
while read -r _ _ _ _ at _; do case $at in */mnt) umount -l "$at" ;; esac; done </proc/self/mountinfo
exec unshare --cgroup --pid --ipc --uts --fork --kill-child sh -ec '
    umount "$2/cgroup"
    mount -t proc proc /proc
    # What is there is for the whole machine.
    mount --bind /proc/sys /proc/sys
    mount -o remount,bind,ro /proc/sys
    umount -R /sys/fs/cgroup
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
    mount -t tmpfs -o mode=755 tmpfs /run
    exec "$1" --system --unit=tensorfs-test.target --log-target=console --show-status=0 \
        --default-standard-output=null
' sh "$@"
"#;

/// The service manager of the namespaces that this process is in.
pub struct Systemd {
    room: PathBuf,
    /// How much of what the unit's processes have said was read.
    read: usize,
    host: Host<()>,
}

/// Ends all of it.
struct Booted {
    room: TempDir,
    made: Child,
    first: i32,
}

impl Booted {
    fn boot() -> Self {
        let program = PROGRAMS.into_iter().find(|path| Path::new(path).exists()).expect("a systemd");
        let room = scratch();
        let units = room.path().join("units");
        let dropped = units.join("tensorfs@.service.d");
        fs::create_dir_all(&dropped).unwrap();
        for target in ["tensorfs-test", "sysinit", "basic", "shutdown"] {
            fs::write(units.join(format!("{target}.target")), "[Unit]\nDefaultDependencies=no\n").unwrap();
        }
        let at = room.path().display();
        fs::write(dropped.join("said.conf"), format!("[Service]\nStandardError=append:{at}/said\n")).unwrap();
        let own = tensorfs_tests::tensorfs().get_program().to_str().unwrap().to_owned();
        for (name, unit) in UNITS {
            let unit = unit.replace("/usr/bin/tensorfs", &own).replace("/etc/tensorfs", at.to_string().as_str());
            fs::write(units.join(name), unit).unwrap();
        }
        fs::write(room.path().join("said"), "").unwrap();
        let log = fs::File::create(room.path().join("systemd")).unwrap();
        let alone = nobody_unmounts();
        let made = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-c", BOOT, "sh", program])
            .arg(room.path())
            .arg(cgroup_of(room.path()))
            .env("container", "test")
            .env("SYSTEMD_UNIT_PATH", &units)
            .env("SYSTEMD_GENERATOR_PATH", "/var/empty")
            .env("SYSTEMD_ENVIRONMENT_GENERATOR_PATH", "/var/empty")
            .env("SYSTEMD_PROC_CMDLINE", "systemd.machine_id=11111111111111111111111111111111")
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut booted = Self { room, made, first: 0 };
        booted.wait();
        drop(alone);
        booted
    }

    /// Until it has started what it was to start.
    fn wait(&mut self) {
        wait_until("systemd", || {
            assert_eq!(self.made.try_wait().unwrap(), None, "it has ended");
            let is_active = |first: i32| run(enter(first).args(["systemctl", "is-active", "tensorfs-test.target"]));
            let first = self.child().filter(|first| is_active(*first).status.success());
            self.first = first.unwrap_or(0);
            first.is_some()
        });
    }

    /// What whoever makes the namespaces has started, and waits for.
    fn child(&self) -> Option<i32> {
        fs::read_to_string(format!("/proc/{0}/task/{0}/children", self.made.id())).ok()?.trim().parse().ok()
    }
}

impl Drop for Booted {
    fn drop(&mut self) {
        // One that waits for a mount could not be ended. Before it has started, it has mounts of others.
        let table = || fs::read_to_string(format!("/proc/{}/mountinfo", self.first)).unwrap_or_default();
        let table = if self.first > 0 { table() } else { String::new() };
        for line in table.lines().filter(|line| line.contains(" - fuse.tensorfs ")) {
            let number = line.split(' ').nth(2).and_then(|device| device.strip_prefix("0:")).unwrap();
            let _ = fs::write(format!("/sys/fs/fuse/connections/{number}/abort"), "1");
        }
        // All others of the namespace end with its first process, and that with whoever has made it.
        let first = self.child();
        let _ = self.made.kill();
        let _ = self.made.wait();
        if !std::thread::panicking() {
            first.into_iter().for_each(wait_for_end);
        }
        // The groups are gone through from below, again while one of them has a process that ends.
        let script = "mount -t cgroup2 cgroup2 \"$1/cgroup\"; n=0
            until find \"$1/cgroup/$2\" -depth -type d -exec rmdir {} +; do
                n=$((n + 1)); test $n -lt 200; sleep 0.05
            done";
        let mut remove = Command::new("unshare");
        remove.args(["--mount", "sh", "-ec", script, "sh"]).arg(self.room.path()).arg(cgroup_of(self.room.path()));
        if !std::thread::panicking() {
            let _alone = nobody_unmounts();
            let removed = run(&mut remove);
            assert!(removed.status.success(), "{removed:?}");
        } else {
            run(&mut remove);
            let text = |name| fs::read_to_string(self.room.path().join(name)).unwrap_or_default();
            eprintln!("--- systemd\n{}--- its unit\n{}---", text("systemd"), text("said"));
        }
    }
}

fn cgroup_of(room: &Path) -> String {
    format!("tensorfs-{}", room.file_name().unwrap().display())
}

/// Runs a program beside the first process of other namespaces.
fn enter(first: i32) -> Command {
    let mut command = Command::new("nsenter");
    command.args(["--all", "--target", &first.to_string(), "--"]);
    command
}

impl Systemd {
    /// One for a test, which runs in its namespaces; none where that is done, or cannot be.
    pub fn of(setup: &Setup) -> Option<Self> {
        if let Some(room) = std::env::var_os(ROOM) {
            return Some(Self { room: room.into(), read: 0, host: Host::begin() });
        }
        let why = match () {
            () if std::env::var_os(WANTED).is_none() => "starts a systemd: TENSORFS_SYSTEMD=1",
            () if !is_root() => "services here are root's",
            () if !PROGRAMS.iter().any(|path| Path::new(path).exists()) => "there is no systemd",
            () => {
                let booted = Booted::boot();
                let mut own = enter(booted.first);
                own.arg(std::env::current_exe().unwrap()).args([&setup.test_name(), "--exact", "--nocapture"]);
                // Its log may be about anything but what failed.
                let done = run(own.env(ROOM, booted.room.path()));
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                let said = format!("{}{}", text(&done.stdout), text(&done.stderr));
                eprint!("{said}");
                assert!(done.status.success() && said.contains("1 passed"), "{}", done.status);
                return None;
            }
        };
        setup.skip(why);
        None
    }

    /// Runs a program to its end, which has nothing open of what this process has.
    pub fn run(&self, program: &str, arguments: &[&str]) -> Output {
        let mut command = Command::new(program);
        command.args(arguments);
        self.host.run(move |_| run(&mut command))
    }

    /// Runs `systemctl`, which must succeed.
    #[track_caller]
    pub fn ctl(&self, arguments: &[&str]) -> String {
        let done = self.run("systemctl", arguments);
        assert!(done.status.success(), "{arguments:?}: {done:?}");
        String::from_utf8(done.stdout).unwrap()
    }

    /// A property of the unit.
    #[track_caller]
    pub fn property(&self, name: &str) -> String {
        self.property_of(NAME, name)
    }

    /// A property of another unit.
    #[track_caller]
    pub fn property_of(&self, unit: &str, name: &str) -> String {
        self.ctl(&["show", "--value", "--property", name, unit]).trim().to_owned()
    }

    /// Runs a job of the unit, and waits for its end.
    pub fn job(&self, kind: &str) -> Output {
        self.run("systemctl", &[kind, NAME])
    }

    /// More lines for the unit's section.
    pub fn change(&self, lines: &str) {
        self.change_of("tensorfs@.service", &format!("[Service]\n{lines}\n"));
    }

    /// More lines for another unit.
    pub fn change_of(&self, unit: &str, text: &str) {
        let dropped = self.room.join(format!("units/{unit}.d"));
        fs::create_dir_all(&dropped).unwrap();
        fs::write(dropped.join("more.conf"), text).unwrap();
        self.ctl(&["daemon-reload"]);
    }

    /// What the unit mounts, and how.
    pub fn configure(&self, mount: &Mount, options: &[&str]) {
        let mounting = mount.mounting();
        let own = mounting.get_args().skip(3).map(|word| word.to_str().unwrap());
        let options: Vec<&str> = own.chain(options.iter().copied()).collect();
        let (pool, at, options) = (mount.pool().display(), mount.path().display(), options.join(" "));
        let text = format!("POOL={pool}\nMOUNTPOINT={at}\nOPTIONS={options}\n");
        fs::write(self.room.join("test.conf"), text).unwrap();
    }

    /// What the unit's processes have said since this was asked last.
    pub fn said(&mut self) -> String {
        let said = fs::read_to_string(self.room.join("said")).unwrap();
        let new = said[self.read..].to_owned();
        self.read = said.len();
        new
    }
}

impl Service for Systemd {
    fn main(&self) -> i32 {
        self.property("MainPID").parse().unwrap()
    }

    fn kept(&self) -> usize {
        self.property("NFileDescriptorStore").parse().unwrap()
    }

    fn start(&mut self, mount: &Mount, options: &[&str]) {
        self.configure(mount, options);
        // A start would wait until it is started again anyway.
        let waits = self.property("SubState") == "auto-restart";
        let done = self.job(if waits { "restart" } else { "start" });
        assert!(done.status.success(), "{done:?}\n{}\n{}", self.said(), mount.log());
    }

    fn restart(&mut self, mount: &Mount, options: &[&str]) -> String {
        self.configure(mount, options);
        self.said();
        let done = self.job("restart");
        assert!(done.status.success(), "{done:?}\n{}\n{}", self.said(), mount.log());
        self.said()
    }

    fn kill_and_start(&mut self, mount: &Mount, options: &[&str]) {
        self.configure(mount, options);
        let before = self.main();
        self.ctl(&["kill", "--signal=KILL", NAME]);
        wait_until("another start", || {
            let now = self.property("MainPID");
            now != before.to_string() && now != "0" && self.property("ActiveState") == "active"
        });
    }

    fn stop(&mut self, mount: &Mount) {
        let done = self.job("stop");
        assert!(done.status.success(), "{done:?}\n{}\n{}", self.said(), mount.log());
        assert_eq!(self.property("ActiveState"), "inactive", "{}", mount.log());
    }
}
