//! The unit under a real systemd: started again, stopped, killed, and executed anew itself; it never waits for a mount.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::Command;

use nix::errno::Errno;
use tensorfs_tests::{Setup, on_mounts, scratch, skip, wait_until};

use super::booted::{NAME, Systemd};
use super::manager::kill;
use super::service::Service;
use super::{is_started_again_unnoticed, place};

on_mounts!(
    a_restart_is_not_noticed,
    a_stop_unmounts,
    a_keeper_that_is_killed_is_replaced,
    systemd_does_not_wait_for_a_mount_that_nobody_serves,
    a_unit_whose_pool_is_broken_says_so,
    the_timer_has_damage_looked_for,
);

/// Proves K8.
fn a_restart_is_not_noticed(setup: Setup) {
    let Some(mut systemd) = Systemd::of(&setup) else { return };
    let Some(mount) = place(setup) else { return };
    is_started_again_unnoticed(&mount, &mut systemd);
    assert_eq!(systemd.kept(), 0);
    assert_eq!(mount.info()["state"], "clean");
}

/// Proves K8.
fn a_stop_unmounts(setup: Setup) {
    let Some(mut systemd) = Systemd::of(&setup) else { return };
    let Some(mount) = place(setup) else { return };
    for again in [false, true] {
        systemd.start(&mount, &[]);
        if again {
            assert_eq!(systemd.restart(&mount, &[]), "");
        }
        fs::write(mount.at("f"), "text").unwrap();
        assert_eq!(systemd.kept(), 3);
        systemd.stop(&mount);
        assert_eq!((systemd.kept(), systemd.said()), (0, String::new()));
        assert_eq!(mount.info()["state"], "clean");
        assert!(!mount.at("f").exists());
    }
    // What only the kernel decides is mounted anew, and said.
    systemd.start(&mount, &[]);
    let said = systemd.restart(&mount, &["-o", "noexec"]);
    assert!(said.contains("it is to be mounted otherwise (noexec)") && said.lines().count() == 1, "{said}");
    assert_eq!(mount.info()["keeper"]["takeovers"], 0);
    assert_eq!(systemd.kept(), 3);
    systemd.stop(&mount);
}

/// Proves K8.
fn a_keeper_that_is_killed_is_replaced(setup: Setup) {
    let Some(mut systemd) = Systemd::of(&setup) else { return };
    let Some(mount) = place(setup) else { return };
    systemd.start(&mount, &[]);
    let file = File::options().read(true).write(true).create_new(true).open(mount.at("f")).unwrap();
    for round in 0..3_u8 {
        let (keeper, server) = (systemd.main(), mount.info()["pid"].as_i64().unwrap() as i32);
        // The server alone is the keeper's to replace; systemd does not notice.
        kill(server, libc::SIGKILL);
        file.write_all_at(&[round], round.into()).unwrap();
        assert_eq!(systemd.main(), keeper);
        kill(keeper, libc::SIGKILL);
        file.write_all_at(&[round], 100 + u64::from(round)).unwrap();
        wait_until("another keeper", || {
            systemd.property("ActiveState") == "active" && ![0, keeper].contains(&systemd.main())
        });
        let info = mount.info();
        assert_eq!(info["keeper"]["pid"], systemd.main(), "{info}");
        assert_ne!(info["pid"], server);
        assert_eq!(systemd.kept(), 3);
        let mut bytes = [9];
        file.read_exact_at(&mut bytes, 100 + u64::from(round)).unwrap();
        assert_eq!(bytes, [round]);
    }
    drop(file);
    systemd.stop(&mount);
    assert_eq!(mount.info()["state"], "clean");
}

/// Proves K8.
fn systemd_does_not_wait_for_a_mount_that_nobody_serves(setup: Setup) {
    let Some(mut systemd) = Systemd::of(&setup) else { return };
    let Some(mount) = place(setup) else { return };
    // Nobody serves until it is told to start it.
    systemd.change("RestartSec=infinity");
    systemd.start(&mount, &[]);
    let file = File::options().read(true).write(true).create_new(true).open(mount.at("f")).unwrap();
    file.write_all_at(b"before", 0).unwrap();
    let ask = |systemd: &Systemd| {
        for arguments in [
            &["daemon-reload"][..],
            &["daemon-reexec"],
            &["status", "--no-pager", NAME],
            &["list-units", "--all", "--no-pager"],
            &["show", NAME],
            &["start", "tensorfs-test.target"],
        ] {
            let done = systemd.run("systemctl", arguments);
            assert!(done.status.success() || arguments[0] == "status", "{arguments:?}: {done:?}");
        }
        assert_eq!(systemd.kept(), 3);
    };
    for round in 0..2 {
        ask(&systemd);
        systemd.ctl(&["kill", "--signal=KILL", NAME]);
        wait_until("nobody serves", || systemd.property("SubState") == "auto-restart");
        ask(&systemd);
        systemd.start(&mount, &[]);
        file.write_all_at(b"after", 6).unwrap();
        let mut text = [0; 11];
        file.read_exact_at(&mut text, 0).unwrap();
        assert_eq!(&text, b"beforeafter");
        let info = mount.info();
        assert_eq!(
            (&info["keeper"]["takeovers"], &info["keeper"]["pid"]),
            (&(round + 1).into(), &systemd.main().into())
        );
    }
    // Its own process, executed anew, knows what it keeps.
    systemd.ctl(&["daemon-reexec"]);
    assert_eq!(systemd.restart(&mount, &[]), "");
    assert_eq!(mount.info()["keeper"]["takeovers"], 3);
    // Stopped while nobody serves: what was kept is let go of, and whoever waits gets an error.
    systemd.ctl(&["kill", "--signal=KILL", NAME]);
    wait_until("nobody serves", || systemd.property("SubState") == "auto-restart");
    assert!(systemd.job("stop").status.success());
    assert_eq!(systemd.kept(), 0);
    let dead = fs::metadata(mount.at("f")).unwrap_err().raw_os_error().map(Errno::from_raw);
    assert!([Some(Errno::ENOTCONN), Some(Errno::ECONNABORTED)].contains(&dead), "{dead:?}");
    drop(file);
    systemd.start(&mount, &[]);
    assert_eq!(fs::read(mount.at("f")).unwrap(), b"beforeafter");
    systemd.stop(&mount);
}

/// Proves K8.
fn a_unit_whose_pool_is_broken_says_so(setup: Setup) {
    let Some(mut systemd) = Systemd::of(&setup) else { return };
    let Some(mount) = place(setup) else { return };
    let (log, away) = (mount.pool().join("log"), mount.pool().join("away"));
    systemd.start(&mount, &[]);
    fs::write(mount.at("f"), "text").unwrap();
    // One that could not be opened again is not left to the next keeper, but closed.
    fs::rename(&log, &away).unwrap();
    systemd.configure(&mount, &[]);
    assert!(!systemd.job("restart").status.success());
    let said = systemd.said();
    assert!(said.contains("it is unmounted, and mounted again"), "{said}");
    wait_until("a unit that failed", || systemd.property("ActiveState") == "failed");
    assert_eq!((systemd.kept(), systemd.main()), (0, 0));
    let said = systemd.said();
    assert!(said.contains("not a tensorfs pool"), "{said}");
    fs::rename(&away, &log).unwrap();
    systemd.ctl(&["reset-failed", NAME]);
    systemd.start(&mount, &[]);
    assert_eq!(fs::read(mount.at("f")).unwrap(), b"text");
    // One that breaks while nobody serves.
    systemd.change("RestartSec=infinity");
    systemd.ctl(&["kill", "--signal=KILL", NAME]);
    wait_until("nobody serves", || systemd.property("SubState") == "auto-restart");
    fs::rename(&log, &away).unwrap();
    assert!(!systemd.job("restart").status.success());
    assert!(systemd.said().contains("not a tensorfs pool") && fs::metadata(mount.at("f")).is_err());
    fs::rename(&away, &log).unwrap();
    systemd.start(&mount, &[]);
    assert_eq!(fs::read(mount.at("f")).unwrap(), b"text");
    systemd.stop(&mount);
}

/// The unit that scrubs fails with status 4 where there is damage, and its timer starts it.
///
/// Proves C6.
fn the_timer_has_damage_looked_for(setup: Setup) {
    const SCRUB: &str = "tensorfs-scrub@test.service";
    const TIMER: &str = "tensorfs-scrub@test.timer";
    let Some(mut systemd) = Systemd::of(&setup) else { return };
    let Some(mount) = place(setup) else { return };
    let scrub = |systemd: &Systemd| {
        let done = systemd.run("systemctl", &["start", SCRUB]).status.success();
        (done, systemd.property_of(SCRUB, "Result"), systemd.property_of(SCRUB, "ExecMainStatus"))
    };
    // Of what is not mounted nothing is looked for.
    assert!(!systemd.run("systemctl", &["start", SCRUB]).status.success());
    systemd.start(&mount, &[]);
    fs::write(mount.at("weights"), vec![7; 1 << 20]).unwrap();
    mount.wait_for_seals(1);
    assert_eq!(scrub(&systemd), (true, "success".to_owned(), "0".to_owned()));
    let shards = fs::read_dir(mount.pool().join("segments")).unwrap();
    let mut segments = shards.flat_map(|shard| fs::read_dir(shard.unwrap().path()).unwrap()).map(|one| one.unwrap());
    let segment = segments.find(|one| one.metadata().unwrap().len() == 1 << 20).expect("its segment").path();
    File::options().write(true).open(segment).unwrap().write_all_at(b"!", 5000).unwrap();
    // Once a week, and here at once.
    systemd.ctl(&["start", TIMER]);
    assert!(!systemd.property_of(TIMER, "NextElapseUSecRealtime").is_empty());
    systemd.ctl(&["stop", TIMER]);
    systemd.change_of("tensorfs-scrub@.timer", "[Timer]\nOnCalendar=\nRandomizedDelaySec=0\nOnActiveSec=0\n");
    systemd.ctl(&["start", TIMER]);
    wait_until("a scrub that fails", || systemd.property_of(SCRUB, "ActiveState") == "failed");
    let result = |name| systemd.property_of(SCRUB, name);
    assert_eq!((result("Result").as_str(), result("ExecMainStatus").as_str()), ("exit-code", "4"));
    systemd.ctl(&["stop", TIMER]);
    systemd.ctl(&["reset-failed", SCRUB]);
    systemd.stop(&mount);
}

/// What `systemd-analyze security` makes of the units, times ten: from there on it calls them OK, and MEDIUM.
const EXPOSURE: &str = "49";

#[test]
fn the_units_are_limited_to_what_they_need() {
    let analyze = |arguments: &[&str]| Command::new("systemd-analyze").args(arguments).output();
    if !analyze(&["--version"]).is_ok_and(|said| version(&said.stdout) >= 250) {
        return skip("services::the_units_are_limited_to_what_they_need", "no systemd-analyze of systemd 250 or newer");
    }
    let room = scratch();
    for (name, unit) in [
        ("tensorfs@x.service", include_str!("../../examples/systemd/tensorfs@.service")),
        ("tensorfs.service", include_str!("../../examples/systemd/tensorfs.service")),
    ] {
        let path = room.path().join(name);
        let path = path.to_str().unwrap();
        fs::write(path, unit).unwrap();
        let judge = || analyze(&["security", "--offline=true", "--no-pager", "--threshold", EXPOSURE, path]).unwrap();
        let done = judge();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stdout));
        let without: Vec<&str> = unit.lines().filter(|line| !line.starts_with("CapabilityBoundingSet=")).collect();
        fs::write(path, without.join("\n")).unwrap();
        assert!(!judge().status.success(), "it is judged");
    }
}

/// Of `systemd 252 (252.38-1~deb12u1)`.
fn version(said: &[u8]) -> u32 {
    String::from_utf8_lossy(said).split(' ').nth(1).and_then(|number| number.parse().ok()).unwrap_or(0)
}
