//! Programs that are at work while their server is killed again and again, and another one takes over.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use tensorfs_tests::random::Random;
use tensorfs_tests::{Mount, Passthrough, Setup, client, on_mounts, other_program, tensorfs};

on_mounts!(programs_notice_nothing_of_servers_that_die);

const PROGRAMS: usize = 3;

/// Servers that are killed, or left for others on purpose, with each durability: `TENSORFS_KILLS`, or a few.
fn kills() -> u64 {
    std::env::var("TENSORFS_KILLS").map_or(6, |kills| kills.parse().expect("a number"))
}

/// A program of another build, with which this one takes turns, with a kill but now and then:
/// `TENSORFS_OTHER_PROGRAM`.
fn other_build() -> Option<PathBuf> {
    std::env::var_os("TENSORFS_OTHER_PROGRAM").map(PathBuf::from)
}

/// Programs that take turns to serve: this one, and one of another build, or at least of another version. Something
/// else is refused each time.
struct Programs {
    turns: [PathBuf; 2],
    upgrades: u64,
    kills: u64,
}

impl Programs {
    fn of(mount: &Mount) -> Self {
        let version = mount.info()["version"].as_str().unwrap().to_owned();
        let newer = || other_program(&mount.host().join("programs"), "newer", &version, &version.replace('.', "-"));
        Self { turns: [other_build().unwrap_or_else(newer), tensorfs().get_program().into()], upgrades: 0, kills: 0 }
    }

    fn kill(&mut self, mount: &mut Mount) {
        mount.kill_server();
        self.kills += 1;
    }

    /// Has the next one serve.
    fn upgrade(&mut self, mount: &mut Mount) {
        let to = |program: &Path| {
            let words: [&Path; 4] = ["upgrade".as_ref(), mount.path(), "--to".as_ref(), program];
            mount.tensorfs(words)
        };
        let refused = to(Path::new("/bin/false"));
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success() && said.contains("it does not say that it could serve"), "{said}");
        let done = to(&self.turns[self.upgrades as usize % 2]);
        assert!(done.status.success(), "{}{}", String::from_utf8_lossy(&done.stderr), mount.log());
        self.upgrades += 1;
        mount.adopt();
    }
}

/// Proves K1, K2, K3, K7.
fn programs_notice_nothing_of_servers_that_die(setup: Setup) {
    let Some(python) = setup.python("small") else { return };
    for durability in ["fsync", "close", "write"] {
        let mut mount = setup.clone().mount_with(["-o", &format!("keeper,durability={durability}")]).mount();
        if mount.is_plain() {
            return;
        }
        // With `write` the server is given all bytes.
        let passthrough = setup.passthrough() == Passthrough::On && durability != "write";
        let stop = mount.host().join("stop");
        let start = |number: usize| {
            let mut command = client(&python, "takeover_client.py");
            command.arg(mount.path()).arg(number.to_string()).arg(&stop);
            if passthrough {
                command.arg("--passthrough");
            }
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        };
        let mut versions = Programs::of(&mount);
        let programs: Vec<_> = (0..PROGRAMS).map(start).collect();
        let mut random = Random::of(&[kills(), durability.len() as u64]);
        for _ in 0..kills() {
            thread::sleep(Duration::from_millis(random.below(400)));
            if random.once_in(3) || other_build().is_some() {
                versions.upgrade(&mut mount);
            } else {
                versions.kill(&mut mount);
            }
            if random.once_in(5) {
                // While it recovers, or just after.
                thread::sleep(Duration::from_millis(random.below(40)));
                versions.kill(&mut mount);
            }
            // This is done when it serves.
            std::fs::create_dir(mount.at("served")).unwrap();
            std::fs::remove_dir(mount.at("served")).unwrap();
        }
        std::fs::write(&stop, "").unwrap();
        for program in programs {
            let said = program.wait_with_output().unwrap();
            let text = String::from_utf8_lossy(&[said.stdout, said.stderr].concat()).into_owned();
            assert!(said.status.success(), "{durability}: {text}");
            println!("{durability}: {}", text.trim());
        }
        println!("{durability}: {} kills, {} upgrades", versions.kills, versions.upgrades);
        mount.umount();
        let check = mount.tensorfs(["check", "--data", mount.pool().to_str().unwrap()]);
        assert!(check.status.success(), "{durability}: {}", String::from_utf8_lossy(&check.stdout));
    }
}
