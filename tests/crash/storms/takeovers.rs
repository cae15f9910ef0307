//! Programs that are at work while their server is killed again and again, and another one takes over.

use std::ffi::OsStr;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use tensorfs_tests::random::Random;
use tensorfs_tests::{Passthrough, Setup, client, on_mounts};

on_mounts!(programs_notice_nothing_of_servers_that_die);

const PROGRAMS: usize = 3;

/// Servers that are killed, or left for others on purpose, with each durability: `TENSORFS_KILLS`, or a few.
fn kills() -> u64 {
    std::env::var("TENSORFS_KILLS").map_or(6, |kills| kills.parse().expect("a number"))
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
        let programs: Vec<_> = (0..PROGRAMS).map(start).collect();
        let mut random = Random::of(&[kills(), durability.len() as u64]);
        for _ in 0..kills() {
            thread::sleep(Duration::from_millis(random.below(400)));
            if random.once_in(3) {
                mount.tensorfs_ok([OsStr::new("upgrade"), mount.path().as_os_str()]);
                mount.adopt();
            } else {
                mount.kill_server();
            }
            if random.once_in(5) {
                // While it recovers, or just after.
                thread::sleep(Duration::from_millis(random.below(40)));
                mount.kill_server();
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
        mount.umount();
        let check = mount.tensorfs(["check", "--data", mount.pool().to_str().unwrap()]);
        assert!(check.status.success(), "{durability}: {}", String::from_utf8_lossy(&check.stdout));
    }
}
