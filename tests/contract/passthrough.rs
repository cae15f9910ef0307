//! Who moves the bytes of a file: the kernel or the server, the same for all who have it open.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use tensorfs_tests::{Mount, Passthrough, Pattern, Setup};

/// Runs a test of what only a mount with passthrough has to choose.
fn with_passthrough(name: &str, test: fn(Setup)) {
    Setup::run(name, Passthrough::On, test);
}

/// What the opens since the last time were: `k` for the kernel's, `s` for the server's.
struct Opens<'a> {
    mount: &'a Mount,
    kernel: u64,
    server: u64,
}

impl Opens<'_> {
    fn of(mount: &Mount) -> Opens<'_> {
        let mut opens = Opens { mount, kernel: 0, server: 0 };
        opens.since();
        opens
    }

    fn since(&mut self) -> String {
        let counters = self.mount.info()["counters"].clone();
        let (kernel, server) =
            (counters["opened_passthrough"].as_u64().unwrap(), counters["opened_server"].as_u64().unwrap());
        let new = "k".repeat((kernel - self.kernel) as usize) + &"s".repeat((server - self.server) as usize);
        (self.kernel, self.server) = (kernel, server);
        new
    }
}

impl Opens<'_> {
    /// Until nothing has the file open, says the server: RELEASE comes behind `close`, and a file that is open keeps
    /// its mode.
    fn settle(&mut self) {
        let opened = |_| File::open(self.mount.at("f")).map(drop).is_ok() && self.since() == "k";
        assert!((0..1000).any(opened), "the file keeps the server's mode");
    }
}

fn synchronous(mount: &Mount, flags: i32) -> File {
    OpenOptions::new().read(true).write(true).custom_flags(flags).open(mount.at("f")).unwrap()
}

/// Proves F2.
#[test]
fn the_first_open_decides() {
    with_passthrough("modes::the_first_open_decides", |setup| {
        let mount = setup.mount();
        std::fs::write(mount.at("f"), Pattern(1).bytes(0, 10_000)).unwrap();
        // The writer's RELEASE comes behind its `close`; what is sealed is open to nobody.
        mount.sync();
        mount.wait_for_seals(1);
        let mut opens = Opens::of(&mount);
        for flag in [libc::O_SYNC, libc::O_DSYNC] {
            let first = synchronous(&mount, flag);
            let second = File::open(mount.at("f")).unwrap();
            let third = OpenOptions::new().append(true).open(mount.at("f")).unwrap();
            assert_eq!(opens.since(), "sss", "those who come while it is open so");
            drop((first, second, third));
            opens.settle();
            let first = File::open(mount.at("f")).unwrap();
            let second = synchronous(&mount, flag);
            second.write_all_at(b"bytes", 0).unwrap();
            let mut bytes = [0; 5];
            first.read_exact_at(&mut bytes, 0).unwrap();
            assert_eq!((&bytes, &*opens.since()), (b"bytes", "kk"));
            drop((first, second));
            opens.settle();
        }
    });
}

/// Proves F2.
#[test]
fn with_durability_write_the_server_writes() {
    with_passthrough("modes::with_durability_write_the_server_writes", |setup| {
        let mount = setup.mount_with(["--durability", "write"]).mount();
        let mut opens = Opens::of(&mount);
        let _written = File::create(mount.at("f")).unwrap();
        let _read = File::open(mount.at("f")).unwrap();
        assert_eq!(opens.since(), "ss");
    });
}
