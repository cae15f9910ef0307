//! Pools that belong to somebody else, that lead elsewhere, and that are moved.

use std::fs::OpenOptions;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use tensorfs_tests::{Setup, as_user, is_root, on_mounts, run_ok};

on_mounts!(
    a_pool_that_is_moved_while_mounted_goes_on,
    a_users_pool_stays_theirs_while_root_has_it_mounted,
    no_link_in_a_pool_leads_out_of_it,
    what_is_no_regular_file_keeps_nobody_waiting,
    a_note_takes_the_place_of_nothing_that_is_elsewhere_too,
    what_info_tells_everybody_names_no_files,
    names_in_a_pool_play_with_no_terminal_and_make_no_lines_of_a_log,
    a_directory_that_is_gone_is_not_told_of_with_a_line_for_each_file_in_it,
);

/// An operator's `mv` of the pool's directory does not end the mount.
fn a_pool_that_is_moved_while_mounted_goes_on(setup: Setup) {
    let mount = setup.mount_with(["--commit", "3600"]).mount();
    if mount.is_plain() {
        return;
    }
    std::fs::write(mount.at("before"), "x").unwrap();
    let moved = mount.pool().with_extension("moved");
    std::fs::rename(mount.pool(), &moved).unwrap();
    // Enough files for a new directory of segments.
    let made = (0..600).try_for_each(|n| std::fs::write(mount.at(format!("f{n}")), "y"));
    let synced = OpenOptions::new().write(true).open(mount.at("before")).and_then(|file| file.sync_all());
    std::fs::rename(&moved, mount.pool()).unwrap();
    made.unwrap();
    synced.unwrap();
    let info = mount.info();
    assert_eq!(info["read_only"], serde_json::Value::Null, "{info}");
}

/// Root mounts from /etc/fstab what a user made, and the user must be able to use it again.
///
/// Proves A6.
fn a_users_pool_stays_theirs_while_root_has_it_mounted(setup: Setup) {
    if !is_root() || setup.mount_is_plain() {
        return setup.skip("only root has files of others");
    }
    let mut mount = setup.mount();
    mount.umount();
    let below = |pool: &Path| {
        let mut found = vec![pool.to_owned()];
        let mut next = 0;
        while let Some(path) = found.get(next).cloned() {
            next += 1;
            if path.is_dir() {
                found.extend(std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
            }
        }
        found
    };
    for path in below(mount.pool()) {
        std::os::unix::fs::chown(path, Some(12_345), Some(23_456)).unwrap();
    }
    mount.mount();
    std::fs::write(mount.at("f"), "before").unwrap();
    let mut writer = tensorfs_tests::child(["do"]);
    assert_eq!(writer.ask(&format!("open f wt {}", mount.at("f").display())), "ok");
    assert_eq!(writer.ask("write f 0 1 100"), "ok");
    writer.kill(libc::SIGKILL);
    mount.umount();
    let files = below(mount.pool());
    assert!(files.iter().any(|path| path.extension().is_some_and(|extension| extension == "json")), "{files:?}");
    for path in files {
        let found = std::fs::metadata(&path).unwrap();
        assert_eq!((found.uid(), found.gid()), (12_345, 23_456), "{}", path.display());
    }
}

/// Whoever owns a pool that root mounts could make root write, and remove, files elsewhere.
///
/// Proves A6.
fn no_link_in_a_pool_leads_out_of_it(setup: Setup) {
    let mut mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    std::fs::write(mount.at("before"), "x").unwrap();
    mount.umount();
    let (shard, outside) = (mount.pool().join("segments/00"), mount.host().join("outside"));
    std::fs::rename(&shard, &outside).unwrap();
    std::os::unix::fs::symlink(&outside, &shard).unwrap();
    mount.mount();
    let before = std::fs::read_dir(&outside).unwrap().count();
    let made = std::fs::write(mount.at("new"), "y");
    let read = std::fs::read(mount.at("before"));
    std::fs::remove_file(mount.at("before")).unwrap();
    mount.sync();
    mount.umount();
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), before);
    assert_eq!(made.unwrap_err().raw_os_error(), Some(libc::EIO));
    assert_eq!(read.unwrap_err().raw_os_error(), Some(libc::EIO));
}

/// Where a file of a pool should be may stand a FIFO, whose open waits for another program, or something else.
///
/// Proves P3.
fn what_is_no_regular_file_keeps_nobody_waiting(setup: Setup) {
    let mut mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let bytes = vec![7; 100_000];
    std::fs::write(mount.at("f"), &bytes).unwrap();
    std::fs::write(mount.at("other"), "x").unwrap();
    mount.tensorfs_ok(["seal".as_ref(), mount.path()]);
    let path = |entry: std::fs::DirEntry| entry.path();
    let shards = std::fs::read_dir(mount.pool().join("segments")).unwrap().flatten().map(path);
    let mut segments = shards.flat_map(|shard| std::fs::read_dir(shard).unwrap().flatten().map(path));
    let segment = segments.find(|segment| std::fs::metadata(segment).unwrap().len() == 100_000).unwrap();
    let kept = mount.host().join("kept");
    let program = mount.program().get_program().to_owned();
    // Seconds are for a machine that is busy; a command that waits for a FIFO waits for ever.
    let run = |words: &[&str], at: &Path| {
        let mut command = std::process::Command::new("timeout");
        let output = tensorfs_tests::run(command.arg("60").arg(&program).args(words).arg(at));
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        assert_ne!(output.status.code(), Some(124), "{words:?} waits: {said}");
        (output.status.code(), said)
    };
    let kinds = ["FIFO", "socket", "directory", "symbolic link"];
    let put = |kind: &str, at: &Path| match kind {
        "FIFO" => nix::unistd::mkfifo(at, nix::sys::stat::Mode::S_IRWXU).unwrap(),
        "socket" => drop(std::os::unix::net::UnixListener::bind(at).unwrap()),
        "directory" => std::fs::create_dir(at).unwrap(),
        _ => std::os::unix::fs::symlink("/etc/passwd", at).unwrap(),
    };
    let remove = |at: &Path| std::fs::remove_file(at).or_else(|_| std::fs::remove_dir(at)).unwrap();
    // While it is mounted.
    for kind in kinds {
        std::fs::rename(&segment, &kept).unwrap();
        put(kind, &segment);
        let (status, said) = run(&["check"], mount.path());
        assert!(status == Some(4) && said.contains(&format!("it is a {kind}")), "{kind}: {said}");
        // Once the server has met it, the file counts as damaged.
        let (status, said) = run(&["verify"], &mount.at("f"));
        assert!(matches!(status, Some(1 | 4)), "{kind}: {said}");
        let mut child = tensorfs_tests::child(["do"]);
        for flags in ["r", "rw"] {
            let opened = child.ask(&format!("open f {flags} {}", mount.at("f").display()));
            assert_eq!(opened, format!("error {}", libc::EIO), "{kind}");
        }
        assert_eq!(run(&["scrub"], mount.path()).0, Some(4), "{kind}");
        assert_eq!(std::fs::read(mount.at("other")).unwrap(), b"x");
        remove(&segment);
        std::fs::rename(&kept, &segment).unwrap();
    }
    // What a scrub has found stands until the next one.
    assert_eq!(run(&["scrub"], mount.path()).0, Some(0));
    std::fs::rename(&segment, &kept).unwrap();
    put("FIFO", &segment);
    mount.tensorfs_ok(["umount".as_ref(), mount.path()]);
    remove(&segment);
    std::fs::rename(&kept, &segment).unwrap();
    // While it is not: each part of the pool.
    let inside = mount.pool().to_owned();
    let parts = [segment, inside.join("lock"), inside.join("log")];
    for (kind, part) in kinds.into_iter().flat_map(|kind| parts.iter().map(move |part| (kind, part))) {
        std::fs::rename(part, &kept).unwrap();
        put(kind, part);
        for words in [&["check"][..], &["check", "--data"], &["info"], &["ls"], &["verify"]] {
            let (status, said) = run(words, &inside);
            let named = format!("it is a {kind}");
            let fails = words[0] == "check" || words[0] == "info" && part != &parts[0];
            assert!(!fails || status != Some(0) && said.contains(&named), "{words:?} {kind}: {said}");
        }
        let mounted = mount.try_mount().0;
        assert_eq!(mounted.status.success(), part == &parts[0], "{kind} {}", part.display());
        if mounted.status.success() {
            assert_eq!(std::fs::read(mount.at("f")).unwrap_err().raw_os_error(), Some(libc::EIO), "{kind}");
            assert_eq!(run(&["umount"], mount.path()).0, Some(0));
        }
        remove(part);
        std::fs::rename(&kept, part).unwrap();
    }
    // And set aside.
    put("FIFO", &inside.join("quarantine/0000000000000007"));
    put("FIFO", &inside.join("segments/pipe"));
    assert_eq!(run(&["restore", "--to", "/nonexistent"], &inside).0, Some(2));
    assert_eq!(run(&["check"], &inside).0, Some(4));
    assert_eq!(run(&["check", "--repair"], &inside).0, Some(1));
    assert_eq!(run(&["check"], &inside).0, Some(0));
    mount.mount();
    assert_eq!(std::fs::read(mount.at("f")).unwrap(), bytes);
}

/// What has the name of a note beside the log may be a second name of a file elsewhere, which would be changed, if only
/// in its time and in the number of its names.
///
/// Proves P3.
fn a_note_takes_the_place_of_nothing_that_is_elsewhere_too(setup: Setup) {
    const OWNER: u32 = 12_345;
    if !is_root() || setup.mount_is_plain() {
        return setup.skip("only root has files of others");
    }
    let mut mount = setup.mount();
    std::fs::write(mount.at("f"), vec![7; 100_000]).unwrap();
    mount.umount();
    run_ok(std::process::Command::new("chown").arg("-R").arg(format!("{OWNER}:{OWNER}")).arg(mount.pool()));
    let outside = mount.host().join("outside");
    std::fs::create_dir(&outside).unwrap();
    let look = |name: &str| {
        let host = std::fs::symlink_metadata(outside.join(name)).unwrap();
        let bytes = std::fs::read(outside.join(name)).unwrap();
        (host.nlink(), (host.ctime(), host.ctime_nsec()), (host.uid(), host.mode()), bytes)
    };
    for whose in [0, OWNER] {
        for names in [&["failed", "scrubbed", "remote"][..], &["failed.new", "scrubbed.new", "remote.new"]] {
            mount.mount();
            mount.kill9();
            for name in names {
                std::fs::write(outside.join(name), "outside").unwrap();
                std::os::unix::fs::chown(outside.join(name), Some(whose), Some(whose)).unwrap();
                std::fs::hard_link(outside.join(name), mount.pool().join(name)).unwrap();
            }
            let before: Vec<_> = names.iter().map(|name| look(name)).collect();
            let logged = mount.log().len();
            // It recovers, and ends.
            mount.mount();
            let _ = mount.tensorfs(["scrub".as_ref(), "--no-limit".as_ref(), mount.path().as_os_str()]);
            mount.umount();
            let told = mount.log()[logged..].to_owned();
            let url = format!("file://{}", mount.host().join("remote").display());
            let pool = mount.pool().as_os_str();
            let off = mount.tensorfs(["remote".as_ref(), "off".as_ref(), pool]);
            let set = mount.tensorfs(["remote".as_ref(), "set".as_ref(), pool, url.as_ref()]);
            let _ = mount.tensorfs(["check".as_ref(), "--repair".as_ref(), pool]);
            let why = if whose == 0 { "it belongs to user 0" } else { "it has another name elsewhere" };
            // Where the note on the second copy seems to be the owner's, that is said before anything is looked at.
            let says = |output: &std::process::Output| {
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                let pool = mount.pool().display().to_string();
                assert!(!output.status.success() && said.lines().count() == 1, "{whose}: {said}");
                assert!(said.contains(&pool), "{whose}: {said}");
                assert!([why, "it belongs to user 12345"].iter().any(|why| said.contains(why)), "{whose}: {said}");
            };
            says(&set);
            if names.contains(&"remote") {
                says(&off);
                for name in ["failed", "scrubbed"] {
                    assert!(told.contains(&format!("{name}: {why}")), "{whose}, {name}: {told}");
                }
            }
            let after: Vec<_> = names.iter().map(|name| look(name)).collect();
            assert_eq!(after, before, "{whose}: {names:?}: {told}");
            names.iter().for_each(|name| std::fs::remove_file(mount.pool().join(name)).unwrap());
        }
    }
    // Where nothing is in the way, there are notes.
    mount.mount();
    mount.tensorfs_ok(["scrub".as_ref(), "--no-limit".as_ref(), mount.path().as_os_str()]);
    mount.umount();
    assert_eq!(std::fs::metadata(mount.pool().join("scrubbed")).unwrap().uid(), OWNER);
}

/// A path may lead through directories that not everybody may look into.
fn what_info_tells_everybody_names_no_files(setup: Setup) {
    if !is_root() || setup.mount_is_plain() {
        return setup.skip("only root can become somebody else");
    }
    let mount = setup.mount();
    std::fs::create_dir(mount.at("private")).unwrap();
    std::fs::set_permissions(mount.at("private"), std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let path = mount.at("private/hidden-name");
    std::fs::write(&path, "before").unwrap();
    let mut writer = tensorfs_tests::child(["do"]);
    assert_eq!(writer.ask(&format!("open f wt {}", path.display())), "ok");
    assert_eq!(writer.ask("write f 0 1 100"), "ok");
    writer.kill(libc::SIGKILL);
    mount.sync();
    let read = |user| run_ok(as_user(user, user).args(["cat", ".tensorfs/info"]).current_dir(mount.path()));
    assert!(read(0).contains("hidden-name"));
    let told = read(12_345);
    assert!(told.contains("interrupted-replace") && !told.contains("hidden-name"), "{told}");
}

/// The pool's owner has named a tier's directory and a file, and root looks at what is wrong with them.
fn names_in_a_pool_play_with_no_terminal_and_make_no_lines_of_a_log(setup: Setup) {
    const NAME: &str = "a\x1b[2J\r\nforged";
    let mut mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    mount.umount();
    let tier = mount.host().join(NAME);
    mount.add_tier("odd", &tier);
    mount.mount();
    std::fs::write(mount.at(NAME), "f").unwrap();
    tensorfs_tests::xattr::set(&mount.at(NAME), "user.tensorfs.tier", b"odd", 0).unwrap();
    mount.sync();
    mount.umount();
    std::fs::rename(&tier, tier.with_file_name("elsewhere")).unwrap();
    let before = mount.log().len();
    mount.mount();
    assert!(std::fs::read(mount.at(NAME)).is_err());
    let mut told = vec![mount.log()[before..].to_owned()];
    assert!(told[0].contains("missing, its files give errors"), "{}", told[0]);
    let ask = |mount: &tensorfs_tests::Mount, place: &Path| {
        let commands = [&["info"][..], &["ls", "-l"], &["check"], &["verify"]];
        commands.map(|words| {
            let output = mount.program().args(words).arg(place).output().unwrap();
            String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
        })
    };
    told.extend(ask(&mount, mount.path()));
    mount.umount();
    told.extend(ask(&mount, mount.pool()));
    for told in &told {
        assert!(!told.contains(['\x1b', '\r']), "{told:?}");
        assert!(!told.lines().any(|line| line.starts_with("forged")), "{told}");
    }
    assert!(told.iter().skip(1).any(|told| told.contains("forged")), "{told:?}");
}

/// What all the files in a directory have in common is told with a few of them.
fn a_directory_that_is_gone_is_not_told_of_with_a_line_for_each_file_in_it(setup: Setup) {
    let mut mount = setup.mount_with(["--commit", "3600"]).mount();
    if mount.is_plain() {
        return;
    }
    for n in 0..40 {
        std::fs::write(mount.at(format!("f{n}")), vec![7; 100_000]).unwrap();
    }
    mount.kill9();
    let shard = mount.pool().join("segments/00");
    let kept = mount.pool().with_extension("kept");
    std::fs::rename(&shard, &kept).unwrap();
    std::os::unix::fs::symlink(&kept, &shard).unwrap();
    let said = mount.tensorfs(["resize".as_ref(), mount.pool().as_os_str(), "1G".as_ref()]);
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    std::fs::remove_file(&shard).unwrap();
    std::fs::rename(&kept, &shard).unwrap();
    let synced = said.lines().filter(|line| line.contains("sync failed")).count();
    assert_eq!(synced, 4, "{said}");
    assert!(said.contains("and that of more"), "{said}");
}
