//! What costs how many requests: of the kernel to the server, and of the server to the host.

mod host_calls;
mod open_files;

use nix::errno::Errno;
use serde_json::Value;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;
use std::process::Command;
use tensorfs_tests::{Disk, Mount, Passthrough, Pattern, Setup, on_mounts, run, run_ok, xattr};

on_mounts!(
    saving_a_file_takes_nine_requests,
    a_warm_stat_takes_none,
    reading_a_file_takes_an_open_and_a_release,
    a_second_listing_with_attributes_takes_no_request_for_a_file,
    locks_and_open_directories_are_nothing_to_the_server,
    spare_segments_come_and_go_unseen,
    a_killed_servers_spare_segments_are_removed,
    a_replacement_is_younger_than_what_it_replaces,
    a_label_that_nobody_gave_is_not_supported,
    a_large_file_is_written_out_before_it_is_recorded,
    what_is_made_after_a_large_file_was_closed_is_not_durable_before_it,
    a_large_file_replaced_just_after_it_was_closed_is_whole,
    a_new_small_file_its_name_and_its_directory_take_one_flush,
    a_small_file_that_the_host_lost_comes_back_from_the_log,
);

const FILES: u64 = 200;

/// How often the server was asked for what, since it was started.
struct Counts {
    then: Value,
    /// What asking for the counts adds to them.
    own: HashMap<String, u64>,
}

fn count(counters: &Value, name: &str) -> u64 {
    counters[name].as_u64().unwrap_or_else(|| panic!("no counter {name} in {counters}"))
}

impl Counts {
    fn of(mount: &Mount) -> Counts {
        let ask = || mount.info()["counters"].clone();
        let costs = |first: &Value, then: &Value| -> HashMap<String, u64> {
            let names = then.as_object().unwrap().keys();
            names.map(|name| (name.clone(), count(then, name) - count(first, name))).collect()
        };
        let (mut then, mut own) = (ask(), None);
        // Something else may come in between: a release that the kernel tells late, or a look at what was forgotten.
        for _ in 0..100 {
            let now = ask();
            let cost = costs(&then, &now);
            then = now;
            if own.as_ref() == Some(&cost) {
                return Counts { then, own: cost };
            }
            own = Some(cost);
        }
        panic!("to ask costs something else each time: {own:?}");
    }

    /// How many more there were, once so many handles have been released, which the kernel tells when it likes.
    fn more(&self, mount: &Mount, releases: u64) -> impl Fn(&str) -> u64 {
        let mut asked = 0;
        loop {
            asked += 1;
            let now = mount.info()["counters"].clone();
            let own = self.own.clone();
            let then = self.then.clone();
            let more = move |name: &str| (count(&now, name) - count(&then, name)).saturating_sub(own[name] * asked);
            if more("release") >= releases {
                return more;
            }
            assert!(asked < 15, "{} of {releases} handles were released", more("release"));
            // Few are asked for: what one costs more than the others counts, too.
            std::thread::sleep(std::time::Duration::from_millis(10 << asked));
        }
    }
}

fn saving_a_file_takes_nine_requests(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    fs::create_dir(mount.at("d")).unwrap();
    let before = Counts::of(&mount);
    for n in 0..FILES {
        let (part, whole) = (mount.at(format!("d/{n}.tmp")), mount.at(format!("d/{n}")));
        let mut file = File::create(&part).unwrap();
        file.write_all(&[7; 4096]).unwrap();
        drop(file);
        fs::rename(part, whole).unwrap();
    }
    let more = before.more(&mount, FILES);
    assert_eq!(more("create"), FILES);
    assert_eq!(more("rename"), FILES);
    // Of the new name and of the one to rename it to.
    assert_eq!(more("lookup"), 2 * FILES);
    // Of the directory, which both change.
    assert!(more("getattr").abs_diff(2 * FILES) <= 2, "{} GETATTR", more("getattr"));
    // By it a writer who is killed is told from one who closes it. Whoever asks for the counts closes something, too.
    // And so does a child that another test starts while a file is open: it has a copy of that until it executes.
    assert!((FILES - 2..=FILES + FILES / 10).contains(&more("flush")), "{} FLUSH", more("flush"));
    for none in ["open", "setattr", "fsync", "mknod", "read"] {
        assert_eq!(more(none), 0, "{none}");
    }
    match mount.passthrough() {
        // The first write asks whether there are capabilities to take away.
        Passthrough::On => assert_eq!((more("getxattr"), more("write")), (FILES, 0)),
        Passthrough::Off => assert_eq!((more("getxattr"), more("write")), (0, FILES)),
    }
}

fn a_warm_stat_takes_none(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let paths: Vec<_> = (0..FILES).map(|n| mount.at(n.to_string())).collect();
    paths.iter().for_each(|path| fs::write(path, "x").unwrap());
    let stat = || paths.iter().for_each(|path| assert_eq!(fs::metadata(path).unwrap().len(), 1));
    let absent = || assert!(!mount.at("absent").exists());
    stat();
    absent();
    let before = Counts::of(&mount);
    stat();
    absent();
    let more = before.more(&mount, 0);
    assert!(more("getattr") <= 2, "{} GETATTR", more("getattr"));
    assert_eq!(more("lookup"), 0);
}

fn reading_a_file_takes_an_open_and_a_release(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let path = mount.at("f");
    fs::write(&path, [7; 4096]).unwrap();
    let read = || {
        let mut bytes = [0; 4096];
        File::open(&path).unwrap().read_exact(&mut bytes).unwrap();
        assert_eq!(bytes, [7; 4096]);
    };
    read();
    let before = Counts::of(&mount);
    (0..FILES).for_each(|_| read());
    let more = before.more(&mount, FILES);
    assert_eq!(more("open"), FILES);
    assert_eq!((more("flush"), more("lookup"), more("getxattr")), (0, 0, 0));
    // Through the server the first reading left it in the kernel's cache.
    assert_eq!(more("read"), 0);
}

/// The server does not hear of them, so that there is nothing that it could hold.
///
/// Proves B15.
fn locks_and_open_directories_are_nothing_to_the_server(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let file = File::create(mount.at("f")).unwrap();
    // The first one asks whether the server wants to know.
    drop(File::open(mount.path()).unwrap());
    let before = Counts::of(&mount);
    for n in 0..FILES as i64 {
        let (l_type, l_whence) = (libc::F_WRLCK as i16, libc::SEEK_SET as i16);
        let lock = libc::flock { l_type, l_whence, l_start: 2 * n, l_len: 1, l_pid: 0 };
        nix::fcntl::fcntl(&file, nix::fcntl::FcntlArg::F_SETLK(&lock)).unwrap();
        let mut held = lock;
        nix::fcntl::fcntl(&file, nix::fcntl::FcntlArg::F_GETLK(&mut held)).unwrap();
    }
    let _whole = nix::fcntl::Flock::lock(file.try_clone().unwrap(), nix::fcntl::FlockArg::LockExclusive).unwrap();
    let open: Vec<File> = (0..FILES).map(|_| File::open(mount.path()).unwrap()).collect();
    let more = before.more(&mount, 0);
    for few in ["lookup", "getattr", "open", "opendir", "flush", "release"] {
        assert!(more(few) <= 5, "{} {few}", more(few));
    }
    for never in ["getlk", "setlk"] {
        assert_eq!(count(&mount.info()["counters"], never), 0, "{never}");
    }
    drop(open);
}

fn a_second_listing_with_attributes_takes_no_request_for_a_file(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    fs::create_dir(mount.at("d")).unwrap();
    for n in 0..FILES {
        fs::write(mount.at(format!("d/{n}")), "x").unwrap();
    }
    let list = || run_ok(Command::new("ls").args(["-l", "--color=never"]).arg(mount.at("d"))).lines().count() as u64;
    assert_eq!(list(), FILES + 1);
    let before = Counts::of(&mount);
    assert_eq!(list(), FILES + 1);
    let more = before.more(&mount, 0);
    let requests = ["lookup", "getattr", "getxattr", "listxattr", "readdir", "readdirplus", "opendir"];
    let total: u64 = requests.into_iter().map(&more).sum();
    assert!(total < 8, "{:?}", requests.map(|name| (name, more(name))));
}

fn segments(pool: &Path) -> u64 {
    let shards = fs::read_dir(pool.join("segments")).unwrap();
    shards.map(|shard| fs::read_dir(shard.unwrap().path()).unwrap().count() as u64).sum()
}

/// Makes files, and waits until there are more segments than those.
fn make_files(mount: &Mount) {
    for n in 0..FILES {
        fs::write(mount.at(n.to_string()), n.to_string()).unwrap();
    }
    mount.wait_for("spares", |info| count(&info["counters"], "spares_made") > count(&info["counters"], "spares_used"));
}

fn spare_segments_come_and_go_unseen(setup: Setup) {
    let mut mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    make_files(&mount);
    let info = mount.info();
    let (made, used) = (&info["counters"]["spares_made"], &info["counters"]["spares_used"]);
    assert!(made.as_u64() > Some(0) && used.as_u64() > Some(0), "{made} made, {used} used");
    assert!(made.as_u64() < used.as_u64().map(|used| used + 200), "{made} made, {used} used");
    assert_eq!(info["files"], FILES);
    assert!(segments(mount.pool()) > FILES, "none is there");
    let checked = run(mount.program().arg("check").arg(mount.path()));
    assert!(checked.status.success(), "{checked:?}");
    mount.umount();
    assert_eq!(segments(mount.pool()), FILES);
    run_ok(mount.program().arg("check").arg(mount.pool()));
    mount.mount();
}

fn a_killed_servers_spare_segments_are_removed(setup: Setup) {
    let mut mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    make_files(&mount);
    assert!(segments(mount.pool()) > FILES, "none is there");
    mount.kill9();
    mount.mount();
    // No file was made since.
    assert_eq!(segments(mount.pool()), FILES);
    assert_eq!(mount.info()["quarantine"], serde_json::json!([]));
    for n in 0..FILES {
        assert_eq!(fs::read_to_string(mount.at(n.to_string())).unwrap(), n.to_string());
    }
}

/// The log knows by their numbers which of two segments came later. A spare segment that was older than a file's own
/// was no replacement, and what was written to it was lost when the server was killed.
///
/// Proves D9, R4.
fn a_replacement_is_younger_than_what_it_replaces(setup: Setup) {
    let mut mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    make_files(&mount);
    for round in 0..5 {
        let path = mount.at(format!("new{round}"));
        fs::write(&path, "first").unwrap();
        for turn in 0..=round {
            fs::write(&path, format!("again {turn}")).unwrap();
        }
        let mut open = File::create(&path).unwrap();
        open.write_all(b"the last version").unwrap();
        mount.kill9();
        drop(open);
        mount.mount();
        assert_eq!(fs::read_to_string(&path).unwrap(), "the last version");
        assert_eq!(mount.info()["quarantine"].as_array().unwrap().len(), round + 1);
        // Spares come with the next file.
        fs::write(mount.at(format!("before{round}")), "x").unwrap();
        mount.wait_for("spares", |info| count(&info["counters"], "spares_made") > 0);
    }
}

/// `ls -l` asks for a label of every file, unless it hears once that there is no such thing.
///
/// Proves A4.
fn a_label_that_nobody_gave_is_not_supported(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    fs::write(mount.at("f"), "x").unwrap();
    let get = || xattr::get(&mount.at("f"), "security.selinux");
    assert_eq!(get(), Err(Errno::EOPNOTSUPP));
    let set = xattr::set(&mount.at("f"), "security.selinux", b"x", 0);
    // A kernel with SELinux answers for itself.
    if set != Err(Errno::EOPNOTSUPP) {
        assert_eq!(get(), Ok(b"x".to_vec()));
    }
}

/// A large file was recorded when it had been written out: a marker that says that it is there was durable before.
///
/// Proves D3.
fn what_is_made_after_a_large_file_was_closed_is_not_durable_before_it(setup: Setup) {
    let disk = match Disk::new(&["mkfs.ext4", "-q", "-F"], 256) {
        Ok(disk) => disk,
        Err(reason) => return setup.skip(&reason),
    };
    const SIZE: usize = 48 << 20;
    let mut mount = setup.pool_at(disk.at("pool")).mount_with(["--commit", "3600"]).mount();
    let before = Counts::of(&mount);
    fs::write(mount.at("large"), Pattern(1).bytes(0, SIZE)).unwrap();
    // The close has returned; its RELEASE comes behind it.
    let _ = before.more(&mount, 1);
    let marker = File::create(mount.at("done")).unwrap();
    marker.sync_all().unwrap();
    drop(marker);
    mount.power_loss();
    mount.mount();
    assert!(mount.at("done").exists());
    assert_eq!(Pattern(1).mismatch(0, &fs::read(mount.at("large")).unwrap()), None);
    assert_eq!(fs::metadata(mount.at("large")).unwrap().len(), SIZE as u64);
}

/// What was written to it is written out first: whoever commits meanwhile does not wait for that.
fn a_large_file_is_written_out_before_it_is_recorded(setup: Setup) {
    let disk = match Disk::new(&["mkfs.ext4", "-q", "-F"], 256) {
        Ok(disk) => disk,
        Err(reason) => return setup.skip(&reason),
    };
    const SIZE: usize = 48 << 20;
    let mut mount = setup.pool_at(disk.at("pool")).mount();
    fs::write(mount.at("large"), Pattern(1).bytes(0, SIZE)).unwrap();
    // What is left when it has been for a part may be too little.
    const PART: u64 = 16 << 20;
    let written_out = |info: &Value| count(&info["counters"], "written_out_bytes");
    mount.wait_for("bytes written out", |info| written_out(info) >= PART);
    mount.wait_for_seals(1);
    // While it is open, too; and a file of any size that is renamed is recorded at once.
    let before = written_out(&mount.info());
    let mut open = File::create(mount.at("open")).unwrap();
    open.write_all(&Pattern(2).bytes(0, SIZE)).unwrap();
    mount.wait_for("bytes written out", |info| written_out(info) >= before + PART);
    fs::write(mount.at("part"), Pattern(3).bytes(0, SIZE)).unwrap();
    fs::rename(mount.at("part"), mount.at("whole")).unwrap();
    mount.sync();
    drop(open);
    mount.power_loss();
    mount.mount();
    for (name, pattern) in [("large", 1), ("open", 2), ("whole", 3)] {
        assert_eq!(Pattern(pattern).mismatch(0, &fs::read(mount.at(name)).unwrap()), None, "{name}");
        assert_eq!(fs::metadata(mount.at(name)).unwrap().len(), SIZE as u64, "{name}");
    }
}

/// One that was closed and not recorded yet is replaced: its old version is whole.
///
/// Proves R3.
fn a_large_file_replaced_just_after_it_was_closed_is_whole(setup: Setup) {
    let disk = match Disk::new(&["mkfs.ext4", "-q", "-F"], 256) {
        Ok(disk) => disk,
        Err(reason) => return setup.skip(&reason),
    };
    const SIZE: usize = 48 << 20;
    let mut mount = setup.pool_at(disk.at("pool")).mount_with(["--commit", "3600"]).mount();
    fs::write(mount.at("f"), Pattern(1).bytes(0, SIZE)).unwrap();
    let mut file = File::create(mount.at("f")).unwrap();
    file.write_all(b"new").unwrap();
    mount.sync();
    mount.kill9();
    drop(file);
    mount.power_loss();
    mount.mount();
    let found = fs::read(mount.at("f")).unwrap();
    assert_eq!((found.len(), Pattern(1).mismatch(0, &found)), (SIZE, None));
}

/// A small new file, which is the pool's business alone until the background commits.
fn save(mount: &Mount, name: &str, bytes: &[u8]) {
    let part = mount.at(format!("{name}.tmp"));
    let mut file = File::create(&part).unwrap();
    file.write_all(bytes).unwrap();
    file.sync_all().unwrap();
    drop(file);
    fs::rename(part, mount.at(name)).unwrap();
    File::open(mount.path()).unwrap().sync_all().unwrap();
}

/// Its bytes go into the log: the host's filesystem is not asked to make anything else durable.
fn a_new_small_file_its_name_and_its_directory_take_one_flush(setup: Setup) {
    let disk = match Disk::new(&["mkfs.ext4", "-q", "-F"], 256) {
        Ok(disk) => disk,
        Err(reason) => return setup.skip(&reason),
    };
    let mount = setup.clone().pool_at(disk.at("pool")).mount_with(["--commit", "3600"]).mount();
    const EACH: u64 = 20;
    let flushes = || {
        let info = mount.info();
        ["log", "segments", "directories", "host"].map(|kind| info["flushes"][kind].as_u64().unwrap())
    };
    let seen = (0..20).find_map(|round| {
        // Files are sealed when they have been left alone for a second, which has segments synced. On a slow disk that
        // begins in between, and says nothing.
        mount.sync();
        mount.wait_for("end of sealing", |info| info["unsealed_files"] == 0);
        mount.sync();
        // The first one is noted in the superblock.
        let begun = std::time::Instant::now();
        save(&mount, &format!("{round}.first"), b"x");
        let before = flushes();
        for n in 0..EACH {
            save(&mount, &format!("{round}.{n}"), &[7; 4096]);
        }
        let after = flushes();
        for n in 0..EACH {
            let part = mount.at(format!("{round}.{n}.new"));
            fs::write(&part, [8; 4096]).unwrap();
            fs::rename(part, mount.at(format!("{round}.{n}.whole"))).unwrap();
            File::open(mount.path()).unwrap().sync_all().unwrap();
        }
        let last = flushes();
        (begun.elapsed().as_millis() < 900).then_some((before, after, last))
    });
    let Some((before, after, last)) = seen else {
        return setup.skip("the disk takes more than a second for 60 flushes");
    };
    // One for the file's fsync, and one for that of its directory after the rename.
    assert_eq!(after[0] - before[0], 2 * EACH);
    assert_eq!(after[1..], before[1..]);
    // Without the first, both are done by the second.
    assert_eq!(last[0] - after[0], EACH);
    assert_eq!(last[1..], before[1..]);
}

/// A power loss may leave nothing of a segment that was never synced, not even its name.
///
/// Proves D1.
fn a_small_file_that_the_host_lost_comes_back_from_the_log(setup: Setup) {
    let disk = match Disk::new(&["mkfs.ext4", "-q", "-F"], 256) {
        Ok(disk) => disk,
        Err(reason) => return setup.skip(&reason),
    };
    let names: Vec<String> = (0..30).map(|n| n.to_string()).collect();
    let made = (0..20).find_map(|round| {
        let pool = disk.at(format!("pool{round}"));
        let mount = setup.clone().pool_at(&pool).mount_with(["--commit", "3600"]).mount();
        for (n, name) in (1..).zip(&names) {
            save(&mount, name, &Pattern(n).bytes(0, 100 * n as usize));
        }
        // Once a file is sealed, its bytes go to its segment with the next flush.
        (mount.info()["counters"]["sealed"] == 0).then_some((mount, pool))
    });
    let Some((mut mount, pool)) = made else {
        return setup.skip("the disk takes more than a second for 60 flushes");
    };
    mount.kill9();
    let mut lost = 0;
    for shard in fs::read_dir(pool.join("segments")).unwrap() {
        for segment in fs::read_dir(shard.unwrap().path()).unwrap() {
            let path = segment.unwrap().path();
            let size = fs::metadata(&path).unwrap().len();
            match lost % 3 {
                0 => fs::remove_file(path).unwrap(),
                1 => File::options().write(true).open(path).unwrap().set_len(size / 2).unwrap(),
                _ => fs::write(path, vec![0; size as usize]).unwrap(),
            }
            lost += 1;
        }
    }
    assert!(lost >= names.len());
    mount.power_loss();
    mount.mount();
    for (n, name) in (1..).zip(&names) {
        let found = fs::read(mount.at(name)).unwrap();
        assert_eq!((found.len(), Pattern(n).mismatch(0, &found)), (100 * n as usize, None), "{name}");
    }
    mount.umount();
    mount.tensorfs_ok([OsStr::new("check"), "--data".as_ref(), pool.as_os_str()]);
}
