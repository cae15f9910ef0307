//! What is answered where something is at its end.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::Path;

use nix::errno::Errno;
use tensorfs_layout::log::{Record, Transaction};
use tensorfs_layout::pool::{Edit, OpenOptions, Pool};
use tensorfs_layout::{Ino, ROOT};
use tensorfs_tests::{Disk, Mount, Pattern, Setup, on_mounts, shell, wait_until, xattr};

on_mounts!(
    long_names_paths_and_targets,
    a_file_has_65000_names,
    a_directory_has_as_many_subdirectories_as_you_like,
    large_files,
    the_hosts_own_end,
    attributes,
    attributes_that_are_beyond_the_bound_can_become_fewer,
    one_owners_attributes_take_no_more_than_there_may_be,
    the_server_runs_out_of_descriptors,
    texts_that_are_open_take_no_more_than_there_may_be,
    names_and_records_of_one_owner_take_no_more_than_there_may_be,
    nobody_uses_up_what_is_another_owners,
    what_is_given_away_counts_for_whom_it_was_given_to,
    one_user_leaves_descriptors_for_others,
);

#[track_caller]
fn errno<T: std::fmt::Debug>(result: std::io::Result<T>) -> Errno {
    Errno::from_raw(result.expect_err("an error").raw_os_error().unwrap())
}

/// Proves B1.
fn long_names_paths_and_targets(setup: Setup) {
    let mut mount = setup.mount();
    let long = "n".repeat(256);
    std::fs::write(mount.at("f"), "x").unwrap();
    assert_eq!(errno(File::create(mount.at(&long))), Errno::ENAMETOOLONG);
    assert_eq!(errno(std::fs::create_dir(mount.at(&long))), Errno::ENAMETOOLONG);
    assert_eq!(errno(symlink("x", mount.at(&long))), Errno::ENAMETOOLONG);
    assert_eq!(errno(std::fs::hard_link(mount.at("f"), mount.at(&long))), Errno::ENAMETOOLONG);
    assert_eq!(errno(std::fs::rename(mount.at("f"), mount.at(&long))), Errno::ENAMETOOLONG);
    assert_eq!(errno(std::fs::remove_file(mount.at(&long))), Errno::ENAMETOOLONG);
    assert_eq!(errno(std::fs::metadata(mount.at(&long))), Errno::ENAMETOOLONG);
    // One byte less is a name like any other.
    let longest = &long[1..];
    std::fs::create_dir(mount.at(longest)).unwrap();
    std::fs::write(mount.at(longest).join(longest), "long").unwrap();
    std::fs::hard_link(mount.at("f"), mount.at(longest).join("other")).unwrap();
    std::fs::rename(mount.at(longest).join("other"), mount.at(format!("{}m", &longest[1..]))).unwrap();
    assert_eq!(std::fs::read(mount.at(longest).join(longest)).unwrap(), b"long");
    std::fs::remove_dir_all(mount.at(longest)).unwrap();
    assert_eq!(errno(symlink("t".repeat(4096), mount.at("link"))), Errno::ENAMETOOLONG);
    symlink("t".repeat(4095), mount.at("link")).unwrap();
    // A path may be as long as this; a tree may be deeper.
    let deep = "d/".repeat(2100);
    assert_eq!(errno(std::fs::metadata(mount.at(&deep))), Errno::ENAMETOOLONG);
    let path_of = |len: usize| {
        let (begin, end) = (mount.path().display().to_string(), "/f");
        format!("{begin}{}{end}", "/".repeat(len - begin.len() - end.len()))
    };
    assert!(std::fs::metadata(path_of(4095)).unwrap().is_file());
    assert_eq!(errno(std::fs::metadata(path_of(4096))), Errno::ENAMETOOLONG);
    let step = format!("{}/", "d".repeat(250)).repeat(10);
    let script = format!("for n in 1 2 3; do mkdir -p {step}; cd {step}; done; echo bottom > f; cat f");
    assert_eq!(shell(mount.path(), &script), "bottom\n");
    mount.remount();
    assert_eq!(std::fs::read_link(mount.at("link")).unwrap().as_os_str().len(), 4095);
    shell(mount.path(), "test $(find . -name f | wc -l) = 2; rm -r d*");
}

/// Adds names to the directory `d` of a pool that is not mounted, many in one transaction, which is faster than a name
/// a call.
fn add_names(
    path: &Path,
    count: std::ops::Range<usize>,
    record: impl Fn(&mut Edit<'_>, Ino, Box<[u8]>) -> Vec<Record>,
) {
    let pool = Pool::open(path, &OpenOptions::default()).unwrap();
    let dir = pool.view().lookup(ROOT, b"d").unwrap();
    let numbers: Vec<usize> = count.collect();
    for some in numbers.chunks(500) {
        let mut edit = pool.edit();
        let mut transaction = Transaction::new(0);
        for n in some {
            record(&mut edit, dir, n.to_string().into_bytes().into()).into_iter().for_each(|r| transaction.push(r));
        }
        edit.store(transaction).unwrap();
    }
    pool.close().unwrap();
    drop(pool);
    // A child that another test was just starting has the lock as well, until it executes its program.
    while tensorfs_layout::pool::holder(path).is_ok_and(|holder| holder.is_some()) {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

fn links(mount: &Mount, name: &str) -> u64 {
    std::fs::metadata(mount.at(name)).unwrap().nlink()
}

/// Proves B2.
fn a_file_has_65000_names(setup: Setup) {
    let mut mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    std::fs::create_dir(mount.at("d")).unwrap();
    std::fs::write(mount.at("d/0"), "x").unwrap();
    let ino = Ino(std::fs::metadata(mount.at("d/0")).unwrap().ino());
    mount.umount();
    add_names(mount.pool(), 1..64_990, |_, dir, name| vec![Record::Name { dir, name, ino }]);
    mount.mount();
    for n in 64_990..65_000 {
        std::fs::hard_link(mount.at("d/0"), mount.at(format!("d/{n}"))).unwrap();
    }
    assert_eq!(links(&mount, "d/7"), 65_000);
    assert_eq!(errno(std::fs::hard_link(mount.at("d/0"), mount.at("d/more"))), Errno::EMLINK);
    std::fs::rename(mount.at("d/1"), mount.at("d/renamed")).unwrap();
    std::fs::remove_file(mount.at("d/2")).unwrap();
    std::fs::hard_link(mount.at("d/0"), mount.at("d/more")).unwrap();
    assert_eq!(errno(std::fs::hard_link(mount.at("d/0"), mount.at("d/2"))), Errno::EMLINK);
    mount.remount();
    assert_eq!(links(&mount, "d/more"), 65_000);
    assert_eq!(std::fs::read_dir(mount.at("d")).unwrap().count(), 65_000);
}

/// Proves B2.
fn a_directory_has_as_many_subdirectories_as_you_like(setup: Setup) {
    let mut mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    std::fs::create_dir(mount.at("d")).unwrap();
    mount.umount();
    add_names(mount.pool(), 0..65_500, |edit, dir, name| {
        let ino = Ino(edit.next_id());
        let attributes = edit.object(dir).unwrap().attributes.clone();
        vec![Record::Attributes { ino, attributes }, Record::Name { dir, name, ino }]
    });
    mount.mount();
    assert_eq!(links(&mount, "d"), 65_502);
    for n in 65_500..65_600 {
        std::fs::create_dir(mount.at(format!("d/{n}"))).unwrap();
    }
    assert_eq!(links(&mount, "d"), 65_602);
    mount.remount();
    assert_eq!(links(&mount, "d"), 65_602);
    std::fs::remove_dir(mount.at("d/65599")).unwrap();
    assert_eq!(links(&mount, "d"), 65_601);
}

/// Proves B3.
fn large_files(setup: Setup) {
    let mount = setup.mount();
    // Whatever the host says of such a file.
    let ends = |path: &Path| -> Vec<Option<Errno>> {
        let file = File::options().read(true).write(true).create(true).truncate(true).open(path).unwrap();
        let tries = [1u64 << 40, 1 << 43, (1 << 44) - 4096, 1 << 44, 1 << 45, 1 << 60, (1 << 63) - 4096];
        let mut ends = Vec::new();
        for size in tries {
            ends.push(file.set_len(size).err().map(|_| Errno::last()));
            file.set_len(0).unwrap();
            ends.push(file.write_all_at(b"byte", size).err().map(|_| Errno::last()));
            file.set_len(0).unwrap();
        }
        ends
    };
    let (here, host) = (ends(&mount.at("f")), ends(&mount.host().join("f")));
    assert_eq!(here, host);
    assert!(here.contains(&Some(Errno::EFBIG)) && here.contains(&None), "{here:?}");
    // A program's own limit.
    let script =
        "trap '' XFSZ; ulimit -f 100; head -c 300000 /dev/zero > limited 2>/dev/null && exit 1; stat -c %s limited";
    assert_eq!(shell(mount.path(), script).trim(), "102400");
}

/// Proves B4.
fn the_hosts_own_end(setup: Setup) {
    let disk = match Disk::new(&["mkfs.ext4", "-q", "-F"], 64) {
        Ok(disk) => disk,
        Err(reason) => return setup.skip(&reason),
    };
    let mut mount = setup.pool_at(disk.at("pool")).mount();
    let mut file = File::create(mount.at("f")).unwrap();
    let mut written = 0;
    let error = loop {
        assert!(written < 64 << 20, "there is no end to it");
        match file.write(&Pattern(1).bytes(written, 65536)) {
            Ok(len) => written += len as u64,
            Err(error) => break error,
        }
    };
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
    // SAFETY: plain system call on an open descriptor.
    let allocated = unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, 1 << 30) };
    assert_eq!((allocated, Errno::last()), (-1, Errno::ENOSPC));
    // What was written is there, and what goes makes room.
    file.sync_all().unwrap();
    assert_eq!(Pattern(1).mismatch(0, &std::fs::read(mount.at("f")).unwrap()[..written as usize]), None);
    drop(file);
    std::fs::remove_file(mount.at("f")).unwrap();
    std::fs::write(mount.at("g"), Pattern(2).bytes(0, 1 << 20)).unwrap();
    mount.remount();
    assert!(std::fs::read(mount.at("g")).unwrap() == Pattern(2).bytes(0, 1 << 20));
}

/// Proves B5.
fn attributes(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let path = mount.at("f");
    std::fs::write(&path, "x").unwrap();
    let name = |len: usize, n: usize| format!("user.{n:0width$}", width = len - 5);
    let set = |name: &str, value: &[u8]| xattr::set(&path, name, value, 0);
    assert_eq!(set(&name(256, 0), b""), Err(Errno::ERANGE));
    set(&name(255, 0), b"").unwrap();
    assert_eq!(set("user.large", &vec![1; 65_537]), Err(Errno::E2BIG));
    set("user.large", &vec![1; 65_536]).unwrap();
    // Each name takes its bytes and one more.
    let fits = (1..).find(|n| set(&name(255, *n), b"").is_err()).unwrap();
    assert_eq!(set(&name(255, fits), b""), Err(Errno::ENOSPC));
    assert_eq!(fits, (65_536 - "user.large".len() - 1) / 256);
    // What is there can still be changed, and listed.
    set(&name(255, 1), b"changed").unwrap();
    let listed = shell(mount.path(), "getfattr --absolute-names f | grep -c ^user");
    assert_eq!(listed.trim(), (fits + 1).to_string());
    // Names and values have 256 KiB together.
    let other = mount.at("g");
    std::fs::write(&other, "x").unwrap();
    let set = |name: &str, len: usize| xattr::set(&other, name, &vec![1; len], 0);
    for name in ["user.a", "user.b", "user.c"] {
        set(name, 65_536).unwrap();
    }
    let left = 65_536 - 4 * "user.a".len();
    assert_eq!(set("user.d", left + 1), Err(Errno::ENOSPC));
    set("user.d", left).unwrap();
    assert_eq!(set("user.e", 0), Err(Errno::ENOSPC));
    set("user.a", 65_536).unwrap();
    set("user.a", 65_000).unwrap();
    set("user.e", 536 - "user.e".len()).unwrap();
    assert_eq!(set("user.a", 65_001), Err(Errno::ENOSPC));
}

/// Adds large attributes to files of an ordinary user in a pool that is not mounted, as many to each as only versions
/// without a bound took: names the files by their numbers.
fn add_attributes(path: &Path, files: std::ops::Range<usize>, each: usize) {
    let pool = Pool::open(path, &OpenOptions::default()).unwrap();
    for n in files {
        let mut edit = pool.edit();
        let ino = Ino(edit.next_id());
        let mut attributes = edit.object(ROOT).unwrap().attributes.clone();
        (attributes.mode, attributes.uid) = (libc::S_IFREG | 0o644, OWNER);
        let name = n.to_string().into_bytes().into();
        let file = Transaction::new(0).with(Record::Attributes { ino, attributes });
        edit.store(file.with(Record::Name { dir: ROOT, name, ino })).unwrap();
        for n in 0..each {
            let name = format!("user.{n:03}").into_bytes().into();
            let set = Record::Xattr { ino, name, value: vec![b'a'; 65_536].into() };
            edit.store(Transaction::new(0).with(set)).unwrap();
        }
    }
    pool.close().unwrap();
    drop(pool);
    while tensorfs_layout::pool::holder(path).is_ok_and(|holder| holder.is_some()) {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// Somebody who has nothing but what a test gives him.
const OWNER: u32 = 54_321;

/// Proves B5, B7.
fn attributes_that_are_beyond_the_bound_can_become_fewer(setup: Setup) {
    let mut mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    mount.umount();
    add_attributes(mount.pool(), 0..1, 20);
    mount.mount();
    let path = mount.at("0");
    assert_eq!(xattr::get(&path, "user.019").unwrap(), vec![b'a'; 65_536]);
    assert_eq!(xattr::set(&path, "user.more", b"", 0), Err(Errno::ENOSPC));
    xattr::set(&path, "user.000", b"smaller", 0).unwrap();
    assert_eq!(xattr::set(&path, "user.000", b"larger again", 0), Err(Errno::ENOSPC));
    for n in 1..20 {
        xattr::remove(&path, format!("user.{n:03}")).unwrap();
    }
    xattr::set(&path, "user.more", &[1; 65_536], 0).unwrap();
    mount.remount();
    assert_eq!(xattr::get(&path, "user.000").unwrap(), b"smaller");
}

/// Proves B7.
fn one_owners_attributes_take_no_more_than_there_may_be(setup: Setup) {
    let mut mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    mount.umount();
    // 255 MiB.
    add_attributes(mount.pool(), 0..255, 16);
    mount.mount();
    let chown = |path: &Path, uid| std::os::unix::fs::chown(path, Some(uid), None).unwrap();
    let dir = mount.path().to_owned();
    let made = |name: &str, uid| {
        let path = dir.join(name);
        std::fs::write(&path, "x").unwrap();
        chown(&path, uid);
        path
    };
    let fill = |path: &Path| (0..3).try_for_each(|n| xattr::set(path, format!("user.{n}"), &[1; 65_536], 0));
    let several = || (0..6).find_map(|n| fill(&made(&format!("more{n}"), OWNER)).err());
    assert_eq!(several(), Some(Errno::EDQUOT));
    // What every file may have is not counted, and others have bounds of their own.
    xattr::set(&made("few", OWNER), "user.few", &[1; 500], 0).unwrap();
    fill(&made("other", OWNER + 1)).unwrap();
    let roots = made("roots", 0);
    fill(&roots).unwrap();
    // So do lists that directories hand on to what is made in them.
    let dir = mount.at("dir");
    std::fs::create_dir(&dir).unwrap();
    let entry = |tag: u16, id: u32| [&tag.to_le_bytes()[..], &7u16.to_le_bytes(), &id.to_le_bytes()].concat();
    let users: Vec<u8> = (0..480).flat_map(|n| entry(2, 100_000 + n)).collect();
    let none = u32::MAX;
    let list = [&2u32.to_le_bytes()[..], &entry(1, none), &users, &entry(4, none), &entry(16, none), &entry(32, none)];
    // Root's directory hands it on to what the owner makes.
    xattr::set(&dir, "system.posix_acl_default", &list.concat(), 0).unwrap();
    std::fs::set_permissions(&dir, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let make = "cd dir && for n in $(seq 40); do mkdir $n || exit 0; done 2>&1; echo all";
    let said = shell(mount.path(), &format!("setpriv --reuid {OWNER} --regid {OWNER} --clear-groups sh -c '{make}'"));
    assert!(said.contains("quota") && !said.contains("all"), "{said}");
    // Removing files and attributes makes room, and so does giving files away.
    let more = |path: &Path| xattr::set(path, "user.large", &[1; 60_000], 0);
    let few = mount.at("few");
    assert_eq!(more(&few), Err(Errno::EDQUOT));
    for n in 0..8 {
        xattr::remove(&mount.at("0"), format!("user.{n:03}")).unwrap();
    }
    more(&few).unwrap();
    std::fs::remove_file(mount.at("3")).unwrap();
    fill(&made("again", OWNER)).unwrap();
    mount.remount();
    chown(&mount.at("4"), OWNER + 1);
    fill(&made("given", OWNER)).unwrap();
    std::fs::remove_file(mount.at("other")).unwrap();
}

/// Proves B6.
fn the_server_runs_out_of_descriptors(setup: Setup) {
    let mut mount = setup.few_descriptors(300).mount();
    if mount.is_plain() {
        return;
    }
    std::fs::write(mount.at("old"), "old").unwrap();
    let mut open = Vec::new();
    let mut refused = 0;
    for n in 0..600 {
        match File::options().read(true).write(true).create(true).truncate(false).open(mount.at(format!("f{n}"))) {
            Ok(file) => open.push((n, file)),
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(libc::ENFILE), "{error}");
                refused += 1;
            }
        }
    }
    assert!(refused > 0 && open.len() > 100, "{refused} refused, {} open", open.len());
    for (n, file) in &mut open {
        file.write_all(format!("file {n}").as_bytes()).unwrap();
    }
    let synced = open.iter().filter(|(_, file)| match file.sync_all() {
        Ok(()) => true,
        Err(error) => {
            assert_eq!(error.raw_os_error(), Some(libc::ENFILE), "{error}");
            false
        }
    });
    assert!(synced.count() > 0);
    let names: Vec<usize> = open.iter().map(|(n, _)| *n).collect();
    drop(open);
    let again = (0..1000).any(|_| File::create(mount.at("new")).is_ok());
    assert!(again, "closing gives them back");
    assert!(mount.info()["read_only"].is_null(), "{}", mount.info());
    assert_eq!(mount.info()["damaged_files"], serde_json::json!([]));
    mount.remount();
    for n in names {
        assert_eq!(std::fs::read_to_string(mount.at(format!("f{n}"))).unwrap(), format!("file {n}"));
    }
    assert_eq!(std::fs::read_to_string(mount.at("old")).unwrap(), "old");
}

/// Proves B8.
fn texts_that_are_open_take_no_more_than_there_may_be(setup: Setup) {
    if !tensorfs_tests::is_root() {
        return setup.skip("needs root, to become somebody else");
    }
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let each = std::fs::metadata(mount.at(".tensorfs/README")).unwrap().len();
    let fits = (16 << 20) / each;
    let open = "n=0; while exec {fd}<.tensorfs/README; do n=$((n + 1)); done; echo $n";
    // A shell that cannot redirect `exec` goes on unless it is to be as POSIX says.
    let as_other = format!("setpriv --reuid 54321 --regid 54321 --clear-groups bash -c '{open}' 2>&1");
    let said = shell(mount.path(), &format!("ulimit -n {}; {as_other}", fits + 1000));
    assert!(said.contains("in system") && said.trim().ends_with(&format!("\n{fits}")), "{fits}: {said}");
    // Meanwhile whoever runs the server is not refused, and other users are.
    let hold = format!("{open}; read");
    let mut holder = std::process::Command::new("prlimit");
    holder.arg(format!("--nofile={0}:{0}", fits + 1000)).args(["setpriv", "--reuid", "54321", "--regid", "54321"]);
    holder.args(["--clear-groups", "bash", "-c", &hold]).current_dir(mount.path());
    holder.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
    let mut holder = holder.stderr(std::process::Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(holder.stdout.take().unwrap()), &mut line).unwrap();
    assert_eq!(line.trim(), fits.to_string());
    for text in ["README", "info", "metrics", "placement"] {
        std::fs::read(mount.at(".tensorfs").join(text)).unwrap_or_else(|error| panic!("{text}: {error}"));
    }
    let said = as_owner(&mount, OWNER + 1, "cat .tensorfs/README");
    assert!(said.contains("in system"), "{said}");
    drop(holder.stdin.take());
    holder.wait().unwrap();
    // Once they are closed, there is room again.
    wait_until("all are closed", || {
        shell(mount.path(), &format!("ulimit -n {}; {as_other}", fits + 1000)).trim().ends_with(&format!("\n{fits}"))
    });
    assert!(mount.info()["read_only"].is_null());
}

/// A script, as somebody who has nothing but what a test gives him.
fn as_owner(mount: &Mount, uid: u32, script: &str) -> String {
    let command = "setpriv --reuid $0 --regid $0 --clear-groups bash -c \"$1\" 2>&1";
    let words = ["-c", command, &uid.to_string(), script];
    let output = tensorfs_tests::run(std::process::Command::new("bash").args(words).current_dir(mount.path()));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Proves B12.
fn names_and_records_of_one_owner_take_no_more_than_there_may_be(setup: Setup) {
    if !tensorfs_tests::is_root() {
        return setup.skip("needs root, to become somebody else");
    }
    // Half of that are 200 files.
    let mut mount = setup.mount_with(["-o", "names=400K"]).mount();
    if mount.is_plain() {
        return;
    }
    std::fs::set_permissions(mount.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    // The directory is one of them.
    let fill = "mkdir $USER.d; cd $USER.d; n=0; while mkdir d$n; do n=$((n + 1)); done; echo made $n";
    let said = as_owner(&mount, OWNER, &fill.replace("$USER", "one"));
    assert!(said.contains("quota") && said.contains("made 199\n"), "{said}");
    let refused = |script: &str| {
        let said = as_owner(&mount, OWNER, &format!("cd one.d; {script}"));
        assert!(said.contains("quota exceeded"), "{script}: {said}");
    };
    let done = |script: &str| {
        let said = as_owner(&mount, OWNER, &format!("cd one.d; {script} && echo done"));
        assert_eq!(said, "done\n", "{script}");
    };
    refused(": > file");
    refused("ln -s target link");
    refused("mkfifo fifo");
    done("rmdir d0; : > file");
    refused("ln file other");
    // A name is half of a file, and what a link leads to counts.
    done("rmdir d1; ln file other; ln file third");
    refused("ln file fourth");
    done("rmdir d2");
    refused("ln -s $(printf %01000d 0)x link");
    done("rmdir d3; ln -s $(printf %01000d 0) link");
    // Renaming, writing and replacing go on; what is more than one record is one.
    done("mv file moved; echo text > moved");
    done("mv -f moved d; for n in 1 2 3; do echo $n >> d; sync d; done");
    let chain = mount.tensorfs_ok(["records".as_ref(), "--json".as_ref(), mount.at("one.d/d").as_os_str()]);
    assert_eq!(chain.lines().count(), 1, "{chain}");
    // Others have half of what is left, and root has what it likes.
    let said = as_owner(&mount, OWNER + 1, &fill.replace("$USER", "two"));
    let made: u32 = said.trim().rsplit(' ').next().unwrap().parse().unwrap();
    assert!((95..=105).contains(&made), "{said}");
    shell(mount.path(), "mkdir roots; cd roots; for n in $(seq 300); do mkdir $n; done");
    // So it is after the next mount.
    mount.remount();
    let said = as_owner(&mount, OWNER, "cd one.d; rmdir d4; mkdir new && mkdir more");
    assert!(said.contains("quota"), "{said}");
    // What tensors are called is in memory, too: without room for that a file has no seal.
    let path = mount.at("one.d/tensors");
    let names: Vec<String> = (0..300).map(|n| format!("{n:0500}")).collect();
    let tensors: Vec<(&str, &[u8])> = names.iter().map(|name| (&**name, &b"abcd"[..])).collect();
    let bytes = tensorfs_tests::safetensors(&tensors);
    shell(mount.path(), "rm -r two.d");
    assert_eq!(as_owner(&mount, OWNER, "cd one.d; rmdir d5 d6 d7 && : > tensors && echo made"), "made\n");
    std::fs::write(&path, &bytes).unwrap();
    let roots = mount.at("roots/tensors");
    std::fs::write(&roots, &bytes).unwrap();
    mount.wait_for_seals(1);
    mount.remount();
    let state = |path: &Path| String::from_utf8(xattr::get(path, "user.tensorfs.state").unwrap()).unwrap();
    wait_until("root's to be sealed", || state(&roots) == "sealed");
    assert_eq!(state(&path), "committed");
    assert_eq!(xattr::get(&path, "user.tensorfs.tensors").unwrap(), b"300");
    assert!(mount.info()["read_only"].is_null());
}

/// A file's names count for its owner, whoever makes them.
///
/// Proves B12.
fn nobody_uses_up_what_is_another_owners(setup: Setup) {
    if !tensorfs_tests::is_root() {
        return setup.skip("needs root, to become somebody else");
    }
    // Half of that are 200 files.
    let mount = setup.mount_with(["-o", "names=400K"]).mount();
    if mount.is_plain() {
        return;
    }
    let open = "for name in one two; do mkdir $name; chmod 777 $name; done; : > one/roots; chmod 666 one/roots";
    shell(mount.path(), open);
    let owner = |script: &str| as_owner(&mount, OWNER, &format!("cd one; {script}"));
    let other = |script: &str| as_owner(&mount, OWNER + 1, &format!("cd two; {script}"));
    // Nothing but what one may write can be linked, where the kernel looks after that.
    assert_eq!(owner("umask 0; : > f; : > g; echo made"), "made\n");
    let link = "n=0; while ln ../one/NAME NAME$n; do n=$((n + 1)); done; echo made $n";
    for name in ["f", "roots"] {
        let said = other(&link.replace("NAME", name));
        assert!(said.contains("Too many links") && said.ends_with("made 31\n"), "{name}: {said}");
    }
    assert_eq!(owner("ln f own && echo made"), "made\n");
    // With these 32 names it takes as much as 17 files. With 83 more it is more than half.
    assert_eq!(owner("for n in $(seq 82); do mkdir d$n; done; echo made"), "made\n");
    let said = other("ln ../one/g g");
    assert!(said.contains("quota exceeded"), "{said}");
    assert_eq!(owner("ln g h && rm h && rmdir d1 d2 && echo made"), "made\n");
    assert_eq!(other("ln ../one/g g && echo made"), "made\n");
}

/// Nobody but root gives anything away.
///
/// Proves B12.
fn what_is_given_away_counts_for_whom_it_was_given_to(setup: Setup) {
    if !tensorfs_tests::is_root() {
        return setup.skip("needs root, to become somebody else");
    }
    let mut mount = setup.mount_with(["-o", "names=400K"]).mount();
    if mount.is_plain() {
        return;
    }
    std::fs::set_permissions(mount.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let fill = |uid: u32, prefix: &str| {
        let script = "mkdir -p $1; cd $1; n=0; while mkdir $0$n; do n=$((n + 1)); done; echo made $n";
        let script = script.replace("$0", prefix).replace("$1", &uid.to_string());
        let said = as_owner(&mount, uid, &script);
        said.trim().rsplit(' ').next().unwrap().parse::<u32>().unwrap()
    };
    assert_eq!(fill(OWNER, "a"), 199);
    let refused = as_owner(&mount, OWNER, &format!("chown {} {OWNER}/a*", OWNER + 1));
    assert!(refused.contains("not permitted"), "{refused}");
    let give = |count: u32| {
        let script = format!("find {OWNER} -mindepth 1 -user {OWNER} | head -{count} | xargs chown {}", OWNER + 1);
        shell(mount.path(), &script);
    };
    // The other may have half of what 50 files leave: 175, and a directory is one.
    give(150);
    let others = fill(OWNER + 1, "b");
    assert_eq!(others, 24);
    // Also beyond what he may have.
    give(30);
    let refused = |uid: u32| assert!(as_owner(&mount, uid, "mkdir more").contains("quota exceeded"), "{uid}");
    refused(OWNER + 1);
    // Of the 195 that are left the first may have 97, and has 20.
    assert_eq!(fill(OWNER, "c"), 77);
    refused(OWNER);
    mount.remount();
    let refused = |uid: u32| assert!(as_owner(&mount, uid, "mkdir more").contains("quota exceeded"), "{uid}");
    refused(OWNER);
    refused(OWNER + 1);
}

/// Proves B6, B13.
fn one_user_leaves_descriptors_for_others(setup: Setup) {
    if !tensorfs_tests::is_root() {
        return setup.skip("needs root, to become somebody else");
    }
    let mount = setup.few_descriptors(700).mount();
    if mount.is_plain() {
        return;
    }
    std::fs::set_permissions(mount.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let hold = "ulimit -n 1000; n=0; while exec {fd}>$1.$n; do n=$((n + 1)); done; echo $n; read";
    let holder = |uid: u32| {
        let mut command = std::process::Command::new("prlimit");
        let uid = uid.to_string();
        command.args(["--nofile=2000:2000", "setpriv", "--reuid", &uid, "--regid", &uid, "--clear-groups"]);
        command.args(["bash", "-c", hold, "bash", &uid]).current_dir(mount.path());
        command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
        let mut child = command.stderr(std::process::Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take().unwrap()), &mut line).unwrap();
        (child, line.trim().parse::<usize>().unwrap())
    };
    let (mut first, one) = holder(OWNER);
    // A third of what there is: half of what is free then.
    assert!((100..=150).contains(&one), "{one}");
    let (mut second, two) = holder(OWNER + 1);
    assert!((60..one).contains(&two), "{two}");
    // Whoever only reads is not counted, nor is root.
    assert_eq!(as_owner(&mount, OWNER, &format!("cat {OWNER}.0 && echo read")), "read\n");
    let roots: Vec<File> = (0..100).map(|n| File::create(mount.at(format!("root.{n}"))).unwrap()).collect();
    for child in [&mut first, &mut second] {
        child.stdin.take();
        child.wait().unwrap();
    }
    drop(roots);
    wait_until("what was closed to be free", || {
        as_owner(&mount, OWNER, &format!("echo text > {OWNER}.0 && echo done")) == "done\n"
    });
}
