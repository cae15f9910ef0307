//! Tiers: where files go, how they are moved, and what becomes of them when a tier does not survive.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::errno::Errno;
use serde_json::Value;
use tensorfs_tests::{
    Call, HostCalls, Mount, Mounted, Pattern, Rule, Setup, as_user, child, is_root, on_mounts, run, safetensors, shell,
    wait_until, xattr,
};

use crate::grown::{frames, records};

on_mounts!(
    a_file_says_in_which_tier_it_is,
    new_files_go_where_directories_and_the_map_say,
    a_directory_names_a_tier,
    the_map_is_replaced_as_a_whole_or_not_at_all,
    half_a_map_of_a_killed_writer_does_not_count,
    globs_fit_names_and_paths,
    a_file_is_moved_with_all_that_is_known_of_it,
    what_changed_since_it_was_sealed_is_told_when_it_is_moved,
    a_file_in_use_is_not_moved,
    a_move_gives_way_to_who_opens_the_file,
    only_the_owner_moves_a_file,
    a_server_killed_in_the_middle_of_a_move_leaves_a_whole_file,
    files_of_a_volatile_tier_are_lost_and_say_so,
    files_of_a_missing_tier_are_back_with_it,
    a_version_of_a_tier_whose_quarantine_is_none_is_set_aside_in_the_pool,
    a_tier_in_which_the_kernel_cannot_help_is_served,
    a_tier_whose_host_takes_no_changes_fails_its_own_files_alone,
    space_is_that_of_all_tiers,
    a_full_tier_is_full,
    uses_are_counted,
    commands_say_what_is_wrong,
    a_pool_that_is_not_mounted,
);

/// A mounted pool with two more tiers: `ssd` beside it, `dram` in memory.
struct Tiers {
    mount: Mount,
    /// In memory; removed with it.
    _memory: tempfile::TempDir,
    ssd: PathBuf,
    dram: PathBuf,
}

impl Tiers {
    fn new(setup: Setup) -> Option<Self> {
        if setup.mount_is_plain() {
            return None;
        }
        let memory = setup.in_memory()?;
        let mut mount = setup.mount();
        mount.umount();
        let (ssd, dram) = (mount.host().join("ssd"), memory.path().join("dram"));
        for (name, directory) in [("ssd", &ssd), ("dram", &dram)] {
            mount.add_tier(name, directory);
        }
        mount.mount();
        Some(Self { mount, _memory: memory, ssd, dram })
    }

    fn tier(&self, name: &str) -> Value {
        let info = self.mount.info();
        info["tiers"].as_array().unwrap().iter().find(|tier| tier["name"] == name).unwrap().clone()
    }
}

#[track_caller]
fn get(path: &Path, name: &str) -> Result<String, Errno> {
    xattr::get(path, name).map(|value| String::from_utf8(value).unwrap())
}

fn set(path: &Path, tier: &str) -> Result<(), Errno> {
    xattr::set(path, "user.tensorfs.tier", tier.as_bytes(), 0)
}

fn unset(path: &Path) -> Result<(), Errno> {
    xattr::remove(path, "user.tensorfs.tier")
}

#[track_caller]
fn tier_of(path: &Path) -> String {
    get(path, "user.tensorfs.tier").unwrap()
}

fn state_of(path: &Path) -> String {
    get(path, "user.tensorfs.state").unwrap()
}

/// Writes a new map as a program does, and says what came of it.
fn set_map(mount: &Mount, text: &str) -> Result<(), Option<i32>> {
    let mut file = OpenOptions::new().write(true).truncate(true).open(mount.at(".tensorfs/placement")).unwrap();
    file.write_all(text.as_bytes()).unwrap();
    // `File` would not say what closing it gives.
    let fd = std::os::fd::IntoRawFd::into_raw_fd(file);
    // SAFETY: the descriptor is ours, and nobody else's any more.
    Errno::result(unsafe { libc::close(fd) }).map(drop).map_err(|errno| Some(errno as i32))
}

fn map(mount: &Mount) -> String {
    fs::read_to_string(mount.at(".tensorfs/placement")).unwrap()
}

/// Segments with bytes in them; the pool has spare ones, which are empty.
fn segments_below(directory: &Path) -> usize {
    let shards = fs::read_dir(directory.join("segments")).unwrap();
    let entries = shards.flat_map(|shard| fs::read_dir(shard.unwrap().path()).unwrap());
    entries.filter(|entry| entry.as_ref().unwrap().metadata().is_ok_and(|found| found.len() > 0)).count()
}

fn errno<T>(result: std::io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

/// `tensorfs tier move` of one file: whether it did, and what it said.
fn move_to(mount: &Mount, path: &Path, tier: &str) -> (bool, String) {
    let output = mount.tensorfs(["tier".as_ref(), "move".as_ref(), path.as_os_str(), tier.as_ref()]);
    (output.status.success(), String::from_utf8(output.stderr).unwrap())
}

/// A copy has no seals that are provisional.
///
/// Proves C9.
fn what_changed_since_it_was_sealed_is_told_when_it_is_moved(setup: Setup) {
    let Some(t) = Tiers::new(setup) else { return };
    let path = t.mount.at("events.out.tfevents.1");
    let mut file = File::create(&path).unwrap();
    let written = frames(0..20, 8192);
    file.write_all(&written).unwrap();
    let is_sealed = || records(&t.mount, "events.out.tfevents.1").iter().any(|record| record["crc32c"].is_string());
    wait_until("it is sealed", is_sealed);
    let other = frames(3..4, 8192);
    file.write_at(&other, frames(0..2, 8192).len() as u64).unwrap();
    drop(file);
    let changed = || t.mount.info()["counters"]["changed_open"].as_u64().unwrap();
    let before = changed();
    assert_eq!(move_to(&t.mount, &path, "ssd"), (true, String::new()));
    assert_eq!((before, changed()), (0, 1));
    assert_eq!(tier_of(&path), "ssd");
}

/// Proves M1.
fn a_file_says_in_which_tier_it_is(setup: Setup) {
    let Some(t) = Tiers::new(setup) else { return };
    let names: Vec<Value> =
        t.mount.info()["tiers"].as_array().unwrap().iter().map(|tier| tier["name"].clone()).collect();
    assert_eq!(names, ["pm", "ssd", "dram"]);
    assert_eq!((t.tier("ssd")["volatile"].as_bool(), t.tier("dram")["volatile"].as_bool()), (Some(false), Some(true)));
    let pattern = Pattern(1);
    for (name, directory) in [("pm", t.mount.pool().to_owned()), ("ssd", t.ssd.clone()), ("dram", t.dram.clone())] {
        let dir = t.mount.at(format!("d-{name}"));
        fs::create_dir(&dir).unwrap();
        set(&dir, name).unwrap();
        let before = segments_below(&directory);
        let path = dir.join("f");
        fs::write(&path, pattern.bytes(0, 100_000)).unwrap();
        assert_eq!(tier_of(&path), name);
        assert_eq!(segments_below(&directory), before + 1, "{name}");
        // It does all that files do.
        let mut file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        file.write_all_at(b"changed", 50_000).unwrap();
        file.sync_all().unwrap();
        file.set_len(60_000).unwrap();
        let mut bytes = Vec::new();
        file.rewind().unwrap();
        file.read_to_end(&mut bytes).unwrap();
        assert_eq!((bytes.len(), &bytes[50_000..50_007]), (60_000, &b"changed"[..]));
        assert_eq!(bytes[..50_000], pattern.bytes(0, 50_000)[..]);
        drop(file);
        fs::hard_link(&path, dir.join("g")).unwrap();
        fs::rename(&path, dir.join("h")).unwrap();
        assert_eq!((tier_of(&dir.join("g")), tier_of(&dir.join("h"))), (name.to_owned(), name.to_owned()));
        fs::remove_file(dir.join("g")).unwrap();
        fs::remove_file(dir.join("h")).unwrap();
        t.mount.sync();
        t.mount.wait_for("removal", |_| segments_below(&directory) == before);
    }
}

/// Proves M2.
fn new_files_go_where_directories_and_the_map_say(setup: Setup) {
    let Some(mut t) = Tiers::new(setup) else { return };
    set_map(&t.mount, "*.tmp dram\n/run/** ssd\n").unwrap();
    fs::create_dir_all(t.mount.at("run/deep")).unwrap();
    fs::create_dir_all(t.mount.at("mine")).unwrap();
    set(&t.mount.at("mine"), "ssd").unwrap();
    for (path, tier) in [
        ("a", "pm"),
        ("a.tmp", "dram"),
        ("run/a", "ssd"),
        ("run/deep/a", "ssd"),
        ("run/x.tmp", "dram"),
        ("mine/x.tmp", "ssd"),
    ] {
        fs::write(t.mount.at(path), b"bytes").unwrap();
        assert_eq!(tier_of(&t.mount.at(path)), tier, "{path}");
    }
    // A name moves no bytes.
    fs::rename(t.mount.at("a"), t.mount.at("run/b")).unwrap();
    assert_eq!(tier_of(&t.mount.at("run/b")), "pm");
    // A new map counts for new bytes; also where the server has not seen the file's name since it was started.
    set_map(&t.mount, "a.tmp ssd\n/moved/** dram\n").unwrap();
    OpenOptions::new().append(true).open(t.mount.at("a.tmp")).unwrap().write_all(b"+").unwrap();
    assert_eq!(tier_of(&t.mount.at("a.tmp")), "dram", "it was only added to");
    let mut new = File::create(t.mount.at("a.tmp")).unwrap();
    new.write_all(b"new").unwrap();
    assert_eq!(tier_of(&t.mount.at("a.tmp")), "ssd", "before it is closed");
    drop(new);
    assert_eq!(tier_of(&t.mount.at("a.tmp")), "ssd");
    t.mount.remount();
    // The path that counts is the one that it has now.
    fs::rename(t.mount.at("run"), t.mount.at("moved")).unwrap();
    fs::write(t.mount.at("moved/deep/a"), b"new").unwrap();
    fs::write(t.mount.at("moved/deep/b"), b"new").unwrap();
    assert_eq!(tier_of(&t.mount.at("moved/deep/a")), "dram");
    assert_eq!(tier_of(&t.mount.at("moved/deep/b")), "dram");
    assert_eq!(fs::read(t.mount.at("moved/deep/a")).unwrap(), b"new");
    // One that is not there is passed over.
    t.mount.umount();
    let away = t.ssd.with_file_name("away");
    fs::rename(&t.ssd, &away).unwrap();
    t.mount.mount();
    fs::write(t.mount.at("mine/new"), b"bytes").unwrap();
    assert_eq!(tier_of(&t.mount.at("mine/new")), "pm");
}

/// Proves M3.
fn a_directory_names_a_tier(setup: Setup) {
    let Some(mut t) = Tiers::new(setup) else { return };
    let dir = t.mount.at("d");
    fs::create_dir_all(dir.join("before")).unwrap();
    assert_eq!(get(&dir, "user.tensorfs.tier"), Err(Errno::ENODATA));
    assert_eq!(set(&dir, "nvme"), Err(Errno::EINVAL));
    set(&dir, "dram").unwrap();
    fs::create_dir_all(dir.join("x/y")).unwrap();
    fs::write(dir.join("x/y/f"), b"bytes").unwrap();
    fs::write(dir.join("before/f"), b"bytes").unwrap();
    assert_eq!((tier_of(&dir.join("x/y")), tier_of(&dir.join("x/y/f"))), ("dram".into(), "dram".into()));
    assert_eq!(tier_of(&dir.join("before/f")), "pm", "it was there before");
    assert_eq!(shell(t.mount.path(), "getfattr -d -m - d 2>/dev/null").trim(), "", "it is not listed");
    t.mount.remount();
    assert_eq!(tier_of(&dir.join("x")), "dram");
    unset(&dir.join("x")).unwrap();
    assert_eq!(unset(&dir.join("x")), Err(Errno::ENODATA));
    fs::write(dir.join("x/g"), b"bytes").unwrap();
    assert_eq!(tier_of(&dir.join("x/g")), "pm");
    set(&dir, "ssd").unwrap();
    fs::write(dir.join("h"), b"bytes").unwrap();
    assert_eq!(tier_of(&dir.join("h")), "ssd");
    // Nothing else has a tier to be set.
    std::os::unix::net::UnixListener::bind(t.mount.at("socket")).map(drop).unwrap();
    assert_eq!(set(&t.mount.at("socket"), "ssd"), Err(Errno::EPERM));
    assert_eq!(unset(&dir.join("h")), Err(Errno::EPERM));
}

/// Proves M4.
fn the_map_is_replaced_as_a_whole_or_not_at_all(setup: Setup) {
    let Some(mut t) = Tiers::new(setup) else { return };
    assert_eq!(map(&t.mount), "");
    set_map(&t.mount, "*.a dram\n").unwrap();
    for wrong in ["*.b dram\n*.c nvme\n", "*.b", "[ dram\n", "*.b dram\n\0\u{ff}"] {
        assert_eq!(set_map(&t.mount, wrong), Err(Some(libc::EINVAL)), "{wrong:?}");
        assert_eq!(map(&t.mount), "*.a dram\n", "{wrong:?}");
    }
    // It does not count before it is closed.
    let path = t.mount.at(".tensorfs/placement");
    let mut file = OpenOptions::new().write(true).truncate(true).open(&path).unwrap();
    file.write_all(b"*.x ssd\n").unwrap();
    fs::write(t.mount.at("1.x"), b"bytes").unwrap();
    assert_eq!((map(&t.mount), tier_of(&t.mount.at("1.x"))), ("*.a dram\n".into(), "pm".into()));
    file.sync_all().unwrap();
    assert_eq!(map(&t.mount), "*.x ssd\n", "or synced");
    file.write_all(b"*.y ssd\n").unwrap();
    drop(file);
    assert_eq!(map(&t.mount), "*.x ssd\n*.y ssd\n");
    // A shell opens it, makes a copy of the descriptor, and closes the first one, before it writes.
    shell(t.mount.path(), "echo '*.z ssd' > .tensorfs/placement; echo '*.w ssd' >> .tensorfs/placement");
    assert_eq!(map(&t.mount), "*.z ssd\n*.w ssd\n");
    shell(t.mount.path(), "! printf '*.z nix\\n' > .tensorfs/placement 2>/dev/null || true");
    assert_eq!(map(&t.mount), "*.z ssd\n*.w ssd\n");
    assert_eq!(errno(fs::write(&path, vec![b'#'; (64 << 10) + 1])), Some(libc::EFBIG));
    assert_eq!(map(&t.mount), "*.z ssd\n*.w ssd\n");
    // Durable, without a sync of anything.
    t.mount.power_loss();
    t.mount.mount();
    assert_eq!(map(&t.mount), "*.z ssd\n*.w ssd\n");
    shell(t.mount.path(), ": > .tensorfs/placement");
    t.mount.wait_for("empty map", |_| map(&t.mount).is_empty());
    assert!(t.mount.at(".tensorfs/placement").metadata().unwrap().permissions().mode() & 0o777 == 0o644);
    if is_root() {
        let mut other = as_user(65534, 65534);
        other.args(["bash", "-c"]);
        let output =
            run(other.arg("cat .tensorfs/placement && ! echo x pm > .tensorfs/placement").current_dir(t.mount.path()));
        assert!(output.status.success(), "{output:?}");
    }
}

/// Proves M4.
fn half_a_map_of_a_killed_writer_does_not_count(setup: Setup) {
    let Some(t) = Tiers::new(setup) else { return };
    set_map(&t.mount, "*.a dram\n").unwrap();
    let mut writer = child(["do"]);
    assert_eq!(writer.ask(&format!("open f wt {}", t.mount.at(".tensorfs/placement").display())), "ok");
    assert_eq!(writer.ask("write f 0 2 1000"), "ok");
    writer.kill(libc::SIGKILL);
    t.mount.sync();
    assert_eq!(map(&t.mount), "*.a dram\n");
    assert!(!t.mount.log().contains("placement map:"), "it was not even looked at: {}", t.mount.log());
}

/// Proves M5.
fn globs_fit_names_and_paths(setup: Setup) {
    let Some(t) = Tiers::new(setup) else { return };
    set_map(
        &t.mount,
        "# first come\n\n/a/*.bin\tdram\na/b/** ssd\n  two words.bin   dram  \n[0-9]?.bin ssd\n*.{x,y} dram",
    )
    .unwrap();
    fs::create_dir_all(t.mount.at("a/b/c")).unwrap();
    for (path, tier) in [
        ("a/f.bin", "dram"),
        ("f.bin", "pm"),
        ("a/b/f.bin", "ssd"),
        ("a/b/c/f", "ssd"),
        ("a/b/two words.bin", "ssd"),
        ("two words.bin", "dram"),
        ("7z.bin", "ssd"),
        ("77z.bin", "pm"),
        ("f.y", "dram"),
        ("# first", "pm"),
    ] {
        fs::write(t.mount.at(path), b"bytes").unwrap();
        assert_eq!(tier_of(&t.mount.at(path)), tier, "{path}");
    }
}

fn every_attribute(path: &Path) -> BTreeMap<&'static str, String> {
    let stat = fs::metadata(path).unwrap();
    let mut all = BTreeMap::from([
        ("mode", format!("{:o}", stat.mode())),
        ("owner", format!("{} {}", stat.uid(), stat.gid())),
        ("size", stat.len().to_string()),
        ("mtime", format!("{} {}", stat.mtime(), stat.mtime_nsec())),
        ("ctime", format!("{} {}", stat.ctime(), stat.ctime_nsec())),
        ("atime", format!("{} {}", stat.atime(), stat.atime_nsec())),
        ("ino", stat.ino().to_string()),
    ]);
    for name in ["state", "tensors", "checksum", "records"] {
        all.insert(name, get(path, &format!("user.tensorfs.{name}")).unwrap_or_default());
    }
    all
}

/// Proves M6.
fn a_file_is_moved_with_all_that_is_known_of_it(setup: Setup) {
    let Some(mut t) = Tiers::new(setup) else { return };
    let path = t.mount.at("model");
    let bytes = safetensors(&[("a", &Pattern(3).bytes(0, 100_000)), ("b", b"small")]);
    fs::write(&path, &bytes).unwrap();
    let old = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_500_000_000);
    File::options().write(true).open(&path).unwrap().set_modified(old).unwrap();
    t.mount.tensorfs_ok(["seal".as_ref(), path.as_os_str()]);
    let before = every_attribute(&path);
    assert_eq!(before["state"], "sealed");
    for tier in ["ssd", "dram", "pm", "dram"] {
        // Reading it is what changes the time of the last access.
        let before = every_attribute(&path);
        assert_eq!(move_to(&t.mount, &path, tier), (true, String::new()));
        assert_eq!((tier_of(&path), every_attribute(&path)), (tier.to_owned(), before), "{tier}");
        assert_eq!(move_to(&t.mount, &path, tier), (true, String::new()), "it is there already");
        assert_eq!(fs::read(&path).unwrap(), bytes);
        let listed = t.mount.tensorfs_ok(["tensors".as_ref(), path.as_os_str()]);
        assert!(listed.contains("2 tensors") || listed.lines().count() >= 2, "{listed}");
    }
    // The attribute does the same. A file that nobody has sealed yet is moved too, and holes stay holes.
    let sparse = t.mount.at("sparse");
    let file = File::create(&sparse).unwrap();
    file.write_all_at(b"end", 1 << 30).unwrap();
    drop(file);
    set(&sparse, "ssd").unwrap();
    assert_eq!(tier_of(&sparse), "ssd");
    let stat = fs::metadata(&sparse).unwrap();
    assert_eq!(stat.len(), (1 << 30) + 3);
    assert!(stat.blocks() * 512 < 1 << 20, "{} blocks", stat.blocks());
    assert_eq!(set(&sparse, "nvme"), Err(Errno::EINVAL));
    fs::write(t.mount.at("empty"), b"").unwrap();
    set(&t.mount.at("empty"), "ssd").unwrap();
    // It can be written as before.
    OpenOptions::new().append(true).open(&path).unwrap().write_all(b"+").unwrap();
    assert_eq!(fs::read(&path).unwrap().len(), bytes.len() + 1);
    assert_eq!(segments_below(&t.dram) + segments_below(&t.ssd), 2, "no copy is left over");
    t.mount.kill9();
    t.mount.mount();
    assert_eq!(
        (tier_of(&path), tier_of(&sparse), tier_of(&t.mount.at("empty"))),
        ("dram".into(), "ssd".into(), "ssd".into())
    );
    t.mount.umount();
    t.mount.tensorfs_ok(["check".as_ref(), "--data".as_ref(), t.mount.pool().as_os_str()]);
}

/// Proves M6.
fn a_file_in_use_is_not_moved(setup: Setup) {
    let Some(t) = Tiers::new(setup) else { return };
    let path = t.mount.at("f");
    fs::write(&path, Pattern(1).bytes(0, 10_000)).unwrap();
    let refused = |why: &str| {
        let (moved, said) = move_to(&t.mount, &path, "dram");
        assert!(!moved && said.contains(why) && said.lines().count() == 1, "{said}");
        assert_eq!(set(&path, "dram"), Err(Errno::EBUSY));
        assert_eq!(tier_of(&path), "pm");
    };
    let reader = File::open(&path).unwrap();
    refused("it is open");
    // SAFETY: nobody makes the file shorter.
    let mapped = unsafe { memmap2::Mmap::map(&reader) }.unwrap();
    drop(reader);
    refused("it is");
    assert_eq!(mapped[..100], Pattern(1).bytes(0, 100)[..]);
    drop(mapped);
    let writer = OpenOptions::new().write(true).open(&path).unwrap();
    refused("it is open");
    drop(writer);
    assert_eq!(move_to(&t.mount, &path, "dram"), (true, String::new()));
}

/// Proves M6.
fn a_move_gives_way_to_who_opens_the_file(setup: Setup) {
    let Some(t) = Tiers::new(setup) else { return };
    let path = t.mount.at("f");
    let pattern = Pattern(5);
    let len = 64 << 20;
    fs::write(&path, pattern.bytes(0, len)).unwrap();
    let mut refusals = 0;
    for round in 0..4_u64 {
        let tier = if tier_of(&path) == "pm" { "dram" } else { "pm" };
        let mut moving = t.mount.program();
        let mut moving = moving.args(["tier", "move"]).arg(&path).arg(tier).stderr(std::process::Stdio::null());
        let mut moving = {
            moving = moving.stdout(std::process::Stdio::null());
            moving.spawn().unwrap()
        };
        std::thread::sleep(std::time::Duration::from_millis(4 * round));
        // It opens at once, sees the right bytes, and what it writes is there whatever became of the move.
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        file.write_all_at(&round.to_le_bytes(), 1000).unwrap();
        let mut bytes = vec![0; 100_000];
        file.read_exact_at(&mut bytes, (len as u64) - 100_000).unwrap();
        assert_eq!(bytes, pattern.bytes(len as u64 - 100_000, 100_000));
        drop(file);
        refusals += usize::from(!moving.wait().unwrap().success());
        let mut found = [0; 8];
        File::open(&path).unwrap().read_exact_at(&mut found, 1000).unwrap();
        assert_eq!(u64::from_le_bytes(found), round);
    }
    // How many there were depends on how fast the machine copies.
    eprintln!("{refusals} of 4 moves gave way");
    t.mount.sync();
    let left = || segments_below(&t.dram) + segments_below(t.mount.pool());
    t.mount.wait_for("removal of copies", |_| left() == 1);
}

/// Proves M6.
fn only_the_owner_moves_a_file(setup: Setup) {
    let Some(t) = Tiers::new(setup) else { return };
    if !is_root() {
        return;
    }
    let path = t.mount.at("f");
    fs::write(&path, b"bytes").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
    fs::set_permissions(t.mount.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let set_as = |uid: u32| {
        let script = "setfattr -n user.tensorfs.tier -v ssd f";
        let output = run(as_user(uid, 65534).args(["bash", "-c", script]).current_dir(t.mount.path()));
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (done, said) = set_as(65534);
    assert!(!done && said.contains("not permitted"), "{said}");
    assert_eq!(tier_of(&path), "pm");
    std::os::unix::fs::chown(&path, Some(65534), None).unwrap();
    assert!(set_as(65534).0);
    assert_eq!(tier_of(&path), "ssd");
}

/// Proves M6.
fn a_server_killed_in_the_middle_of_a_move_leaves_a_whole_file(setup: Setup) {
    let Some(mut t) = Tiers::new(setup) else { return };
    let pattern = Pattern(9);
    let len = 32 << 20;
    let mut tiers = BTreeMap::new();
    for round in 0..6_u64 {
        let path = t.mount.at("f");
        if round == 0 {
            fs::write(&path, pattern.bytes(0, len)).unwrap();
            t.mount.sync();
        }
        let tier = if tier_of(&path) == "pm" { "ssd" } else { "pm" };
        let mut moving = t.mount.program();
        moving.args(["tier", "move"]).arg(&path).arg(tier);
        moving.stderr(std::process::Stdio::null()).stdout(std::process::Stdio::null());
        let mut moving = moving.spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(5 * round));
        if round % 2 == 0 {
            t.mount.kill9()
        } else {
            t.mount.power_loss()
        }
        let _ = moving.wait();
        t.mount.mount();
        assert_eq!(fs::metadata(&path).unwrap().len(), len as u64);
        assert!(fs::read(&path).unwrap() == pattern.bytes(0, len), "round {round}");
        *tiers.entry(tier_of(&path)).or_insert(0) += 1;
        assert_eq!(t.mount.quarantine(), [] as [Value; 0], "round {round}");
        assert_eq!(segments_below(&t.ssd) + segments_below(t.mount.pool()), 1, "round {round}");
    }
    eprintln!("after a kill it was in {tiers:?}");
}

/// Proves M7.
fn files_of_a_volatile_tier_are_lost_and_say_so(setup: Setup) {
    let Some(mut t) = Tiers::new(setup) else { return };
    let dir = t.mount.at("d");
    fs::create_dir(&dir).unwrap();
    set(&dir, "dram").unwrap();
    for name in ["a", "b", "c", "d", "e", "mapped"] {
        fs::write(dir.join(name), Pattern(1).bytes(0, 5000)).unwrap();
    }
    fs::write(dir.join("empty"), b"").unwrap();
    fs::write(t.mount.at("safe"), b"safe").unwrap();
    File::open(dir.join("a")).unwrap().sync_all().unwrap();
    // The server alone loses nothing.
    t.mount.kill9();
    t.mount.mount();
    assert_eq!(fs::read(dir.join("a")).unwrap(), Pattern(1).bytes(0, 5000));
    t.mount.sync();
    t.mount.power_loss();
    fs::remove_dir_all(&t.dram).unwrap();
    // Nothing is changed by looking.
    let listed = t.mount.tensorfs_ok(["ls".as_ref(), "-R".as_ref(), t.mount.pool().as_os_str()]);
    assert!(listed.contains("d/a  (lost: tier dram was volatile)"), "{listed}");
    t.mount.mount();
    for name in ["a", "b", "c", "d", "e", "mapped"] {
        let path = dir.join(name);
        assert_eq!(fs::metadata(&path).unwrap().len(), 5000, "its size is known");
        assert_eq!((state_of(&path), tier_of(&path)), ("lost".into(), "dram".into()));
        assert_eq!(errno(fs::read(&path)), Some(libc::EIO));
        assert_eq!(errno(OpenOptions::new().append(true).open(&path)), Some(libc::EIO));
        assert_eq!(errno(File::options().write(true).open(&path)), Some(libc::EIO));
        assert_eq!(nix::unistd::truncate(&path, 10), Err(Errno::EIO));
        assert_eq!(nix::unistd::truncate(&path, 10_000), Err(Errno::EIO));
        assert_eq!(set(&path, "pm"), Err(Errno::EIO));
    }
    assert_eq!(fs::read(dir.join("empty")).unwrap(), b"", "it had nothing to lose");
    assert_eq!(fs::read(t.mount.at("safe")).unwrap(), b"safe");
    let listed = t.mount.tensorfs_ok(["ls".as_ref(), dir.as_os_str()]);
    assert!(listed.contains("a  (lost: tier dram was volatile)"), "{listed}");
    assert_eq!((t.tier("dram")["lost"].as_u64(), t.tier("dram")["files"].as_u64()), (Some(6), Some(7)));
    assert!(t.mount.info()["damaged_files"].as_array().unwrap().is_empty());
    for target in [t.mount.path().to_owned(), t.mount.pool().to_owned()] {
        let checked = t.mount.tensorfs(["check".as_ref(), target.as_os_str()]);
        let said = String::from_utf8(checked.stdout).unwrap() + &String::from_utf8(checked.stderr).unwrap();
        assert!(checked.status.code() == Some(4) && said.contains("lost: tier dram was volatile"), "{said}");
    }
    // Attributes can be changed, names too.
    fs::set_permissions(dir.join("a"), fs::Permissions::from_mode(0o600)).unwrap();
    shell(&dir, "touch -d '2001-01-01' a && mv a a2 && ln a2 a && rm a2");
    assert_eq!(state_of(&dir.join("a")), "lost");
    // And what replaces the bytes makes it a file again.
    fs::write(dir.join("a"), b"new").unwrap();
    nix::unistd::truncate(&dir.join("b"), 0).unwrap();
    fs::write(dir.join("new"), b"renamed").unwrap();
    fs::rename(dir.join("new"), dir.join("c")).unwrap();
    fs::remove_file(dir.join("d")).unwrap();
    t.mount.remount();
    let read = |name: &str| fs::read(dir.join(name)).unwrap();
    assert_eq!((read("a"), read("b"), read("c")), (b"new".to_vec(), b"".to_vec(), b"renamed".to_vec()));
    assert_eq!((state_of(&dir.join("e")), fs::metadata(dir.join("e")).unwrap().len()), ("lost".into(), 5000), "still");
    fs::remove_file(dir.join("e")).unwrap();
    fs::remove_file(dir.join("mapped")).unwrap();
    t.mount.umount();
    t.mount.tensorfs_ok(["check".as_ref(), "--data".as_ref(), t.mount.pool().as_os_str()]);
}

/// Proves M8.
fn files_of_a_missing_tier_are_back_with_it(setup: Setup) {
    let Some(mut t) = Tiers::new(setup) else { return };
    let dir = t.mount.at("d");
    fs::create_dir(&dir).unwrap();
    set(&dir, "ssd").unwrap();
    for name in ["a", "b", "c", "removed"] {
        fs::write(dir.join(name), Pattern(2).bytes(0, 5000)).unwrap();
    }
    t.mount.sync();
    // Bytes that the server had not recorded yet.
    let mut writer = OpenOptions::new().append(true).open(dir.join("c")).unwrap();
    writer.write_all(b"more").unwrap();
    drop(writer);
    t.mount.kill9();
    let away = t.ssd.with_file_name("away");
    fs::rename(&t.ssd, &away).unwrap();
    t.mount.mount();
    assert_eq!(t.tier("ssd")["state"], "missing");
    assert!(t.tier("ssd")["reason"].as_str().unwrap().contains("is not there"));
    let told = format!("tier ssd, {}: missing", t.ssd.display());
    assert!(t.mount.log().contains(&told), "{told}: {}", t.mount.log());
    for name in ["a", "b", "c"] {
        assert_eq!(state_of(&dir.join(name)), "missing");
        assert_eq!(errno(fs::read(dir.join(name))), Some(libc::EIO));
        assert_eq!(fs::metadata(dir.join(name)).unwrap().len() / 1000, 5);
    }
    let listed = t.mount.tensorfs_ok(["ls".as_ref(), dir.as_os_str()]);
    assert!(listed.contains("(tier ssd is missing)"), "{listed}");
    let checked = t.mount.tensorfs(["check".as_ref(), t.mount.path().as_os_str()]);
    let said = String::from_utf8(checked.stdout).unwrap() + &String::from_utf8(checked.stderr).unwrap();
    assert_eq!((checked.status.code(), said.matches("tier ssd is missing").count()), (Some(4), 1), "{said}");
    fs::remove_file(dir.join("removed")).unwrap();
    fs::write(dir.join("b"), b"new").unwrap();
    assert_eq!(tier_of(&dir.join("b")), "pm");
    t.mount.remount();
    assert_eq!(state_of(&dir.join("a")), "missing");
    t.mount.umount();
    fs::rename(&away, &t.ssd).unwrap();
    t.mount.mount();
    assert_eq!(fs::read(dir.join("a")).unwrap(), Pattern(2).bytes(0, 5000));
    assert_eq!(fs::read(dir.join("b")).unwrap(), b"new");
    assert_eq!(fs::read(dir.join("c")).unwrap(), [&Pattern(2).bytes(0, 5000)[..], b"more"].concat());
    assert_eq!(t.tier("ssd")["state"], "ready");
    assert_eq!(segments_below(&t.ssd), 2, "what was removed or replaced meanwhile is gone there too");
    assert!(t.mount.quarantine().is_empty());
    t.mount.umount();
    t.mount.tensorfs_ok(["check".as_ref(), "--data".as_ref(), t.mount.pool().as_os_str()]);
}

/// Somebody has made a file where a tier's quarantine should be.
///
/// Proves R4.
fn a_version_of_a_tier_whose_quarantine_is_none_is_set_aside_in_the_pool(setup: Setup) {
    let Some(mut t) = Tiers::new(setup) else { return };
    let path = t.mount.at("f");
    let (old, new) = (Pattern(1).bytes(0, 700_000), Pattern(2).bytes(0, 300_000));
    fs::write(&path, &old).unwrap();
    t.mount.sync();
    assert!(move_to(&t.mount, &path, "ssd").0);
    let mut writer = child(["do"]);
    assert_eq!(writer.ask(&format!("open f wct {}", path.display())), "ok");
    assert_eq!(writer.ask("write f 0 2 300000"), "ok");
    t.mount.kill9();
    writer.kill(libc::SIGKILL);
    let _ = fs::remove_dir(t.ssd.join("quarantine"));
    fs::write(t.ssd.join("quarantine"), "of somebody else").unwrap();
    t.mount.mount();
    assert!(fs::read(&path).unwrap() == new);
    let entries = t.mount.quarantine();
    let [entry] = &entries[..] else { panic!("{entries:?}") };
    let name = entry["name"].as_str().unwrap();
    t.mount.tensorfs_ok(["restore".as_ref(), t.mount.path().as_os_str(), name.as_ref()]);
    assert!(fs::read(&path).unwrap() == old);
    assert_eq!(fs::read_to_string(t.ssd.join("quarantine")).unwrap(), "of somebody else");
}

/// Proves M9.
fn a_tier_in_which_the_kernel_cannot_help_is_served(setup: Setup) {
    let passthrough = setup.passthrough() == tensorfs_tests::Passthrough::On;
    let Some(mut t) = Tiers::new(setup) else { return };
    let opened = |mount: &Mount, name: &str| mount.info()["counters"][name].as_u64().unwrap();
    let count = |mount: &Mount, path: &Path| {
        let before = [opened(mount, "opened_passthrough"), opened(mount, "opened_server")];
        drop(File::open(path).unwrap());
        [opened(mount, "opened_passthrough") - before[0], opened(mount, "opened_server") - before[1]]
    };
    let expected = if passthrough { [1, 0] } else { [0, 1] };
    for tier in ["ssd", "dram"] {
        let dir = t.mount.at(tier);
        fs::create_dir(&dir).unwrap();
        set(&dir, tier).unwrap();
        fs::write(dir.join("f"), b"bytes").unwrap();
        assert_eq!(count(&t.mount, &dir.join("f")), expected, "{tier}");
        assert_eq!(t.tier(tier)["passthrough"], passthrough);
    }
    if !passthrough || !is_root() {
        return;
    }
    // The kernel passes nothing through to an overlay.
    let base = t.mount.host();
    let stacked = base.join("stacked");
    for part in ["lower", "upper", "work", "stacked"] {
        fs::create_dir(base.join(part)).unwrap();
    }
    let options = format!("lowerdir={0}/lower,upperdir={0}/upper,workdir={0}/work", base.display());
    let mut overlay = Command::new("mount");
    let overlay = match Mounted::new(overlay.args(["-t", "overlay", "overlay", "-o", &options]), &stacked) {
        Ok(overlay) => overlay,
        Err(reason) => return eprintln!("no overlay here: {reason}"),
    };
    t.mount.umount();
    t.mount.add_tier("overlay", &stacked.join("tier"));
    t.mount.mount();
    let dir = t.mount.at("overlay");
    fs::create_dir(&dir).unwrap();
    set(&dir, "overlay").unwrap();
    let pattern = Pattern(4);
    fs::write(dir.join("f"), pattern.bytes(0, 300_000)).unwrap();
    assert_eq!((count(&t.mount, &dir.join("f")), count(&t.mount, &t.mount.at("ssd/f"))), ([0, 1], [1, 0]));
    assert_eq!(fs::read(dir.join("f")).unwrap(), pattern.bytes(0, 300_000));
    let tier = t.tier("overlay");
    assert_eq!(tier["passthrough"], false);
    assert!(tier["passthrough_reason"].as_str().unwrap().contains("stacked"), "{tier}");
    assert_eq!(t.mount.log().matches("tier overlay: bytes go through the server").count(), 1);
    // Moved there and back, it shows no pages from before.
    let path = dir.join("f");
    set(&path, "pm").unwrap();
    OpenOptions::new().write(true).open(&path).unwrap().write_all_at(b"changed", 0).unwrap();
    set(&path, "overlay").unwrap();
    let mut start = [0; 7];
    File::open(&path).unwrap().read_exact_at(&mut start, 0).unwrap();
    assert_eq!(&start, b"changed");
    t.mount.umount();
    drop(overlay);
}

fn space(path: &Path) -> (u64, u64) {
    let found = nix::sys::statvfs::statvfs(path).unwrap();
    (found.blocks() * found.fragment_size(), found.blocks_available() * found.fragment_size())
}

/// The pool's own log and segments are elsewhere.
///
/// Proves D12.
fn a_tier_whose_host_takes_no_changes_fails_its_own_files_alone(setup: Setup) {
    let calls = HostCalls::new();
    let Some(tiers) = Tiers::new(setup.host_calls(&calls)) else { return };
    let mount = &tiers.mount;
    let write = |name: &str, tier: &str| {
        std::fs::create_dir_all(mount.at(tier)).unwrap();
        set(&mount.at(tier), tier).unwrap();
        std::fs::write(mount.at(tier).join(name), vec![1; 100_000]).unwrap();
        std::fs::File::open(mount.at(tier).join(name)).unwrap().sync_all()
    };
    write("before", "ssd").unwrap();
    write("before", "pm").unwrap();
    let _broken = calls.add(Rule::of(Call::Times).below(&tiers.ssd).error(libc::EROFS));
    write("beside", "pm").unwrap();
    let failed = errno(write("during", "ssd"));
    let is_ext4 = nix::sys::statfs::statfs(&tiers.ssd).unwrap().filesystem_type() == nix::sys::statfs::EXT4_SUPER_MAGIC;
    // Others need not be asked.
    assert_eq!(failed, is_ext4.then_some(libc::EIO));
    write("after", "pm").unwrap();
    assert!(mount.info()["read_only"].is_null());
    for whole in ["ssd/before", "pm/before", "pm/beside", "pm/after"] {
        assert_eq!(std::fs::read(mount.at(whole)).unwrap().len(), 100_000);
    }
}

/// Proves M10.
fn space_is_that_of_all_tiers(setup: Setup) {
    let limited = setup.clone();
    let Some(t) = Tiers::new(setup) else { return };
    // `ssd` is on the pool's own filesystem, and counts once.
    let (total, _) = space(t.mount.path());
    assert_eq!(total, space(t.mount.pool()).0 + space(Path::new("/dev/shm")).0);
    drop(t);
    let Some(t) = Tiers::new(limited.create(["--size", "64M"])) else { return };
    assert_eq!(space(t.mount.path()).0, 64 << 20);
    let dir = t.mount.at("d");
    fs::create_dir(&dir).unwrap();
    set(&dir, "dram").unwrap();
    let before = space(t.mount.path()).1;
    fs::write(dir.join("f"), vec![1; 20 << 20]).unwrap();
    t.mount.sync();
    let used = before - space(t.mount.path()).1;
    assert!((20 << 20..21 << 20).contains(&used), "{used}");
    let refused = fs::write(dir.join("g"), vec![1; 60 << 20]).and_then(|()| File::open(dir.join("g"))?.sync_all());
    let refused = refused.and_then(|()| fs::write(t.mount.at("h"), b"more"));
    assert_eq!(errno(refused), Some(libc::ENOSPC), "the limit holds for all tiers together");
}

/// Proves M10.
fn a_full_tier_is_full(setup: Setup) {
    if !is_root() {
        return setup.skip("needs root, to mount a small tmpfs");
    }
    let Some(mut t) = Tiers::new(setup) else { return };
    let small = t.mount.host().join("small");
    fs::create_dir(&small).unwrap();
    let memory = Mounted::tmpfs(&small, Some(4)).unwrap();
    t.mount.umount();
    t.mount.add_tier("small", &small.join("tier"));
    t.mount.mount();
    let dir = t.mount.at("d");
    fs::create_dir(&dir).unwrap();
    set(&dir, "small").unwrap();
    assert_eq!(errno(fs::write(dir.join("f"), vec![1; 8 << 20])), Some(libc::ENOSPC));
    fs::write(t.mount.at("g"), vec![1; 8 << 20]).unwrap();
    // What does not fit there is not moved, and stays whole.
    assert_eq!(set(&t.mount.at("g"), "small"), Err(Errno::ENOSPC));
    assert!(fs::read(t.mount.at("g")).unwrap() == vec![1; 8 << 20]);
    fs::remove_file(dir.join("f")).unwrap();
    t.mount.sync();
    t.mount.wait_for("room", |_| segments_below(&small.join("tier")) == 0);
    fs::write(dir.join("f"), vec![1; 1 << 20]).unwrap();
    assert_eq!(tier_of(&dir.join("f")), "small");
    t.mount.umount();
    drop(memory);
}

/// Proves M11.
fn uses_are_counted(setup: Setup) {
    let passthrough = setup.passthrough() == tensorfs_tests::Passthrough::On;
    let Some(t) = Tiers::new(setup) else { return };
    let uses = || -> BTreeMap<String, Value> {
        let text = fs::read_to_string(t.mount.at(".tensorfs/accesses")).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.map(|line| (line["path"].as_str().unwrap_or("?").to_owned(), line)).collect()
    };
    assert_eq!(uses().len(), 0);
    fs::create_dir(t.mount.at("d")).unwrap();
    set(&t.mount.at("d"), "dram").unwrap();
    let path = t.mount.at("d/f");
    fs::write(&path, vec![1; 10_000]).unwrap();
    for _ in 0..3 {
        fs::read(&path).unwrap();
    }
    fs::write(t.mount.at("g"), b"").unwrap();
    let found = uses();
    assert_eq!(found.keys().collect::<Vec<_>>(), ["/d/f", "/g"]);
    let f = &found["/d/f"];
    assert_eq!((f["opens"].as_u64(), f["tier"].as_str()), (Some(4), Some("dram")));
    if !passthrough {
        assert_eq!(f["written_bytes"], 10_000);
        assert!(f["read_bytes"].as_u64() >= Some(10_000), "{f}");
    }
    assert_eq!(f["ino"].as_u64(), Some(fs::metadata(&path).unwrap().ino()));
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
    assert!((now - f["last_use"].as_f64().unwrap()).abs() < 600.0, "{f}");
    fs::rename(t.mount.at("d"), t.mount.at("e")).unwrap();
    assert_eq!(uses().keys().collect::<Vec<_>>(), ["/e/f", "/g"]);
    if is_root() {
        let mut other = as_user(65534, 65534);
        assert!(!run(other.args(["cat", ".tensorfs/accesses"]).current_dir(t.mount.path())).status.success());
    }
}

/// One line each, and nothing is changed.
fn commands_say_what_is_wrong(setup: Setup) {
    let Some(mut t) = Tiers::new(setup) else { return };
    let refused = |mount: &Mount, arguments: &[&str], why: &str| {
        let output = mount.tensorfs(arguments);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), said.lines().count()), (Some(1), 1), "{arguments:?}: {said}");
        assert!(said.contains(why), "{arguments:?}: {said}");
    };
    let (pool, mnt) = (t.mount.pool().display().to_string(), t.mount.path().display().to_string());
    let new = t.mount.host().join("new").display().to_string();
    refused(&t.mount, &["tier", "add", &pool, "new", &new], "unmount it first");
    refused(&t.mount, &["tier", "remove", &pool, "ssd"], "unmount it first");
    fs::write(t.mount.at("f"), b"bytes").unwrap();
    let f = t.mount.at("f").display().to_string();
    let (moved, said) = move_to(&t.mount, Path::new(&f), "nvme");
    assert!(!moved && said.contains("no tier nvme"), "{said}");
    let map = t.mount.host().join("map");
    fs::write(&map, "*.a dram\n*.b nvme\n").unwrap();
    refused(
        &t.mount,
        &["tier", "map", &mnt, map.to_str().unwrap()],
        "line 2 of the placement map: the pool has no tier \"nvme\"",
    );
    fs::write(&map, "*.a dram\n").unwrap();
    t.mount.tensorfs_ok(["tier", "map", &mnt, map.to_str().unwrap()]);
    assert_eq!(t.mount.tensorfs_ok(["tier", "map", &pool]), "*.a dram\n");
    let listed = t.mount.tensorfs_ok(["tier", "list", &mnt]);
    assert!(listed.contains("TIER") && listed.contains("ssd") && listed.contains("volatile"), "{listed}");
    let listed: Value = serde_json::from_str(&t.mount.tensorfs_ok(["tier", "list", &mnt, "--json"])).unwrap();
    assert_eq!(listed[2]["name"], "dram");
    assert!(t.mount.tensorfs_ok(["info", &mnt]).contains("dram:"), "people see them too");
    // A tier on the mount itself would have the server wait for itself.
    let inside = t.mount.at("tier").display().to_string();
    let other = t.mount.host().join("other").display().to_string();
    t.mount.tensorfs_ok(["create", &other]);
    refused(&t.mount, &["tier", "add", &other, "inside", &inside], "FUSE");
    t.mount.umount();
    refused(&t.mount, &["tier", "remove", &pool, "dram"], "the placement map names tier dram");
    refused(&t.mount, &["tier", "remove", &pool, "pm"], "the pool's own directory");
    refused(&t.mount, &["tier", "add", &pool, "new", &pool], "inside the pool");
    // The place where the pool is to be mounted.
    t.mount.tensorfs_ok(["tier", "add", &other, "there", &format!("{mnt}/there")]);
    refused(&t.mount, &["mount", &other, &mnt], "its tier there is in");
}

/// What can be done without a server.
fn a_pool_that_is_not_mounted(setup: Setup) {
    let Some(mut t) = Tiers::new(setup) else { return };
    fs::write(t.mount.at("f"), Pattern(1).bytes(0, 100_000)).unwrap();
    t.mount.umount();
    let pool = t.mount.pool().display().to_string();
    t.mount.tensorfs_ok(["tier", "move", &format!("{pool}:/f"), "ssd"]);
    let map = t.mount.host().join("map");
    fs::write(&map, "*.a ssd\n").unwrap();
    t.mount.tensorfs_ok(["tier", "map", &pool, map.to_str().unwrap()]);
    assert_eq!(t.mount.tensorfs_ok(["tier", "map", &pool]), "*.a ssd\n");
    let listed: Value = serde_json::from_str(&t.mount.tensorfs_ok(["tier", "list", &pool, "--json"])).unwrap();
    assert_eq!((&listed[1]["name"], &listed[1]["files"]), (&"ssd".into(), &1.into()));
    t.mount.tensorfs_ok(["tier", "remove", &pool, "dram"]);
    t.mount.tensorfs_ok(["check", "--data", &pool]);
    t.mount.mount();
    assert_eq!(tier_of(&t.mount.at("f")), "ssd");
    assert_eq!(fs::read(t.mount.at("f")).unwrap(), Pattern(1).bytes(0, 100_000));
    fs::write(t.mount.at("x.a"), b"bytes").unwrap();
    assert_eq!(tier_of(&t.mount.at("x.a")), "ssd");
    assert_eq!(t.mount.info()["tiers"].as_array().unwrap().len(), 2);
    let unused: Vec<PathBuf> = fs::read_dir(&t.dram).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(unused, [] as [PathBuf; 0]);
}
