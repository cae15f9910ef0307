//! Mounts of other users that say they are tensorfs: of any pool, with answers of their own, or none.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use tensorfs_tests::{Tree, assert_same_tree, is_root, needs_mount, run, run_ok, scratch, skip, tensorfs};

const USER: u32 = 65_534;

/// Each command with a path in the mount, `M`. `P` is the pool that the mount says it is of.
const COMMANDS: [&str; 30] = [
    "stat M/file tensor",
    "tensors M",
    "cat M/file tensor",
    "verify M",
    "verify --mend M/file",
    "scrub M",
    "scrub --mend M",
    "upgrade M",
    "mount P M",
    "mount -o remount,commit=1 P M",
    "latest M",
    "rollback M",
    "diff M/one P",
    "diff P M/one",
    "ls M",
    "records M",
    "seal M/file",
    "sync M",
    "check M",
    "resize M 1G",
    "restore M",
    "tier list M",
    "tier map M",
    "tier move M/file pm",
    "tier add P other M/other",
    "metrics M",
    "trace M",
    "alarm --run /bin/true M",
    "remote get M/file",
    "remote wait M",
];

/// A mount of another user's. Its server takes each request, notes which programs of ours have asked as root, and gives
/// these an error; others wait for it for ever.
struct Hostile {
    at: PathBuf,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Hostile {
    fn mount(at: PathBuf, pool: &Path) -> Self {
        fs::create_dir_all(&at).unwrap();
        let device = File::options().read(true).write(true).open("/dev/fuse").unwrap();
        let data = format!("fd={},rootmode=40000,user_id={USER},group_id={USER},allow_other", device.as_raw_fd());
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        mount(Some(pool), &at, Some("fuse.tensorfs"), flags, Some(data.as_str())).unwrap();
        let asked = Arc::default();
        let (noted, room) = (Arc::clone(&asked), at.parent().unwrap().display().to_string());
        std::thread::spawn(move || serve(device, &room, &noted));
        Self { at, asked }
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        let _ = umount2(&self.at, MntFlags::MNT_DETACH);
    }
}

/// Until it is unmounted. `struct fuse_in_header`: length, what (4), number (8), node, user (24), group, thread (32).
/// Our programs are known by a path in the room: other tests have theirs.
fn serve(mut device: File, room: &str, asked: &Mutex<Vec<String>>) {
    const INIT: u32 = 26;
    let mut request = vec![0; 1 << 20];
    while device.read(&mut request).is_ok() {
        let word = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().unwrap());
        let (what, number, user, thread) = (word(4), &request[8..16], word(24), word(32));
        let answer = |error: i32, more: &[u8]| {
            let mut text = (16 + more.len() as u32).to_ne_bytes().to_vec();
            text.extend(error.to_ne_bytes().iter().chain(number).chain(more));
            text
        };
        let program = fs::read(format!("/proc/{thread}/cmdline")).unwrap_or_default();
        let program = String::from_utf8_lossy(&program).replace('\0', " ");
        let told = if what == INIT {
            // Version 7.31, and 128 KiB for each write; nothing else is wished for.
            let mut accepted = [0; 64];
            accepted[..4].copy_from_slice(&7_u32.to_ne_bytes());
            accepted[4..8].copy_from_slice(&31_u32.to_ne_bytes());
            accepted[20..24].copy_from_slice(&(128_u32 << 10).to_ne_bytes());
            answer(0, &accepted)
        } else if user == 0 {
            if program.contains("tensorfs") && program.contains(room) {
                asked.lock().unwrap().push(format!("request {what} of {program}"));
            } else {
                eprintln!("request {what} of {program}");
            }
            answer(-libc::EIO, &[])
        } else {
            continue;
        };
        // A request that was interrupted has nobody who waits.
        let _ = device.write_all(&told);
    }
}

/// Root asks nothing of a server of another user's, whatever that says it is of: each command that leads there says so,
/// and ends. The pool that it names is as it was.
///
/// Proves P6.
#[test]
fn root_asks_a_mount_of_another_user_nothing() {
    needs_mount!();
    if !is_root() {
        return skip("root_asks_a_mount_of_another_user_nothing", "only root has something to lose");
    }
    let room = scratch();
    let (pool, at) = (room.path().join("pool"), room.path().join("mnt"));
    run_ok(tensorfs().arg("create").arg(&pool));
    let before = Tree::read(&pool);
    let hostile = Hostile::mount(at.clone(), &pool);
    // Whether a path leads to this one is not found out by way of the other.
    let later = Hostile::mount(room.path().join("later"), &pool);
    let link = room.path().join("link");
    symlink(&at, &link).unwrap();
    for at in [&at, &link] {
        for line in COMMANDS {
            let place = |word: &str| match word.strip_prefix('M') {
                Some(rest) => format!("{}{rest}", at.display()),
                None if word == "P" => pool.display().to_string(),
                None => word.to_owned(),
            };
            let output = run(tensorfs().args(line.split(' ').map(place)));
            let said = String::from_utf8_lossy(&output.stderr);
            let failed = match line.split(' ').next() {
                Some("check") => 8,
                Some("diff") => 2,
                _ => 1,
            };
            assert_eq!(output.status.code(), Some(failed), "{line}: {said}");
            assert!(said.contains("of user 65534's") && said.lines().count() == 1, "{line}: {said}");
            assert_eq!((hostile.asked(), later.asked()), (vec![], vec![]), "{line}");
        }
    }
    assert_same_tree(&Tree::read(&pool), &before);
    // What is found on the way there is left out.
    fs::write(room.path().join("file"), "bytes").unwrap();
    let listed = run(tensorfs().args(["verify", "--all"]).arg(room.path().join("file")).arg(room.path()));
    assert!(String::from_utf8_lossy(&listed.stderr).contains("left out"), "{listed:?}");
    // Who names the pool hears of the pool: nobody has mounted it.
    let info: serde_json::Value =
        serde_json::from_str(&run_ok(tensorfs().args(["info", "--json"]).arg(&pool))).unwrap();
    assert_eq!(info["state"], "clean");
    run_ok(tensorfs().arg("resize").arg(&pool).arg("1G"));
    let unmounted = run(tensorfs().arg("sync").arg(&pool));
    assert!(!unmounted.status.success(), "{unmounted:?}");
    assert_eq!(hostile.asked(), [""; 0]);
    // It is taken away without a word to its server.
    run_ok(tensorfs().arg("umount").arg(&at));
    assert_eq!((hostile.asked(), later.asked()), (vec![], vec![]));
}

/// What root wants to know of such a mount somebody asks who is that user, and is not waited for long.
///
/// Proves P6.
#[test]
fn root_waits_for_no_server_of_another_user() {
    needs_mount!();
    if !is_root() {
        return skip("root_waits_for_no_server_of_another_user", "only root has something to lose");
    }
    let room = scratch();
    let pool = room.path().join("pool");
    run_ok(tensorfs().arg("create").arg(&pool));
    let hostile = Hostile::mount(room.path().join("mnt"), &pool);
    for command in ["info", "health"] {
        let output = run(tensorfs().arg(command).arg(&hostile.at));
        let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.lines().count() == 1, "{command}: {said}");
        assert!(said.contains("mnt"), "{command}: {said}");
        let below = run(tensorfs().arg(command).arg(hostile.at.join("directory")));
        assert!(!below.status.success(), "{command}: {below:?}");
        assert_eq!(hostile.asked(), [""; 0], "{command}");
    }
}

/// A pool's log says where its tiers are, and its owner writes it: a mount of his on the way to one, or below which one
/// is, is asked nothing, and the tier is missing.
///
/// Proves P6.
#[test]
fn a_tier_on_a_mount_of_another_user_is_missing() {
    needs_mount!();
    if !is_root() {
        return skip("a_tier_on_a_mount_of_another_user_is_missing", "only root has something to lose");
    }
    let room = scratch();
    let pool = room.path().join("pool");
    run_ok(tensorfs().arg("create").arg(&pool));
    run_ok(Command::new("chown").arg("-R").arg(USER.to_string()).arg(&pool));
    let at = room.path().join("at");
    fs::create_dir(&at).unwrap();
    chown(&at, Some(USER), None).unwrap();
    for (name, tier) in [("one", "t"), ("other", "below/t")] {
        fs::create_dir_all(at.join(tier).parent().unwrap()).unwrap();
        run_ok(tensorfs().args(["tier", "add"]).arg(&pool).arg(name).arg(at.join(tier)));
    }
    let hostile = Hostile::mount(at, &pool);
    let mnt = room.path().join("mnt");
    fs::create_dir(&mnt).unwrap();
    for line in ["info P", "ls P", "check P", "tier list P", "verify P", "resize P 1G", "mount P M", "tier list M"] {
        let place = |word: &str| match word {
            "P" => pool.clone(),
            "M" => mnt.clone(),
            _ => word.into(),
        };
        let output = run(tensorfs().args(line.split(' ').map(place)));
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(hostile.asked(), [""; 0], "{line}");
        if line.starts_with("tier") {
            let missing = said.lines().filter(|line| line.contains("that user 65534 serves")).count();
            assert_eq!(missing, 2, "{line}: {output:?}");
        }
    }
    fs::write(mnt.join("file"), "bytes").unwrap();
    run_ok(tensorfs().arg("umount").arg(&mnt));
    assert_eq!(hostile.asked(), [""; 0]);
}

/// A directory that is bound to a second place, as containers have it, is no forgery.
///
/// Proves P7.
#[test]
fn a_directory_that_is_bound_to_a_second_place_is_listed_in_both() {
    if !is_root() {
        return skip("a_directory_that_is_bound_to_a_second_place_is_listed_in_both", "only root can bind it");
    }
    let room = scratch();
    let top = room.path().join("top");
    fs::create_dir_all(top.join("run7/step")).unwrap();
    fs::create_dir(top.join("current")).unwrap();
    fs::write(top.join("run7/step/file"), "bytes").unwrap();
    mount(Some(&top.join("run7")), &top.join("current"), None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
    let outputs = [&["ls", "-R"] as &[&str], &["verify"]].map(|command| run(tensorfs().args(command).arg(&top)));
    umount2(&top.join("current"), MntFlags::MNT_DETACH).unwrap();
    for output in outputs {
        // What is in no pool is named, and not listed.
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!said.contains("another name"), "{said}");
        assert!(["run7", "current"].iter().all(|place| said.contains(&format!("{place}/step/file"))), "{said}");
    }
}
