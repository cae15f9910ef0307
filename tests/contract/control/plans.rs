//! Plans of checkpoints in parts: many who ask for one, large ones, and what becomes of it as files change meanwhile.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use tensorfs_tests::{Mount, Setup, dcp_plan, is_root, on_mounts, run_ok, safetensors, wait_until, xattr};

use super::checkpoints::{Cut, one_tensor, whole};
use super::{bytes, files, text, tree};

on_mounts!(
    a_plan_is_read_once_for_all_who_ask,
    a_good_plan_is_served_beside_those_that_cannot_be_read,
    an_index_is_found_among_any_number_of_names,
    lists_of_rights_are_read_once,
    an_open_tensor_keeps_its_rights_as_another_part_is_removed,
    a_checkpoint_is_listed_while_a_part_grows,
    parts_below_a_directory_make_up_a_tensor,
);

/// An index of so many tensors of one file.
fn index(tensors: usize, part: &str) -> String {
    let map: Vec<String> = (0..tensors).map(|n| format!(r#""t{n}":"{part}""#)).collect();
    format!(r#"{{"weight_map":{{{}}}}}"#, map.join(","))
}

/// What the server has read since it was started, from files and from readers.
fn read_by(mount: &Mount) -> u64 {
    let io = fs::read_to_string(format!("/proc/{}/io", mount.pid().unwrap())).unwrap();
    io.lines().find_map(|line| line.strip_prefix("rchar: ")).unwrap().parse().unwrap()
}

/// What the server has had of the processors, in hundredths of a second.
fn spent_by(mount: &Mount) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", mount.pid().unwrap())).unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

/// Eight ask at once for what a plan says that was just saved again.
///
/// Proves B16.
fn a_plan_is_read_once_for_all_who_ask(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let dir = mount.at("d");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("p.safetensors"), safetensors(&[("t7", b"seven")])).unwrap();
    let place = tree(&mount, "d.checkpoint");
    let save = |tensors: usize| {
        fs::write(mount.at("plan"), index(tensors, "p.safetensors")).unwrap();
        fs::rename(mount.at("plan"), dir.join("x.safetensors.index.json")).unwrap();
        // What has changed just now may change again in the same moment, and is not kept.
        std::thread::sleep(Duration::from_millis(50));
    };
    let asked_by = |count: usize| {
        let before = read_by(&mount);
        std::thread::scope(|scope| {
            (0..count).for_each(|_| drop(scope.spawn(|| assert!(fs::metadata(&place).unwrap().is_dir()))));
        });
        read_by(&mount) - before
    };
    save(3);
    assert!(place.is_dir());
    save(60_000);
    let one = asked_by(1);
    assert!(one > 1 << 20, "{one} bytes: the plan alone has more");
    assert!(asked_by(8) < 1 << 20, "what is known is not read again");
    save(60_001);
    let eight = asked_by(8);
    assert!(eight < 2 * one, "{eight} bytes were read for eight, and {one} for one");
    assert_eq!(bytes(&place.join("t7.npy")), b"seven");
}

/// A plan that is too large, and others that are none, beside one that is good.
///
/// Proves T14.
fn a_good_plan_is_served_beside_those_that_cannot_be_read(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let dir = mount.at("d");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("p.safetensors"), safetensors(&[("t0", b"good")])).unwrap();
    fs::write(dir.join("m.safetensors.index.json"), index(1, "p.safetensors")).unwrap();
    let place = tree(&mount, "d.checkpoint");
    let listed = || -> std::io::Result<Vec<_>> { fs::read_dir(&place)?.map(|entry| Ok(entry?.file_name())).collect() };
    let is_served = |what: &str| {
        for _ in 0..2 {
            let there = listed().unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(there, ["t0.npy"], "{what}");
            assert_eq!(bytes(&place.join("t0.npy")), b"good", "{what}");
        }
        let said = format!("/d/{what}: the plan of a checkpoint that cannot be read");
        assert!(mount.log().contains(&said), "{what}: {}", mount.log());
    };
    // Longer than any plan is read, without a byte in it.
    let huge = dir.join(".metadata");
    fs::write(&huge, b"\x80\x04").unwrap();
    OpenOptions::new().write(true).open(&huge).unwrap().set_len(300 << 20).unwrap();
    is_served(".metadata");
    fs::remove_file(&huge).unwrap();
    // What it says takes more memory than there is for one: before and behind the good one.
    let name = "n".repeat(60_000);
    let map: Vec<String> = (0..1200).map(|n| format!(r#""{n}{name}":"p.safetensors""#)).collect();
    let long = format!(r#"{{"weight_map":{{{}}}}}"#, map.join(","));
    for called in ["a.safetensors.index.json", "z.safetensors.index.json"] {
        fs::write(dir.join(called), &long).unwrap();
        is_served(called);
        fs::remove_file(dir.join(called)).unwrap();
    }
    // More files than count, and one that is cut short.
    let many: Vec<String> = (0..4097).map(|n| format!(r#""t{n}":"f{n}""#)).collect();
    fs::write(dir.join("b.bin.index.json"), format!(r#"{{"weight_map":{{{}}}}}"#, many.join(","))).unwrap();
    is_served("b.bin.index.json");
    let all = dcp_plan(&[("w", "uint8", &[1], vec![(&[0], &[1], Some(("p", 0, 9)))])]);
    fs::write(&huge, &all[..all.len() - 9]).unwrap();
    is_served(".metadata");
    // Without the good one there is nothing.
    fs::remove_file(dir.join("m.safetensors.index.json")).unwrap();
    assert_eq!(listed().unwrap_err().raw_os_error(), Some(libc::EIO));
}

/// Where a name stands in a directory says nothing about whether it is looked for.
///
/// Proves T14.
fn an_index_is_found_among_any_number_of_names(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let dir = mount.at("d");
    fs::create_dir(&dir).unwrap();
    // Empty ones are none. One of them is among the last names.
    let called: Vec<String> = (0..120).map(|n| format!("m{n}.safetensors.index.json")).collect();
    (0..4200).for_each(|n| drop(File::create(dir.join(format!("f{n}"))).unwrap()));
    called.iter().for_each(|name| drop(File::create(dir.join(name)).unwrap()));
    assert!(!tree(&mount, "d.checkpoint").exists());
    let names: Vec<String> =
        fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    let last = names.iter().rposition(|name| called.contains(name)).unwrap();
    assert!(last >= 4096, "{last}");
    fs::write(dir.join("p.safetensors"), safetensors(&[("t0", b"here")])).unwrap();
    fs::write(dir.join(&names[last]), index(1, "p.safetensors")).unwrap();
    assert_eq!(bytes(&tree(&mount, "d.checkpoint/t0.npy")), b"here");
    let listed: Vec<_> = fs::read_dir(tree(&mount, "")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(listed.iter().any(|name| name == "d.checkpoint"), "{listed:?}");
}

/// A list that is as long as the kernel hands on (4 KiB): many users may read, and `who` among them.
fn long_list(who: u32) -> Vec<u8> {
    let entry =
        |tag: u16, perm: u16, id: u32| [&tag.to_le_bytes()[..], &perm.to_le_bytes(), &id.to_le_bytes()].concat();
    let users = (0..300).map(|n| entry(2, 4, if n == 299 { 1_000_000 + who } else { 1000 + n }));
    let list = [entry(1, 6, u32::MAX)].into_iter().chain(users);
    let list = list.chain([entry(4, 4, u32::MAX), entry(0x10, 4, u32::MAX), entry(0x20, 4, u32::MAX)]);
    [2_u32.to_le_bytes().to_vec()].into_iter().chain(list).collect::<Vec<_>>().concat()
}

/// Two long lists that alternate among the parts: whoever looks at a tensor does not have them read each time. And
/// a list that is set anew counts at once.
///
/// Proves T3, T14.
fn lists_of_rights_are_read_once(setup: Setup) {
    const PARTS: u64 = 200;
    if !is_root() {
        return setup.skip("needs root, whose lists may be long");
    }
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let dir = mount.at("d");
    let (starts, size) = ((0..PARTS).map(|n| [n]).collect::<Vec<_>>(), [1_u64]);
    let cuts: Vec<Cut<'_>> = starts.iter().map(|at| (&at[..], &size[..], false)).collect();
    one_tensor(&dir, "w", &[PARTS], &cuts, PARTS as usize);
    let file = File::open(tree(&mount, "d.checkpoint/w.npy")).unwrap();
    let looked_at = |times: usize| {
        let before = spent_by(&mount);
        (0..times).for_each(|_| assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o444));
        spent_by(&mount) - before
    };
    let without = looked_at(400);
    let part = |n: u64| dir.join(format!("__{n}_0.distcp"));
    for n in 0..PARTS {
        xattr::set(&part(n), "system.posix_acl_access", &long_list((n % 2) as u32), 0).unwrap();
    }
    looked_at(1);
    let with = looked_at(400);
    assert!(with < 10 * without + 100, "{with} hundredths of a second, and {without} without lists");
    // Nobody but the owner may read one of them now.
    fs::set_permissions(part(7), fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(file.metadata().unwrap().mode() & 0o077, 0);
    xattr::set(&part(7), "system.posix_acl_access", &long_list(1), 0).unwrap();
    assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o444);
}

/// Proves T5, T14.
fn an_open_tensor_keeps_its_rights_as_another_part_is_removed(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let dir = mount.at("d");
    // With a directory in it nobody knows which files are the parts.
    fs::create_dir_all(dir.join("sub")).unwrap();
    fs::write(dir.join("a.safetensors"), safetensors(&[("v", b"open")])).unwrap();
    fs::write(dir.join("b.safetensors"), safetensors(&[("w", b"other")])).unwrap();
    let index = r#"{"weight_map": {"v": "a.safetensors", "w": "b.safetensors"}}"#;
    fs::write(dir.join("x.safetensors.index.json"), index).unwrap();
    let place = tree(&mount, "d.checkpoint/v.npy");
    for mode in [0o644, 0o640] {
        fs::write(dir.join("b.safetensors"), safetensors(&[("w", b"other")])).unwrap();
        fs::set_permissions(dir.join("a.safetensors"), fs::Permissions::from_mode(mode)).unwrap();
        let file = File::open(&place).unwrap();
        let looks = || {
            let about = file.metadata().unwrap();
            (about.mode(), about.uid(), about.gid(), about.len(), about.mtime_nsec())
        };
        let before = looks();
        assert_eq!(before.0, libc::S_IFREG | (mode & 0o444));
        fs::remove_file(dir.join("b.safetensors")).unwrap();
        assert_eq!(looks(), before);
        let mut all = vec![0; before.3 as usize];
        file.read_exact_at(&mut all, 0).unwrap();
        assert!(all.ends_with(b"open"));
        // What is there counts as it is now.
        fs::set_permissions(dir.join("a.safetensors"), fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(looks().0, libc::S_IFREG | 0o400);
        // Also without the plan, whose owner was that of all.
        fs::rename(dir.join("x.safetensors.index.json"), mount.at("plan")).unwrap();
        assert_eq!(looks().0, libc::S_IFREG | 0o400);
        fs::rename(mount.at("plan"), dir.join("x.safetensors.index.json")).unwrap();
        let plan = fs::read(dir.join("x.safetensors.index.json")).unwrap();
        fs::remove_file(dir.join("x.safetensors.index.json")).unwrap();
        assert_eq!(looks().0, libc::S_IFREG | 0o400);
        fs::write(dir.join("x.safetensors.index.json"), plan).unwrap();
    }
}

/// A part that is appended to all the time, which an index names: the checkpoint is listed, and what is in it can be
/// looked at; so it is with a plan that says shapes.
///
/// Proves T14.
fn a_checkpoint_is_listed_while_a_part_grows(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let dir = mount.at("d");
    fs::create_dir(&dir).unwrap();
    let array = tensorfs_tests::npy("|u1", false, &[1000], &[7; 1000]);
    let map: Vec<String> = (0..40).map(|n| format!(r#""array[{n}]":"grows.npy""#)).collect();
    let map = format!(r#"{{"weight_map":{{"array":"grows.npy","still":"s.safetensors",{}}}}}"#, map[1..].join(","));
    fs::write(dir.join("grows.npy"), array.repeat(40)).unwrap();
    fs::write(dir.join("s.safetensors"), safetensors(&[("still", b"still")])).unwrap();
    fs::write(dir.join("x.bin.index.json"), map).unwrap();
    let cuts: &[Cut<'_>] = &[(&[0], &[1000], false), (&[1000], &[5], false)];
    one_tensor(&mount.at("e"), "w", &[1005], cuts, 2);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers = [dir.join("grows.npy"), mount.at("e/__1_0.distcp")].map(|path| {
            let (array, over) = (&array, &over);
            scope.spawn(move || {
                let mut file = OpenOptions::new().append(true).open(path).unwrap();
                // No more than this, whatever becomes of those who look.
                for _ in (0..2000).take_while(|_| !over.load(SeqCst)) {
                    file.write_all(array).unwrap();
                    std::thread::sleep(Duration::from_millis(10));
                }
            })
        });
        for _ in 0..3 {
            for (name, count) in [("d.checkpoint", 41), ("e.checkpoint", 1)] {
                let listed = run_ok(Command::new("ls").arg("-l").arg(tree(&mount, name)));
                let there = listed.lines().filter(|line| line.ends_with(".npy")).count();
                assert_eq!(there, count, "{name}: {listed}");
            }
            assert_eq!(fs::metadata(tree(&mount, "d.checkpoint/array[39].npy")).unwrap().len(), 128 + 1000);
            assert_eq!(fs::metadata(tree(&mount, "e.checkpoint/w.npy")).unwrap().len(), 128 + 1005);
            assert_eq!(bytes(&tree(&mount, "d.checkpoint/still.npy")), b"still");
        }
        over.store(true, SeqCst);
        writers.into_iter().for_each(|writer| writer.join().unwrap());
    });
    assert_eq!(bytes(&tree(&mount, "d.checkpoint/array.npy")), [7; 1000]);
    assert_eq!(bytes(&tree(&mount, "e.checkpoint/w.npy")), whole(&[1005]));
}

/// An index names its parts by paths, as Hugging Face's may.
///
/// Proves T3, T14.
fn parts_below_a_directory_make_up_a_tensor(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let dir = mount.at("d");
    fs::create_dir_all(dir.join("sub/deep")).unwrap();
    fs::write(dir.join("sub/p.safetensors"), safetensors(&[("a", b"first")])).unwrap();
    fs::write(dir.join("sub/deep/q.safetensors"), safetensors(&[("b", b"second")])).unwrap();
    let index = r#"{"weight_map": {"a": "sub/p.safetensors", "b": "sub/deep/q.safetensors", "c": "sub/none"}}"#;
    fs::write(dir.join("x.safetensors.index.json"), index).unwrap();
    let place = tree(&mount, "d.checkpoint");
    assert_eq!(text(&files(&place)), ["a.npy", "b.npy"]);
    assert_eq!((bytes(&place.join("a.npy")), bytes(&place.join("b.npy"))), (b"first".to_vec(), b"second".to_vec()));
    // What is on the way counts as the part does: its rights, and where it leads.
    let mode = |name: &str| fs::metadata(place.join(name)).unwrap().mode() & 0o777;
    assert_eq!((mode("a.npy"), mode("b.npy")), (0o444, 0o444));
    fs::set_permissions(dir.join("sub/deep"), fs::Permissions::from_mode(0o700)).unwrap();
    assert_eq!((mode("a.npy"), mode("b.npy")), (0o400, 0o400), "who may read all that the plan names may read each");
    fs::set_permissions(dir.join("sub/deep"), fs::Permissions::from_mode(0o755)).unwrap();
    let open = File::open(place.join("b.npy")).unwrap();
    fs::rename(dir.join("sub/deep"), mount.at("away")).unwrap();
    assert!(!place.join("b.npy").exists());
    assert_eq!(text(&files(&place)), ["a.npy"]);
    fs::create_dir(dir.join("sub/deep")).unwrap();
    fs::write(dir.join("sub/deep/q.safetensors"), safetensors(&[("b", b"anew")])).unwrap();
    assert_eq!(bytes(&place.join("b.npy")), b"anew");
    std::os::unix::fs::symlink("../../away", dir.join("sub/link")).unwrap();
    fs::write(dir.join("x.safetensors.index.json"), index.replace("sub/deep", "sub/link")).unwrap();
    wait_until("no link is followed", || !place.join("b.npy").exists());
    // The one that is open is what it was.
    let mut all = vec![0; open.metadata().unwrap().len() as usize];
    open.read_exact_at(&mut all, 0).unwrap();
    assert!(all.ends_with(b"second"));
}
