//! A tensor whose parts are in several files is one file.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use tensorfs_tests::{
    Mount, PlannedPiece, Setup, as_user, dcp_plan, is_root, on_mounts, run, run_ok, safetensors, samples, shell,
};

use super::{bytes, files, npy, sealed, text, tree};

on_mounts!(
    a_tensor_in_parts_is_a_file,
    a_tensor_in_parts_is_a_file_for_numpy,
    an_index_makes_one_model,
    conjugates_in_parts_are_conjugates,
    what_is_called_as_a_checkpoint_comes_first,
    parts_that_are_not_as_planned_are_told,
    plans_that_cannot_be_are_left_out,
    who_may_not_read_a_part_may_not_read_the_whole,
    who_puts_one_plan_in_the_place_of_another_reads_nothing_more,
    an_open_tensor_in_parts_shows_one_version,
    open_tensors_in_parts_go_on,
    a_checkpoint_of_many_parts_takes_little_memory,
);

/// A piece of an array of bytes: where it begins, its sizes, and whether it is stored column by column.
pub(super) type Cut<'a> = (&'a [u64], &'a [u64], bool);

/// An array of `item` bytes an element, and of one piece of it the elements.
fn elements(shape: &[u64], item: u64, (starts, sizes, fortran): Cut<'_>) -> Vec<u8> {
    let count: u64 = sizes.iter().product();
    let mut all = Vec::new();
    for n in 0..count {
        // The element of the piece, and which of the whole it is.
        let mut rest = n;
        let mut at = vec![0; sizes.len()];
        let dims: Vec<usize> = if fortran { (0..sizes.len()).collect() } else { (0..sizes.len()).rev().collect() };
        for dim in dims {
            (at[dim], rest) = (starts[dim] + rest % sizes[dim], rest / sizes[dim]);
        }
        let whole = at.iter().zip(shape).fold(0, |whole, (at, size)| whole * size + at);
        all.extend((0..item).map(|byte| (whole * 7 + byte * 31) as u8));
    }
    all
}

/// Arrays one behind the other, each with its place.
fn file_of(arrays: &[Vec<u8>]) -> (Vec<u8>, Vec<(u64, u64)>) {
    let (mut all, mut places) = (Vec::new(), Vec::new());
    for array in arrays {
        places.push((all.len() as u64, array.len() as u64));
        all.extend(array);
    }
    (all, places)
}

/// Makes a checkpoint of one tensor of bytes, the pieces of which are in turn in as many files as it says.
pub(super) fn one_tensor(dir: &Path, name: &str, shape: &[u64], cuts: &[Cut<'_>], in_files: usize) {
    fs::create_dir_all(dir).unwrap();
    let names: Vec<String> = (0..in_files).map(|n| format!("__{n}_0.distcp")).collect();
    let mut places = vec![(0, 0); cuts.len()];
    for (n, file) in names.iter().enumerate() {
        let mine = || (n..cuts.len()).step_by(in_files);
        let arrays: Vec<_> = mine()
            .map(|cut| tensorfs_tests::npy("|u1", cuts[cut].2, cuts[cut].1, &elements(shape, 1, cuts[cut])))
            .collect();
        let (all, at) = file_of(&arrays);
        mine().zip(at).for_each(|(cut, at)| places[cut] = at);
        fs::write(dir.join(file), all).unwrap();
    }
    let pieces = cuts.iter().zip(&places).enumerate();
    let pieces = pieces.map(|(n, ((starts, sizes, _), (offset, len)))| -> PlannedPiece<'_> {
        (starts, sizes, Some((&names[n % in_files], *offset, *len)))
    });
    fs::write(dir.join(".metadata"), dcp_plan(&[(name, "uint8", shape, pieces.collect())])).unwrap();
}

pub(super) fn whole(shape: &[u64]) -> Vec<u8> {
    elements(shape, 1, (&vec![0; shape.len()], shape, false))
}

/// Where torch says that signs are others than those that are stored, they are so in the whole, too.
///
/// Proves T14.
fn conjugates_in_parts_are_conjugates(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let (indexed, planned) = (mount.at("run/indexed"), mount.at("run/planned"));
    fs::create_dir_all(&indexed).unwrap();
    fs::create_dir_all(&planned).unwrap();
    fs::copy(samples().join("torch2-signs.pt"), indexed.join("a.bin")).unwrap();
    let names = ["plain", "conjugate", "transposed", "real"];
    let map: Vec<String> = names.iter().map(|name| format!("\"{name}\": \"a.bin\"")).collect();
    fs::write(indexed.join("m.bin.index.json"), format!("{{\"weight_map\": {{{}}}}}", map.join(", "))).unwrap();
    let part = planned.join("__0_0.distcp");
    fs::copy(samples().join("torch2-signs-imaginary.pt"), &part).unwrap();
    let at = ("__0_0.distcp", 0, fs::metadata(&part).unwrap().len());
    let pieces: Vec<PlannedPiece<'_>> = vec![(&[0, 0], &[10, 3], Some(at))];
    fs::write(planned.join(".metadata"), dcp_plan(&[("imaginary", "float32", &[10, 3], pieces)])).unwrap();
    // The numbers from 0 to 59, in pairs.
    let pair = |n: usize, sign: f32| [(2 * n) as f32, sign * (2 * n + 1) as f32];
    let wanted: [(&str, &str, Vec<f32>); 5] = [
        ("indexed", "plain", (0..30).flat_map(|n| pair(n, 1.0)).collect()),
        ("indexed", "conjugate", (0..30).flat_map(|n| pair(n, -1.0)).collect()),
        ("indexed", "transposed", (0..30).flat_map(|n| pair(n % 10 * 3 + n / 10, -1.0)).collect()),
        ("indexed", "real", (0..60).map(|n| -2.0 * n as f32).collect()),
        ("planned", "imaginary", (0..30).map(|n| pair(n, -1.0)[1]).collect()),
    ];
    for (dir, name, numbers) in wanted {
        let file = fs::read(tree(&mount, &format!("run/{dir}.checkpoint/{name}.npy"))).unwrap();
        let stored: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        assert!(npy(&file).1 == stored, "{name}");
        let said = mount.tensorfs(["cat", mount.at("run").join(dir).to_str().unwrap(), name]);
        assert!(said.status.success() && npy(&said.stdout).1 == stored, "{name}");
    }
}

/// What torch saved, and pieces of all kinds, from the bytes and from the seals.
///
/// Proves T14.
fn a_tensor_in_parts_is_a_file(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let dir = mount.at("run/step-1");
    fs::create_dir_all(&dir).unwrap();
    fs::copy(samples().join("torch2-dcp.metadata"), dir.join(".metadata")).unwrap();
    fs::copy(samples().join("torch2-dcp.distcp"), dir.join("__0_0.distcp")).unwrap();
    for round in 0..2 {
        let place = tree(&mount, "run/step-1.checkpoint");
        assert_eq!(text(&files(&place)), ["half.npy", "model.bias.npy", "model.weight.npy"]);
        for name in ["half", "model.bias", "model.weight"] {
            let said = mount.tensorfs(["cat", dir.to_str().unwrap(), name]);
            assert!(said.status.success());
            assert!(fs::read(place.join(format!("{name}.npy"))).unwrap() == said.stdout, "{name}");
        }
        if round == 0 {
            sealed(&dir.join("__0_0.distcp"));
        }
    }
    let mut listed: Vec<_> =
        fs::read_dir(tree(&mount, "run")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    listed.sort();
    assert_eq!(listed, ["step-1", "step-1.checkpoint"]);
    let cases: [(&[u64], &[Cut<'_>]); 8] = [
        (&[10, 6], &[(&[0, 0], &[5, 6], false), (&[5, 0], &[5, 6], false)]),
        (&[4, 7, 3], &[(&[0, 0, 0], &[4, 4, 3], false), (&[0, 4, 0], &[4, 3, 3], true)]),
        (&[2, 3, 5], &[(&[0, 0, 0], &[2, 3, 2], true), (&[0, 0, 2], &[2, 3, 3], false)]),
        (
            &[7, 7],
            &[
                (&[0, 0], &[3, 3], false),
                (&[3, 3], &[4, 4], true),
                (&[0, 3], &[3, 4], false),
                (&[3, 0], &[4, 3], false),
            ],
        ),
        // Another process has nothing of it.
        (&[3], &[(&[0], &[3], false), (&[3], &[0], false)]),
        (&[], &[(&[], &[], false)]),
        (&[0, 5], &[]),
        (&[300, 1000], &[(&[0, 0], &[300, 1], false), (&[0, 1], &[300, 999], true)]),
    ];
    for (n, (shape, cuts)) in cases.into_iter().enumerate() {
        let name = format!("case{n}");
        one_tensor(&mount.at(&name), "deep/w", shape, cuts, 1 + n % 3);
        let place = tree(&mount, &format!("{name}.checkpoint"));
        assert_eq!(text(&files(&place)), ["deep/w.npy"], "{shape:?}");
        let expected = whole(shape);
        assert!(bytes(&place.join("deep/w.npy")) == expected, "{shape:?} {cuts:?}");
        // From any place on, and past the end.
        let file = File::open(place.join("deep/w.npy")).unwrap();
        let all = fs::read(place.join("deep/w.npy")).unwrap();
        for (at, len) in [(0, 5), (60, 100), (127, 2), (all.len() - 1, 9), (all.len(), 4), (all.len() / 2, 77)] {
            let mut some = vec![0; len];
            let count = file.read_at(&mut some, at as u64).unwrap();
            assert!(some[..count] == all[at.min(all.len())..(at + len).min(all.len())], "{shape:?} {at} {len}");
        }
    }
}

/// Proves T14.
fn a_tensor_in_parts_is_a_file_for_numpy(setup: Setup) {
    let Some(python) = setup.python("small") else { return };
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let shape = [64, 33];
    one_tensor(&mount.at("d"), "w", &shape, &[(&[0, 0], &[40, 33], false), (&[40, 0], &[24, 33], false)], 2);
    fs::write(mount.at("whole.npy"), tensorfs_tests::npy("|u1", false, &shape, &whole(&shape))).unwrap();
    let script = "import numpy as np, sys\n\
        a, b = (np.load(path, mmap_mode='r') for path in sys.argv[1:])\n\
        assert a.shape == (64, 33) and isinstance(a, np.memmap) and (a == b).all() and a.sum() == b.sum() > 0";
    run_ok(
        Command::new(python).args(["-c", script]).arg(tree(&mount, "d.checkpoint/w.npy")).arg(mount.at("whole.npy")),
    );
    run_ok(Command::new("cp").arg(tree(&mount, "d.checkpoint/w.npy")).arg(mount.at("copy.npy")));
    run_ok(Command::new("cmp").arg(mount.at("copy.npy")).arg(tree(&mount, "d.checkpoint/w.npy")));
}

/// An index over safetensors files; two of them; names that are no names of files.
///
/// Proves T2, T14.
fn an_index_makes_one_model(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let dir = mount.at("model");
    fs::create_dir(&dir).unwrap();
    let first: [(&str, &[u8]); 3] = [("a.w", b"0123"), ("a/b", b"45"), ("100%@1", b"6")];
    fs::write(dir.join("m-1.safetensors"), safetensors(&first)).unwrap();
    fs::write(dir.join("m-2.safetensors"), safetensors(&[("c", &[3; 200_000])])).unwrap();
    let index = r#"{"metadata": {}, "weight_map": {"a.w": "m-1.safetensors", "a/b": "m-1.safetensors",
        "100%@1": "m-1.safetensors", "c": "m-2.safetensors", "not there": "m-2.safetensors",
        "nowhere": "m-3.safetensors"}}"#;
    fs::write(dir.join("model.safetensors.index.json"), index).unwrap();
    let place = tree(&mount, "model.checkpoint");
    let names = ["100%25%401.npy", "a.w.npy", "a/b.npy", "c.npy"];
    for round in 0..2 {
        assert_eq!(text(&files(&place)), names);
        for (name, expected) in [("a.w.npy", &b"0123"[..]), ("a/b.npy", b"45"), ("c.npy", &[3; 200_000])] {
            assert!(bytes(&place.join(name)) == expected, "{name}");
        }
        if round == 0 {
            ["m-1.safetensors", "m-2.safetensors"].iter().for_each(|name| sealed(&dir.join(name)));
        }
    }
    for name in ["nowhere.npy", "not there.npy", "a", "a.npy", "c.npy/x", "@.npy"] {
        assert_eq!(place.join(name).exists(), name == "a", "{name}");
    }
    // A part of another size is another tensor, and one that comes is there.
    fs::write(dir.join("m-2.safetensors"), safetensors(&[("c", b"new"), ("not there", b"now")])).unwrap();
    assert_eq!((bytes(&place.join("c.npy")), bytes(&place.join("not there.npy"))), (b"new".to_vec(), b"now".to_vec()));
    // What is saved beside it in another way has a directory of its own.
    fs::write(dir.join("pytorch_model.bin.index.json"), r#"{"weight_map": {"a.w": "m-2.bin"}}"#).unwrap();
    fs::write(dir.join("m-2.bin"), safetensors(&[("a.w", b"other")])).unwrap();
    assert_eq!(text(&files(&place)), [&["100%25%401.npy", "2/a.w.npy"], &names[1..], &["not there.npy"]].concat());
    assert_eq!(bytes(&place.join("2/a.w.npy")), b"other");
    // Large elements, which are not read as wholes, and stand column by column.
    let odd = mount.at("odd");
    fs::create_dir(&odd).unwrap();
    let columns: Vec<u8> = [0, 2, 1, 3].into_iter().flat_map(|n| vec![n; 70_001]).collect();
    fs::write(odd.join("x.bin"), tensorfs_tests::npy("|S70001", true, &[2, 2], &columns)).unwrap();
    fs::write(odd.join("x.bin.index.json"), r#"{"weight_map": {"array": "x.bin"}}"#).unwrap();
    let rows: Vec<u8> = (0..4).flat_map(|n| vec![n; 70_001]).collect();
    assert!(bytes(&tree(&mount, "odd.checkpoint/array.npy")) == rows);
    // Compressed parts are decoded, but not those that stand column by column.
    fs::copy(samples().join("compressed.npz"), odd.join("y.bin")).unwrap();
    let index = r#"{"weight_map": {"f4": "y.bin", "big": "y.bin", "zeroes": "y.bin", "fortran": "y.bin"}}"#;
    fs::write(odd.join("x.bin.index.json"), index).unwrap();
    for name in ["f4.npy", "big.npy", "zeroes.npy"] {
        let of_file = fs::read(tree(&mount, &format!("odd/y.bin/{name}"))).unwrap();
        assert!(fs::read(tree(&mount, &format!("odd.checkpoint/{name}"))).unwrap() == of_file, "{name}");
    }
    assert_eq!(fs::read(tree(&mount, "odd.checkpoint/fortran.npy")).unwrap_err().raw_os_error(), Some(libc::EIO));
}

/// Proves T14.
fn what_is_called_as_a_checkpoint_comes_first(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let cut: &[Cut<'_>] = &[(&[0], &[4], false)];
    one_tensor(&mount.at("d"), "w", &[4], cut, 1);
    let place = tree(&mount, "d.checkpoint/w.npy");
    assert_eq!(bytes(&place), whole(&[4]));
    let names = || -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(tree(&mount, ""))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    assert_eq!(names(), ["d", "d.checkpoint"]);
    // Whatever it is, it is what there is of that name.
    fs::create_dir(mount.at("d.checkpoint")).unwrap();
    fs::write(mount.at("d.checkpoint/model"), safetensors(&[("x", b"real")])).unwrap();
    assert_eq!(names(), ["d", "d.checkpoint"]);
    assert!(!place.exists());
    assert_eq!(bytes(&tree(&mount, "d.checkpoint/model/x.npy")), b"real");
    fs::rename(mount.at("d.checkpoint"), mount.at("other")).unwrap();
    fs::write(mount.at("d.checkpoint"), "no tensors").unwrap();
    assert_eq!(names(), ["d", "other"]);
    assert!(!tree(&mount, "d.checkpoint").exists());
    fs::remove_file(mount.at("d.checkpoint")).unwrap();
    symlink("other", mount.at("d.checkpoint")).unwrap();
    assert!(names() == ["d", "other"] && !place.exists());
    fs::remove_file(mount.at("d.checkpoint")).unwrap();
    assert_eq!(bytes(&place), whole(&[4]));
    // It goes where the directory goes, and is no longer there when the plan is not.
    fs::rename(mount.at("d"), mount.at("other/e")).unwrap();
    assert!(!place.exists());
    assert_eq!(bytes(&tree(&mount, "other/e.checkpoint/w.npy")), whole(&[4]));
    fs::rename(mount.at("other/e/.metadata"), mount.at("plan")).unwrap();
    assert!(!tree(&mount, "other/e.checkpoint").exists());
    fs::write(mount.at("other/e/.metadata"), "{}").unwrap();
    fs::write(mount.at("other/e/x.bin.index.json"), r#"{"weight_map": {}}"#).unwrap();
    assert!(!tree(&mount, "other/e.checkpoint").exists());
    // The root has no name, and a long name has no room.
    fs::rename(mount.at("plan"), mount.at(".metadata")).unwrap();
    fs::rename(mount.at("other/e/__0_0.distcp"), mount.at("__0_0.distcp")).unwrap();
    assert_eq!(bytes(&tree(&mount, ".checkpoint/w.npy")), whole(&[4]));
    assert_eq!(names(), [".checkpoint", "__0_0.distcp", "other"]);
    let long = "n".repeat(245);
    one_tensor(&mount.at(&long), "w", &[4], cut, 1);
    assert_eq!(names(), [".checkpoint", "__0_0.distcp", &long, "other"]);
    for name in ["model.checkpoint", "other.checkpoint", "x.checkpoint", "other/.checkpoint"] {
        assert!(!tree(&mount, name).exists(), "{name}");
    }
    // Nobody makes or removes anything there.
    assert!(fs::write(tree(&mount, ".checkpoint/x"), "x").is_err());
    assert!(fs::remove_file(tree(&mount, ".checkpoint/w.npy")).is_err() && tree(&mount, ".checkpoint/w.npy").exists());
}

/// Proves T14.
fn parts_that_are_not_as_planned_are_told(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let dir = mount.at("d");
    let cuts: &[Cut<'_>] = &[(&[0, 0], &[2, 3], false), (&[2, 0], &[2, 3], false)];
    one_tensor(&dir, "w", &[4, 3], cuts, 2);
    let (place, part) = (tree(&mount, "d.checkpoint/w.npy"), dir.join("__1_0.distcp"));
    let good = fs::read(&part).unwrap();
    assert_eq!(bytes(&place), whole(&[4, 3]));
    let told = |what: &str| {
        let before = mount.log().len();
        let refused = fs::read(&place).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EIO), "{what}: {refused}");
        // It is there, as the plan says, and can be listed.
        assert_eq!(fs::metadata(&place).unwrap().len(), 128 + 12);
        let log = mount.log()[before..].to_owned();
        assert!(log.contains(&format!("/d: w: its part __1_0.distcp {what}")), "{what}: {log}");
    };
    fs::remove_file(&part).unwrap();
    told("is not there");
    fs::create_dir(&part).unwrap();
    told("is not there");
    fs::remove_dir(&part).unwrap();
    fs::write(mount.at("elsewhere"), &good).unwrap();
    symlink("../elsewhere", &part).unwrap();
    told("is not there");
    fs::remove_file(&part).unwrap();
    fs::write(&part, "no tensors, but long enough".repeat(99)).unwrap();
    told("holds no tensors");
    fs::write(&part, tensorfs_tests::npy("|u1", false, &[0], b"")).unwrap();
    told("is cut short");
    for other in [
        tensorfs_tests::npy("|u1", false, &[3, 2], &[0; 6]),
        tensorfs_tests::npy("|i1", false, &[2, 3], &[0; 6]),
        tensorfs_tests::npy("<u2", false, &[2, 3], &[0; 12]),
    ] {
        fs::write(&part, [&other[..], &[0; 9]].concat()).unwrap();
        told("is of another shape or type than the plan says");
    }
    fs::write(&part, [&tensorfs_tests::npy("|u1", false, &[500], &[0; 500])[..], &good].concat()).unwrap();
    told("is of another shape");
    // Empty, and then as it was.
    fs::write(&part, "").unwrap();
    told("holds no tensors");
    fs::write(&part, &good).unwrap();
    assert_eq!(bytes(&place), whole(&[4, 3]));
    // Pieces that have as many elements as the whole, and overlap.
    let twice: &[Cut<'_>] = &[(&[0, 0], &[2, 3], false), (&[0, 0], &[2, 3], false)];
    one_tensor(&mount.at("twice"), "w", &[4, 3], twice, 1);
    assert_eq!(fs::read(tree(&mount, "twice.checkpoint/w.npy")).unwrap_err().raw_os_error(), Some(libc::EIO));
    assert!(mount.log().contains("/twice: w: parts of it overlap, and others are missing"), "{}", mount.log());
}

/// Plans of strangers: nothing of them is there, or what is there can be read, and the server goes on.
///
/// Proves T9, T14.
fn plans_that_cannot_be_are_left_out(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let part = tensorfs_tests::npy("|u1", false, &[4], b"0123");
    let at = |file: &'static str| Some((file, 0, part.len() as u64));
    let dir = mount.at("d");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("p"), &part).unwrap();
    fs::write(mount.at("p"), &part).unwrap();
    let listed = |plan: Vec<u8>| {
        fs::write(dir.join(".metadata"), plan).unwrap();
        let place = tree(&mount, "d.checkpoint");
        match fs::read_dir(&place).and_then(Iterator::collect::<Result<Vec<_>, _>>) {
            Ok(_) => text(&files(&place)),
            Err(error) => vec![match error.raw_os_error() {
                Some(libc::ENOENT) => "not there".to_owned(),
                Some(libc::EIO) => mount.log().lines().last().unwrap().rsplit(": ").next().unwrap().to_owned(),
                _ => panic!("{error}"),
            }],
        }
    };
    let one = |shape: &[u64], dtype: &str, pieces: Vec<PlannedPiece<'_>>| dcp_plan(&[("w", dtype, shape, pieces)]);
    assert_eq!(listed(one(&[4], "uint8", vec![(&[0], &[4], at("p"))])), ["w.npy"]);
    assert_eq!(bytes(&tree(&mount, "d.checkpoint/w.npy")), b"0123");
    let (huge, max) = (1 << 62, i64::MAX as u64);
    let no_name = ["../p", "/p", "x/../p", ".", "..", ""];
    for file in no_name {
        let plan = one(&[4], "uint8", vec![(&[0], &[4], Some((file, 0, 9)))]);
        assert_eq!(listed(plan), ["a part that cannot be the name of a file"], "{file}");
    }
    let none: Vec<(&str, Vec<u8>)> = vec![
        ("nothing covers it", one(&[4], "uint8", vec![(&[0], &[3], at("p"))])),
        ("more than covers it", one(&[4], "uint8", vec![(&[0], &[4], at("p")), (&[0], &[4], at("p"))])),
        ("beside it", one(&[4], "uint8", vec![(&[1], &[4], at("p"))])),
        ("of other dimensions", one(&[4], "uint8", vec![(&[0, 0], &[4, 1], at("p"))])),
        ("nowhere", one(&[4], "uint8", vec![(&[0], &[4], None)])),
        ("too many bytes", one(&[max / 4], "float64", vec![(&[0], &[max / 4], at("p"))])),
        ("longer than a file", one(&[max], "uint8", vec![(&[0], &[max], at("p"))])),
        ("a sum that is too large", one(&[max], "uint8", vec![(&[0], &[max], at("p")), (&[0], &[max], at("p"))])),
        ("zero beside much", one(&[huge, huge, huge, 0], "uint8", vec![(&[huge], &[0], at("p"))])),
        ("a type that is none", one(&[4], "complex256", vec![(&[0], &[4], at("p"))])),
        ("bits", one(&[4], "bits1x8", vec![(&[0], &[4], at("p"))])),
    ];
    for (what, plan) in none {
        assert_eq!(listed(plan), [""; 0], "{what}");
    }
    for (plan, why) in [
        (one(&[huge, 4], "uint8", vec![(&[0, 0], &[huge, 4], at("p"))]), "a tensor of too many bytes"),
        (one(&[4], "uint8", vec![(&[1 << 63], &[1 << 63], at("p"))]), "a part of a tensor that is too large"),
        (part.clone(), "not there"),
    ] {
        let said = listed(plan);
        assert!(said == [why] || said == ["not there"], "{why}: {said:?}");
    }
    // A place that runs over the end of all numbers.
    assert_eq!(listed(one(&[4], "uint8", vec![(&[0], &[4], Some(("p", u64::MAX >> 1, u64::MAX >> 1)))])), ["w.npy"]);
    assert!(fs::read(tree(&mount, "d.checkpoint/w.npy")).is_err());
    // Another name of the file is the file.
    fs::hard_link(mount.at("p"), dir.join("linked")).unwrap();
    assert_eq!(listed(one(&[4], "uint8", vec![(&[0], &[4], at("linked"))])), ["w.npy"]);
    assert_eq!(bytes(&tree(&mount, "d.checkpoint/w.npy")), b"0123");
    // A tensor in more pieces than are put together, and as many as that.
    let starts: Vec<[u64; 1]> = (0..4097).map(|n| [n]).collect();
    let single = tensorfs_tests::npy("|u1", false, &[1], b"x");
    fs::write(dir.join("p"), single.repeat(4097)).unwrap();
    let len = single.len() as u64;
    for (count, names) in [(4097, &[][..]), (4096, &["w.npy"])] {
        let pieces = starts[..count].iter().map(|at| (&at[..], &[1][..], Some(("p", at[0] * len, len))));
        assert_eq!(listed(one(&[count as u64], "uint8", pieces.collect())), names, "{count}");
    }
    assert_eq!(bytes(&tree(&mount, "d.checkpoint/w.npy")), b"x".repeat(4096));
    // A plan of more files than count.
    let names: Vec<String> = (0..4097).map(|n| format!("f{n}")).collect();
    for (count, there) in [(4097, 1), (4096, 4096)] {
        let tensors: Vec<_> = names[..count]
            .iter()
            .map(|name| (&name[..], "uint8", &[1][..], vec![(&[0][..], &[1][..], Some((&name[..], 0, len)))]))
            .collect();
        let listed = listed(dcp_plan(&tensors));
        assert!(listed.len() == there && (there > 1 || listed == ["a plan of too many parts"]), "{count}: {listed:?}");
    }
    assert!(mount.info()["readers"]["failed"] == 0, "{}", mount.info());
}

/// `yes` if a shell command of another user succeeds.
fn may(mount: &Mount, uid: u32, script: &str) -> bool {
    run(as_user(uid, uid).args(["bash", "-c", script]).current_dir(mount.path())).status.success()
}

/// Directory, plan and parts with different modes, owners and lists: who may read all of them may read the tensor where
/// a mode can say it, and nobody else may.
///
/// Proves T3, T14.
fn who_may_not_read_a_part_may_not_read_the_whole(setup: Setup) {
    if !is_root() {
        return setup.skip("needs root, to become somebody else");
    }
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    fs::set_permissions(mount.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let dir = mount.at("d");
    one_tensor(&dir, "deep/w", &[4], &[(&[0], &[2], false), (&[2], &[2], false)], 2);
    let all: [PathBuf; 4] = [".", ".metadata", "__0_0.distcp", "__1_0.distcp"].map(|name| dir.join(name));
    let reads = |uid| {
        let whole = may(&mount, uid, "cat .tensorfs/tensors/d.checkpoint/deep/w.npy");
        for listing in ["ls .tensorfs/tensors/d.checkpoint", "ls .tensorfs/tensors/d.checkpoint/deep"] {
            assert_eq!(may(&mount, uid, listing), whole, "{uid} {listing}");
        }
        let each = may(&mount, uid, "cat d/.metadata d/__0_0.distcp d/__1_0.distcp");
        assert!(each || !whole, "{uid}");
        (whole, each)
    };
    let set = |n: usize, mode: u32, uid: u32, gid: u32| {
        std::os::unix::fs::chown(&all[n], Some(uid), Some(gid)).unwrap();
        fs::set_permissions(&all[n], fs::Permissions::from_mode(mode)).unwrap();
    };
    // One owner and one group: as for one file.
    for odd in 0..4 {
        for mode in [0o755, 0o750, 0o700, 0o705, 0o711, 0o744, 0o055, 0o000] {
            (0..4).for_each(|n| set(n, if n == odd { mode } else { 0o755 }, 1000, 2000));
            for uid in [1000, 2000, 3000] {
                let (whole, each) = reads(uid);
                assert_eq!(whole, each, "{odd} {mode:o} {uid}");
            }
        }
    }
    // Several owners: each of them counts.
    for (modes, readers) in [
        ([0o755, 0o644, 0o644, 0o644], [true, true, true]),
        ([0o755, 0o644, 0o600, 0o644], [false, false, false]),
        ([0o755, 0o644, 0o640, 0o604], [false, false, false]),
        ([0o755, 0o600, 0o644, 0o644], [true, false, false]),
    ] {
        for (n, uid) in [1000, 1000, 2000, 3000].into_iter().enumerate() {
            set(n, modes[n], uid, uid);
        }
        for (uid, expected) in [1000, 2000, 3000].into_iter().zip(readers) {
            assert_eq!(reads(uid).0, expected, "{modes:?} {uid}");
        }
    }
    // Lists of the same content count; where they differ, only what they say of everybody does.
    (0..4).for_each(|n| set(n, if n == 0 { 0o700 } else { 0o600 }, 1000, 1000));
    if run(Command::new("setfacl").arg("--version")).status.success() {
        shell(&dir, "setfacl -m u:3000:rx . && setfacl -m u:3000:r .metadata __0_0.distcp __1_0.distcp");
        assert_eq!([1000, 2000, 3000].map(|uid| reads(uid).0), [true, false, true]);
        shell(&dir, "setfacl -m u:2000:r __0_0.distcp");
        assert_eq!([1000, 2000, 3000].map(|uid| reads(uid).0), [true, false, false]);
        shell(&dir, "setfacl -b . .metadata __0_0.distcp __1_0.distcp");
    }
    // A change counts at once, also for who is inside, and for what has been put in the place of a part.
    (0..4).for_each(|n| set(n, 0o755, 1000, 1000));
    assert!(reads(3000).0);
    set(3, 0o700, 1000, 1000);
    assert!(!reads(3000).0);
    set(3, 0o755, 1000, 1000);
    assert!(may(&mount, 3000, "cd .tensorfs/tensors/d.checkpoint/deep && cat w.npy"));
    fs::copy(dir.join("__1_0.distcp"), dir.join("secret")).unwrap();
    fs::set_permissions(dir.join("secret"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::rename(dir.join("secret"), dir.join("__1_0.distcp")).unwrap();
    assert!(!reads(3000).0);
}

/// Somebody who may put one plan in the place of another, and back, while he holds what was looked up with either: the
/// one names a file of his, the other one that he may not read. What he holds is asked for by its number alone.
const SWAPS: &str = r#"
import os
os.setgroups([])
os.setgid(3000)
os.setuid(3000)
INDEX = "d/x.safetensors.index.json"
TREE = ".tensorfs/tensors/d.checkpoint"

def plan(name):
    os.rename(INDEX, "d/aside")
    os.rename("d/" + name, INDEX)
    os.rename("d/aside", "d/" + ("secret plan" if name == "own plan" else "own plan"))

# His own plan is in place.
own = os.open(TREE, os.O_PATH)
plan("secret plan")
secret = None
for name in ("w.npy", "v.npy"):
    try:
        secret = os.open(name, os.O_PATH, dir_fd=own)
        break
    except OSError:
        pass
plan("own plan")
os.stat(TREE)
os.stat(TREE + "/v.npy")
plan("secret plan")
if secret is None:
    print("nothing was found")
else:
    try:
        print("read", os.read(os.open(f"/proc/self/fd/{secret}", os.O_RDONLY), 1000))
    except OSError as error:
        print(error.strerror)
"#;

/// Proves T3, T14.
fn who_puts_one_plan_in_the_place_of_another_reads_nothing_more(setup: Setup) {
    if !is_root() {
        return setup.skip("needs root, to become somebody else");
    }
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    fs::set_permissions(mount.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let dir = mount.at("d");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("a.safetensors"), safetensors(&[("v", b"open")])).unwrap();
    fs::write(dir.join("secret.safetensors"), safetensors(&[("w", b"secret")])).unwrap();
    fs::set_permissions(dir.join("secret.safetensors"), fs::Permissions::from_mode(0o600)).unwrap();
    let plans = [("x.safetensors.index.json", "v", "a.safetensors"), ("secret plan", "w", "secret.safetensors")];
    for (name, tensor, part) in plans {
        fs::write(dir.join(name), format!(r#"{{"metadata": {{}}, "weight_map": {{"{tensor}": "{part}"}}}}"#)).unwrap();
        fs::set_permissions(dir.join(name), fs::Permissions::from_mode(0o644)).unwrap();
    }
    std::os::unix::fs::chown(&dir, Some(3000), Some(3000)).unwrap();
    let python = Command::new("python3").args(["-c", SWAPS]).current_dir(mount.path()).output().unwrap();
    let said = String::from_utf8(python.stdout).unwrap();
    assert!(python.status.success(), "{}", String::from_utf8_lossy(&python.stderr));
    assert!(["Permission denied\n", "Stale file handle\n"].contains(&&*said), "{said}");
    // Root may.
    assert!(bytes(&tree(&mount, "d.checkpoint/w.npy")).ends_with(b"secret"));
}

/// Proves T5, T14.
fn an_open_tensor_in_parts_shows_one_version(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let dir = mount.at("d");
    let half: u64 = 200_000;
    let cuts: &[Cut<'_>] = &[(&[0], &[half], false), (&[half], &[half], false)];
    let place = tree(&mount, "d.checkpoint/w.npy");
    let read = |file: &File| {
        let mut all = vec![0; file.metadata().unwrap().len() as usize];
        // SAFETY: plain system call.
        unsafe { libc::posix_fadvise(std::os::fd::AsRawFd::as_raw_fd(file), 0, 0, libc::POSIX_FADV_DONTNEED) };
        file.read_exact_at(&mut all, 0).map(|()| npy(&all).1.to_vec())
    };
    let part = dir.join("__1_0.distcp");
    let other = tensorfs_tests::npy("|u1", false, &[half], &vec![9; half as usize]);
    let in_place = |bytes: &[u8]| {
        OpenOptions::new().write(true).open(&part).unwrap().write_all_at(bytes, other.len() as u64 - 500).unwrap();
    };
    for change in ["written", "saved again", "replaced", "removed", "cut", "the plan"] {
        one_tensor(&dir, "w", &[2 * half], cuts, 2);
        let before = whole(&[2 * half]);
        let open = File::open(&place).unwrap();
        assert!(read(&open).unwrap() == before);
        match change {
            "written" => in_place(&[9; 100]),
            "saved again" => fs::write(&part, &other).unwrap(),
            "replaced" => {
                fs::write(mount.at("new"), &other).unwrap();
                fs::rename(mount.at("new"), &part).unwrap();
            }
            "removed" => fs::remove_file(&part).unwrap(),
            "cut" => OpenOptions::new().write(true).open(&part).unwrap().set_len(5000).unwrap(),
            _ => fs::write(dir.join(".metadata"), "no plan").unwrap(),
        }
        match read(&open) {
            Ok(read) => assert!(read == before && change != "written" && change != "cut", "{change}: torn"),
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ESTALE), "{change}"),
        }
        let now = fs::read(&place).map(|all| npy(&all).1.to_vec());
        match change {
            "written" => assert!(now.unwrap()[before.len() - 500..][..100] == [9; 100]),
            "saved again" | "replaced" => assert!(now.unwrap()[half as usize..] == vec![9; half as usize]),
            _ => assert!(now.is_err(), "{change}"),
        }
        fs::remove_dir_all(&dir).unwrap();
    }
    // What is looked at takes no times and does not count as open.
    one_tensor(&dir, "w", &[2 * half], cuts, 2);
    let times =
        || fs::metadata(&part).map(|about| (about.atime_nsec(), about.mtime_nsec(), about.ctime_nsec())).unwrap();
    let before = times();
    let open = File::open(&place).unwrap();
    read(&open).unwrap();
    assert_eq!(times(), before);
    let mut writer = OpenOptions::new().append(true).open(&part).unwrap();
    writer.write_all(b"more").unwrap();
    assert_eq!(read(&open).unwrap_err().raw_os_error(), Some(libc::ESTALE));
}

/// Proves K1, K6, T14.
fn open_tensors_in_parts_go_on(setup: Setup) {
    let mut mount = setup.mount_with(["-o", "keeper"]).mount();
    if mount.is_plain() {
        return;
    }
    let cuts: &[Cut<'_>] = &[(&[0], &[300_000], false), (&[300_000], &[100], true)];
    one_tensor(&mount.at("d"), "deep/w", &[300_100], cuts, 2);
    one_tensor(&mount.at("e"), "w", &[300_100], cuts, 2);
    let open = ["d.checkpoint/deep/w.npy", "e.checkpoint/w.npy"].map(|name| File::open(tree(&mount, name)).unwrap());
    let directory = File::open(tree(&mount, "d.checkpoint/deep")).unwrap();
    let numbers = || [&open[0], &open[1], &directory].map(|file| file.metadata().unwrap().ino());
    let before = numbers();
    let expected = fs::read(tree(&mount, "d.checkpoint/deep/w.npy")).unwrap();
    let part = OpenOptions::new().write(true).open(mount.at("e/__1_0.distcp")).unwrap();
    for round in 0..2 {
        if round == 1 {
            part.write_all_at(b"?", part.metadata().unwrap().len() - 1).unwrap();
        }
        mount.kill_server();
        assert_eq!(numbers(), before);
        for (n, file) in open.iter().enumerate() {
            // SAFETY: plain system call.
            unsafe { libc::posix_fadvise(std::os::fd::AsRawFd::as_raw_fd(file), 0, 0, libc::POSIX_FADV_DONTNEED) };
            let mut all = vec![0; expected.len()];
            match file.read_exact_at(&mut all, 0) {
                Ok(()) => assert!(all == expected && (n, round) != (1, 1)),
                Err(error) => assert_eq!((n, round, error.raw_os_error()), (1, 1, Some(libc::ESTALE))),
            }
        }
    }
    assert!(fs::read(tree(&mount, "d.checkpoint/deep/w.npy")).unwrap() == expected);
}

/// Proves T9, T14.
fn a_checkpoint_of_many_parts_takes_little_memory(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let large = std::env::var("TENSORFS_LARGE").as_deref() == Ok("1");
    let dir = mount.at("d");
    fs::create_dir(&dir).unwrap();
    let single = tensorfs_tests::npy("|u1", false, &[1], b"x");
    fs::write(dir.join("p"), single.repeat(8)).unwrap();
    let names: Vec<String> = (0..10_000).map(|n| format!("layer{}/{n}", n % 7)).collect();
    let len = single.len() as u64;
    let pieces = |n: usize| vec![(&[0][..], &[1][..], Some(("p", (n % 8) as u64 * len, len)))];
    let tensors: Vec<_> = names.iter().enumerate().map(|(n, name)| (&name[..], "uint8", &[1][..], pieces(n))).collect();
    fs::write(dir.join(".metadata"), dcp_plan(&tensors)).unwrap();
    let found = files(&tree(&mount, "d.checkpoint"));
    assert_eq!(found.len(), names.len());
    for n in [0, 1, 7777, 9_999] {
        assert_eq!(bytes(&tree(&mount, &format!("d.checkpoint/{}.npy", names[n]))), b"x");
    }
    // One tensor of more pieces than there can be: nothing of it is there.
    let starts: Vec<[u64; 2]> = (0..if large { 1_000_000 } else { 60_000 }).map(|n| [n, 0]).collect();
    let pieces = starts.iter().map(|at| (&at[..], &[1, 9][..], Some(("p", 0, len)))).collect();
    fs::write(dir.join(".metadata"), dcp_plan(&[("w", "uint8", &[starts.len() as u64, 9], pieces)])).unwrap();
    let place = tree(&mount, "d.checkpoint");
    let listed = fs::read_dir(&place).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    assert!(listed.map_or(true, |all| all.is_empty()));
    let peak = super::many::peak(&mount);
    assert!(peak < 400 << 10, "{peak} KiB");
    assert!(mount.info()["readers"]["failed"] == 0, "{}", mount.info());
}
