//! A mount as a service: started again, stopped and killed by its manager.

mod booted;
mod fstab;
mod host;
mod manager;
mod options;
mod service;
mod systemd;

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::channel;
use std::thread;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::gettid;
use tensorfs_tests::{Mount, Setup, at_work, has_ended, is_root, on_mounts, unmounting, wait_for_end, wait_until};

use manager::{Manager, Store, kill};
use service::Service;

on_mounts!(
    a_service_that_is_started_again_is_not_noticed,
    a_service_that_is_stopped_unmounts,
    what_cannot_be_carried_over_is_mounted_anew,
    what_the_manager_gives_is_not_believed,
    a_server_without_a_keeper_is_not_doubled,
    a_server_that_the_lock_does_not_name_is_not_doubled,
    without_a_store_nothing_is_left,
);

/// A pool that was mounted, and its place; none where that is no matter of this test.
fn place(setup: Setup) -> Option<Mount> {
    if !is_root() {
        setup.skip("services here are root's");
        return None;
    }
    let mut mount = setup.mount_with(["-o", "keeper"]).mount();
    if mount.is_plain() {
        return None;
    }
    mount.umount();
    Some(mount)
}

fn lock(file: &File) -> Result<(), Errno> {
    let (l_type, l_whence) = (libc::F_WRLCK as i16, libc::SEEK_SET as i16);
    let whole = libc::flock { l_type, l_whence, l_start: 0, l_len: 0, l_pid: 0 };
    fcntl(file, FcntlArg::F_OFD_SETLK(&whole)).map(drop)
}

/// Proves K8.
fn a_service_that_is_started_again_is_not_noticed(setup: Setup) {
    let Some(mount) = place(setup) else { return };
    is_started_again_unnoticed(&mount, &mut Manager::new());
}

/// A service that is started again in every way, as programs are at work and have files open.
fn is_started_again_unnoticed(mount: &Mount, manager: &mut impl Service) {
    manager.start(mount, &[]);
    let create = |name: &str| File::options().read(true).write(true).create_new(true).open(mount.at(name)).unwrap();
    let (file, gone) = (create("f"), create("gone"));
    gone.write_all_at(b"still", 0).unwrap();
    fs::remove_file(mount.at("gone")).unwrap();
    let mut appended = OpenOptions::new().append(true).create(true).open(mount.at("appended")).unwrap();
    file.set_len(8192).unwrap();
    lock(&file).unwrap();
    // SAFETY: nobody cuts the file.
    let mut mapped = unsafe { memmap2::MmapMut::map_mut(&file) }.unwrap();
    fs::create_dir(mount.at("many")).unwrap();
    (0..4000).for_each(|n| drop(File::create(mount.at(format!("many/{n}"))).unwrap()));
    let mut listing = fs::read_dir(mount.at("many")).unwrap();
    let mut listed: Vec<_> = listing.by_ref().take(10).map(|one| one.unwrap().file_name()).collect();
    thread::scope(|scope| {
        let dir = mount.path().to_owned();
        let busy = scope.spawn(move || at_work(&dir));
        for round in 0..4_u8 {
            let before = manager.main();
            // Options of the server may be others.
            let options = ["-o", ["commit=1", "commit=7,threads=3"][usize::from(round % 2)]];
            if round == 2 {
                manager.kill_and_start(mount, &options);
            } else {
                assert_eq!(manager.restart(mount, &options), "", "{}", mount.log());
            }
            assert_ne!(manager.main(), before);
            let info = mount.info();
            assert_eq!(info["keeper"]["pid"], manager.main(), "{info}");
            assert_eq!(info["keeper"]["takeovers"], round + 1, "{info}");
            assert_eq!(info["keeper"]["reason"], "its service was started again");
            assert_eq!(info["commit_seconds"].as_f64(), Some([1.0, 7.0][usize::from(round % 2)]));
            file.write_all_at(&[round; 100], 4096).unwrap();
            appended.write_all(&[round]).unwrap();
            assert_eq!(mapped[4096], round);
            mapped[usize::from(round)] = round;
            file.sync_all().unwrap();
            let mut text = [0; 5];
            gone.read_exact_at(&mut text, 0).unwrap();
            assert_eq!(&text, b"still");
            let other = File::options().read(true).write(true).open(mount.at("f")).unwrap();
            assert_eq!(lock(&other), Err(Errno::EAGAIN));
        }
        fs::write(mount.at("stop"), "").unwrap();
        assert!(busy.join().unwrap() > 0);
    });
    listed.extend(listing.map(|one| one.unwrap().file_name()));
    listed.sort();
    listed.dedup();
    assert_eq!(listed.len(), 4000);
    assert_eq!(manager.kept(), 3, "what is kept is what was kept first");
    // Who dies meanwhile is replaced by this keeper.
    let server = mount.info()["pid"].as_i64().unwrap() as i32;
    kill(server, libc::SIGKILL);
    wait_until("another server", || mount.info()["pid"].as_i64() != Some(server.into()));
    assert_eq!(fs::read(mount.at("appended")).unwrap(), [0, 1, 2, 3]);
    drop((file, gone, appended, mapped));
    manager.stop(mount);
    assert!(mount.tensorfs(["check", "--data", mount.pool().to_str().unwrap()]).status.success());
}

/// Proves K8.
fn a_service_that_is_stopped_unmounts(setup: Setup) {
    let Some(mount) = place(setup) else { return };
    let mut manager = Manager::new();
    for again in [false, true] {
        manager.start(&mount, &[]);
        if again {
            manager.restart(&mount, &[]);
        }
        assert_eq!(manager.store(|store| store.len()), 3);
        fs::write(mount.at("f"), "text").unwrap();
        let said = manager.stopping(&mount, &[], "stop");
        assert!(said.status.success() && said.stderr.is_empty(), "{said:?}");
        assert_eq!(mount.info()["keeper"]["pid"], manager.main());
        let unmounting = unmounting();
        kill(manager.main(), libc::SIGTERM);
        assert!(manager.wait());
        drop(unmounting);
        wait_until("nothing kept", || manager.store(|store| store.is_empty()));
        let info = mount.info();
        // A takeover counts as an opening of what was not closed.
        let unsafe_shutdowns = u32::from(again);
        assert_eq!((&info["state"], &info["unsafe_shutdowns"]), (&"clean".into(), &unsafe_shutdowns.into()), "{info}");
    }
    // Nor is anything kept of a mount that somebody else has unmounted.
    manager.start(&mount, &[]);
    assert_eq!(fs::read(mount.at("f")).unwrap(), b"text");
    let unmounting = unmounting();
    mount.tensorfs_ok([Path::new("umount"), mount.path()]);
    drop(unmounting);
    assert!(manager.wait());
    wait_until("nothing kept", || manager.store(|store| store.is_empty()));
}

/// Proves K8.
fn what_cannot_be_carried_over_is_mounted_anew(setup: Setup) {
    let Some(mount) = place(setup) else { return };
    let mut manager = Manager::new();
    manager.start(&mount, &[]);
    let flags = || {
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let line = table.lines().find(|line| line.contains(mount.path().to_str().unwrap())).unwrap().to_owned();
        line.split(' ').nth(5).unwrap().to_owned()
    };
    for options in ["noexec", "noexec,nodiratime", "noatime", "ro"] {
        let said = manager.restart(&mount, &["-o", options]);
        assert!(said.contains("it is unmounted, and mounted again: it is to be mounted otherwise"), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(options.split(',').all(|one| flags().contains(one)), "{}", flags());
    }
    // Nor what the next program says that it cannot do. Until it is stopped for that, it serves.
    let said = manager.stopping(&mount, &["-o", "ro,layout=other"], "restart");
    let said = String::from_utf8(said.stderr).unwrap();
    assert!(said.contains("unmounted, and mounted again: the new server") && said.contains("layout"), "{said}");
    assert_eq!(mount.info()["keeper"]["pid"], manager.main());
    let said = manager.restart(&mount, &["-o", "rw,commit=1"]);
    assert!(said.contains("otherwise (ro)"), "{said}");
    let info = mount.info();
    assert_eq!((&info["keeper"]["takeovers"], &info["unsafe_shutdowns"]), (&0.into(), &0.into()), "{info}");
    manager.stop(&mount);
}

/// A file that is open, of a mount that is begun.
fn begun(mount: &Mount, manager: &mut Manager) -> File {
    manager.start(mount, &[]);
    let path = mount.at("f");
    let _ = fs::remove_file(&path);
    let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    file.write_all_at(b"whole", 0).unwrap();
    file.sync_all().unwrap();
    file
}

/// As [`begun`]; keeper and server are killed then.
fn left(mount: &Mount, manager: &mut Manager) -> File {
    let file = begun(mount, manager);
    manager.kill(mount);
    file
}

/// What a manager could give back that is not what it was given, beside what it keeps of a stranger's mount; and what
/// is said of that.
type Change = (&'static str, fn(&mut Store, &mut Store));

const CHANGES: &[Change] = &[
    ("called otherwise", |own, _| own.iter_mut().for_each(|(name, _)| *name = "stored".into())),
    ("called otherwise", |own, _| own.iter_mut().for_each(|(name, _)| *name = "x y\u{1b}".into())),
    (NOT_WHOLE, |own, _| drop(own.remove(0))),
    (NOT_WHOLE, |own, _| drop(own.remove(1))),
    (NOT_WHOLE, |own, _| drop(own.remove(2))),
    (NOT_WHOLE, |own, _| own.extend(copies(own))),
    (NOT_WHOLE, |own, _| put(own, "fuse", null())),
    (NOT_WHOLE, |own, _| put(own, "memfd", null())),
    (NOT_WHOLE, |own, _| put(own, "lock", null())),
    (NOT_WHOLE, |own, theirs| put(own, "lock", find(theirs, "lock"))),
    (NOT_WHOLE, |own, theirs| *own = copies(theirs)),
    ("of another mount", |own, theirs| put(own, "fuse", find(theirs, "fuse"))),
    ("of another mount", |own, _| {
        own.iter_mut().for_each(|(name, _)| *name = format!("tensorfs-1-{}", name.rsplit('-').next().unwrap()));
    }),
    ("is of another pool", |own, theirs| put(own, "memfd", find(theirs, "memfd"))),
    ("cannot take over", |own, _| {
        let memory = File::from(memfd_create(c"x", MFdFlags::empty()).unwrap());
        memory.write_all_at(&[b'x'; 8192], 0).unwrap();
        put(own, "memfd", memory.into());
    }),
];

const NOT_WHOLE: &str = "not a device, a memory and the lock";

fn null() -> OwnedFd {
    File::open("/dev/null").unwrap().into()
}

fn copies(store: &Store) -> Store {
    store.iter().map(|(name, one)| (name.clone(), one.try_clone().unwrap())).collect()
}

/// What is of a kind, as the kernel calls it, is another one.
fn put(store: &mut Store, kind: &str, one: OwnedFd) {
    store.iter_mut().find(|(_, old)| is_kind(old, kind)).unwrap().1 = one;
}

fn find(store: &Store, kind: &str) -> OwnedFd {
    store.iter().find(|(_, one)| is_kind(one, kind)).unwrap().1.try_clone().unwrap()
}

fn is_kind(one: &OwnedFd, kind: &str) -> bool {
    let link = fs::read_link(format!("/proc/thread-self/fd/{}", one.as_raw_fd())).unwrap();
    link.to_str().unwrap().contains(kind)
}

/// Proves K8.
fn what_the_manager_gives_is_not_believed(setup: Setup) {
    let Some((mount, other)) = place(setup.clone()).zip(place(setup)) else { return };
    let mut manager = Manager::new();
    let mut stranger = manager.beside();
    // Nothing of it is open here: who starts a program closes that, and nobody would answer.
    drop(begun(&other, &mut stranger));
    stranger.kill(&other);
    for (n, (why, change)) in CHANGES.iter().enumerate() {
        let file = left(&mount, &mut manager);
        let lines = mount.log().lines().count();
        manager.both(&stranger, change);
        manager.start(&mount, &[]);
        let log: Vec<String> = mount.log().lines().skip(lines).map(str::to_owned).collect();
        let said: Vec<_> = log.iter().filter(|line| line.contains("is of no use")).collect();
        assert!(said.len() == 1 && said[0].contains(why), "{n} {why}: {log:#?}");
        // It is another mount, and none of the old one is a file of it. What the kernel has of that one it may give.
        let mut text = [0; 5];
        match file.read_at(&mut text, 0) {
            Ok(_) => assert_eq!(&text, b"whole"),
            Err(error) => assert!([libc::ENOTCONN, libc::ECONNABORTED].contains(&error.raw_os_error().unwrap())),
        }
        assert_eq!(fs::read(mount.at("f")).unwrap(), b"whole", "{n}");
        let info = mount.info();
        assert_eq!(info["keeper"]["takeovers"], 0, "{info}");
        assert_eq!(manager.store(|store| store.len()), 3, "{n} {why}");
        manager.stop(&mount);
    }
    // What is whole beside what is not goes on.
    let file = left(&mount, &mut manager);
    manager.store(|store| store.insert(0, ("mine".into(), null())));
    manager.start(&mount, &[]);
    file.write_all_at(b"again", 0).unwrap();
    assert_eq!(fs::read(mount.at("f")).unwrap(), b"again");
    assert_eq!(manager.store(|store| store.len()), 3);
    drop(file);
    manager.stop(&mount);
    // And the stranger's mount was not touched.
    stranger.start(&other, &[]);
    assert_eq!(fs::read(other.at("f")).unwrap(), b"whole");
    stranger.stop(&other);
}

/// Proves K8.
fn a_server_without_a_keeper_is_not_doubled(setup: Setup) {
    let Some(mount) = place(setup) else { return };
    let mut manager = Manager::new();
    manager.start(&mount, &[]);
    let server = mount.info()["pid"].as_i64().unwrap() as i32;
    kill(manager.main(), libc::SIGKILL);
    manager.wait();
    manager.begin(&mount, &[]);
    assert!(!manager.wait());
    let said = manager.errors();
    assert!(said.contains(&format!("process {server} serves it still, without a keeper")), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    fs::write(mount.at("f"), "text").unwrap();
    assert_eq!(mount.info()["pid"].as_i64(), Some(server.into()));
    kill(server, libc::SIGKILL);
    manager.start(&mount, &[]);
    assert_eq!(fs::read(mount.at("f")).unwrap(), b"text");
    assert_eq!(mount.info()["keeper"]["takeovers"], 1);
    manager.stop(&mount);
}

/// The words of the lock are the owner's; and the number of a server that has ended may be anybody's, also a thread's.
///
/// Proves K8.
fn a_server_that_the_lock_does_not_name_is_not_doubled(setup: Setup) {
    let Some(mount) = place(setup) else { return };
    let mut manager = Manager::new();
    let mut file = begun(&mount, &mut manager);
    let server = mount.info()["pid"].as_i64().unwrap() as i32;
    kill(manager.main(), libc::SIGKILL);
    manager.wait();
    let say =
        |pid: u32| fs::write(mount.pool().join("lock"), format!("{{\"pid\":{pid},\"mountpoint\":null}}")).unwrap();
    let mut ended = Command::new("true").spawn().unwrap();
    ended.wait().unwrap();
    say(ended.id());
    manager.begin(&mount, &[]);
    wait_until("the end of a keeper that cannot go on", || has_ended(manager.main()));
    assert!(!manager.wait());
    let said = manager.errors();
    assert!(said.contains("another server serves it still") && said.lines().count() == 1, "{said}");
    file.write_all(b"w").unwrap();
    assert!(!has_ended(server));
    let (_gate, shut) = channel::<()>();
    let (tell, told) = channel();
    thread::spawn(move || {
        tell.send(gettid().as_raw() as u32).unwrap();
        shut.recv().is_ok()
    });
    say(told.recv().unwrap());
    kill(server, libc::SIGKILL);
    wait_for_end(server);
    manager.start(&mount, &[]);
    file.write_all(b"h").unwrap();
    assert_eq!(fs::read(mount.at("f")).unwrap(), b"whole");
    assert_eq!(mount.info()["keeper"]["takeovers"], 1);
    drop(file);
    manager.stop(&mount);
}

/// Proves K8.
fn without_a_store_nothing_is_left(setup: Setup) {
    let Some(mount) = place(setup) else { return };
    let mut manager = Manager::new();
    manager.start(&mount, &[]);
    manager.store(Vec::clear);
    let said = manager.restart(&mount, &[]);
    assert!(said.contains("the service manager has not kept what it needs"), "{said}");
    let info = mount.info();
    assert_eq!((&info["keeper"]["takeovers"], &info["unsafe_shutdowns"]), (&0.into(), &0.into()), "{info}");
    manager.stop(&mount);
}
