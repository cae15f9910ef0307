//! `tensorfs tensors`, `cat`, `stat` and `diff`, on any path: what they print, and that it is what NumPy says.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tensorfs_tests::databases::{Made, leaf, manifest};
use tensorfs_tests::{
    Mount, Passthrough, Setup, client, on_mounts, run, run_ok, samples, scratch, skip, tensorfs, venv, xattr,
};

on_mounts!(
    the_same_on_a_mount,
    sealed_files_are_listed_from_their_records,
    sealed_files_agree_with_numpy,
    hierarchies_of_arrays_are_what_their_libraries_wrote,
    hierarchies_are_summed_up_as_far_as_is_soon_done,
    one_array_is_read_without_the_others,
);

fn sample(name: &str) -> String {
    samples().join(name).to_str().unwrap().to_owned()
}

pub fn call(arguments: &[&str]) -> Output {
    run(tensorfs().args(arguments))
}

#[track_caller]
pub fn prints(status: i32, arguments: &[&str]) -> String {
    let output = call(arguments);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(status), "{arguments:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// The command must fail with one line.
#[track_caller]
pub fn complains(status: i32, arguments: &[&str]) -> String {
    let output = call(arguments);
    assert_eq!(output.status.code(), Some(status), "{arguments:?}");
    let line = String::from_utf8(output.stderr).unwrap();
    assert!(line.starts_with("tensorfs: ") && line.trim_end().lines().count() == 1, "{line:?}");
    line
}

#[track_caller]
pub fn names(arguments: &[&str]) -> Vec<String> {
    let text = prints(0, &[arguments, &["--json"]].concat());
    text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["name"].as_str().unwrap().to_owned()).collect()
}

/// A safetensors file of bytes.
fn safetensors(path: &Path, tensors: &[(&str, &[u8])]) {
    fs::write(path, tensorfs_tests::safetensors(tensors)).unwrap();
}

/// Every tensor of every sample, and files that differ: lists, bytes and numbers are NumPy's.
#[test]
fn agree_with_numpy() {
    let Some(python) = venv("small") else {
        return skip("tensors::agree_with_numpy", "no Python environment: tests/run makes one");
    };
    let scratch = scratch();
    // Those that are kept, and those that the libraries write today.
    let fresh = scratch.path().join("samples");
    run_ok(client(&python, "make_formats.py").arg(&fresh));
    for samples in [samples(), fresh] {
        run_ok(client(&python, "tensors_client.py").arg(tensorfs().get_program()).arg(samples).arg(scratch.path()));
    }
}

#[test]
fn lists_fit_the_terminal_and_have_no_colours() {
    let scratch = scratch();
    let path = scratch.path().join("long.safetensors");
    let long = "layer.".repeat(40);
    safetensors(&path, &[(&long, b"a"), ("esc\u{1b}[31m", b"b"), ("short", b"cc")]);
    for arguments in [
        vec!["tensors", path.to_str().unwrap()],
        vec!["tensors", &sample("")],
        vec!["stat", path.to_str().unwrap(), &long],
        vec!["diff", path.to_str().unwrap(), &sample("model.safetensors")],
        vec!["diff", &sample("torch1-checkpoint.pt"), &sample("torch2-checkpoint.pt")],
        vec!["stat", &sample("torch1-checkpoint.pt"), "model.1.weight"],
    ] {
        let text = String::from_utf8(call(&arguments).stdout).unwrap();
        assert!(!text.is_empty() && !text.contains('\u{1b}'), "{arguments:?}");
        for line in text.lines() {
            // The names of files are as long as they are.
            assert!(line.chars().count() <= 80 || line.starts_with('/'), "{line}");
        }
    }
    assert!(prints(0, &["tensors", path.to_str().unwrap()]).contains("esc\\u{1b}[31m"));
}

#[test]
fn filters() {
    let (events, model) = (sample("board.tfevents"), sample("torch1-checkpoint.pt"));
    assert_eq!(names(&["tensors", &events, "--step", "1..3", "--name", "loss*"]).len(), 3);
    assert_eq!(names(&["tensors", &events, "--step", "..-1"]).len(), 0);
    assert_eq!(names(&["tensors", &events, "--dtype", "f64", "--name", "[bw]*"]), ["weights", "bins"]);
    assert_eq!(names(&["tensors", &sample("smdebug.tfevents"), "--mode", "eval"]).len(), 4);
    assert_eq!(names(&["tensors", &model, "--name", "model.?.weight"]).len(), 3);
    assert_eq!(names(&["tensors", &model, "--name", "*.exp_avg", "--name", "parameter"]).len(), 5);
    let table = prints(0, &["tensors", &model, "--name", "parameter"]);
    assert!(table.contains("torch, 1 tensor of "), "{table}");
    for bad in [["--step", "x"], ["--dtype", "f33"], ["--mode", "drive"], ["--name", "[a"]] {
        assert_eq!(call(&["tensors", &model, bad[0], bad[1]]).status.code(), Some(2));
    }
}

#[test]
fn says_what_is_wrong() {
    let scratch = scratch();
    let at = |name: &str| scratch.path().join(name).to_str().unwrap().to_owned();
    assert!(complains(1, &["tensors", &at("missing")]).contains("No such file"));
    assert!(complains(1, &["tensors", &sample("text.txt")]).contains("no format"));
    assert!(complains(1, &["cat", &sample("f4.npy"), "nothing"]).contains("no tensor \"nothing\""));
    assert!(complains(1, &["cat", &sample("objects.npy"), "array"]).contains("not unpickled"));
    assert!(complains(1, &["stat", &sample("text.npy"), "array"]).contains("no type of numbers"));
    let events = sample("board.tfevents");
    assert!(complains(1, &["cat", &events, "loss/train"]).contains("5 tensors are called loss/train, at steps 0 to 4"));
    assert_eq!(call(&["cat", &events, "loss/train@last"]).stdout, call(&["cat", &events, "loss/train@4"]).stdout);
    assert!(complains(1, &["cat", &events, "loss/train@77"]).contains("no tensor"));
    // A file that is damaged in the middle, and one that calls things.
    let mut damaged = fs::read(sample("smdebug-checksum.tfevents")).unwrap();
    damaged[50] ^= 1;
    fs::write(at("damaged"), damaged).unwrap();
    assert!(complains(4, &["tensors", &at("damaged")]).contains("1 bad frames; the frame at 0: its checksum is wrong"));
}

#[test]
fn looks_into_directories() {
    let scratch = scratch();
    let inside = scratch.path().join("a/b");
    fs::create_dir_all(&inside).unwrap();
    for (name, to) in [("f4.npy", "a/b/x.npy"), ("text.txt", "a/text.txt"), ("model.safetensors", "z")] {
        fs::copy(sample(name), scratch.path().join(to)).unwrap();
    }
    std::os::unix::fs::symlink("..", inside.join("loop")).unwrap();
    let all = names(&["tensors", scratch.path().to_str().unwrap()]);
    assert_eq!(all[0], "array");
    assert_eq!(all.len(), 1 + names(&["tensors", &sample("model.safetensors")]).len());
}

#[test]
fn diff_ends_as_diff_does() {
    let scratch = scratch();
    let at = |name: &str| scratch.path().join(name);
    safetensors(&at("a"), &[("x", b"abc"), ("y", b"same")]);
    safetensors(&at("b"), &[("x", b"abd"), ("z", b"new"), ("y", b"same")]);
    let (a, b) = (at("a"), at("b"));
    let (a, b) = (a.to_str().unwrap(), b.to_str().unwrap());
    assert_eq!(prints(0, &["diff", a, a]), "0 different, 2 the same\n");
    let text = prints(1, &["diff", a, b]);
    assert!(text.contains("values   1 ") && text.contains("added    z") && text.ends_with("2 different, 1 the same\n"));
    assert_eq!(prints(1, &["diff", a, b, "--json"]).lines().count(), 2);
    complains(2, &["diff", a, &sample("text.txt")]);
    complains(2, &["diff", a, "/nowhere"]);
}

/// A reader that wants no more is no error.
#[test]
fn pipes_may_close() {
    let scratch = scratch();
    let path = scratch.path().join("large");
    safetensors(&path, &[("x", &vec![7; 4 << 20])]);
    for arguments in [vec!["cat", path.to_str().unwrap(), "x"], vec!["tensors", &sample("board.tfevents"), "--json"]] {
        let mut child = tensorfs().args(&arguments).stdout(Stdio::piped()).spawn().unwrap();
        let mut some = [0; 10];
        child.stdout.take().unwrap().read_exact(&mut some).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(0), "{arguments:?}");
    }
    // The whole of it is header and bytes.
    let npy = call(&["cat", path.to_str().unwrap(), "x"]).stdout;
    assert!(npy.starts_with(b"\x93NUMPY") && npy.ends_with(&[7; 4 << 20]) && npy.len() < (4 << 20) + 200);
}

/// Files on a mount are listed as they are elsewhere, while they are written, too.
fn the_same_on_a_mount(setup: Setup) {
    let mount = setup.mount();
    let elsewhere = names(&["tensors", &sample("")]);
    run_ok(Command::new("cp").arg("-r").arg(samples()).arg(mount.at("samples")));
    let place = mount.at("samples");
    assert_eq!(names(&["tensors", place.to_str().unwrap()]), elsewhere);
    assert_eq!(
        prints(0, &["diff", &sample("torch1-views.pt"), place.join("torch1-views.pt").to_str().unwrap()]),
        "0 different, 12 the same\n"
    );
    // An event file that grows.
    let events = fs::read(sample("board.tfevents")).unwrap();
    let growing = mount.at("growing.tfevents");
    let mut file = File::create(&growing).unwrap();
    let mut last = 0;
    for piece in events.chunks(500) {
        std::io::Write::write_all(&mut file, piece).unwrap();
        let now = names(&["tensors", growing.to_str().unwrap()]).len();
        assert!(now >= last);
        last = now;
    }
    assert_eq!(last, names(&["tensors", &sample("board.tfevents")]).len());
}

/// What is known already is not read again: bytes that changed on the medium since then make no difference to it.
fn sealed_files_are_listed_from_their_records(setup: Setup) {
    let mount = setup.mount();
    let (events, model) = (mount.at("board.tfevents"), mount.at("model.safetensors"));
    fs::copy(sample("board.tfevents"), &events).unwrap();
    fs::copy(sample("model.safetensors"), &model).unwrap();
    let (events, model) = (events.to_str().unwrap(), model.to_str().unwrap());
    let list = || {
        let printed = prints(0, &["tensors", events, "--json"]);
        let mut tensors: Vec<Value> = printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let checksums = tensors.iter_mut().map(|tensor| tensor["crc32c"].take()).filter(|crc| !crc.is_null()).count();
        (tensors, checksums)
    };
    let (before, checksums) = list();
    assert_eq!(checksums, 0);
    assert_eq!(prints(0, &["seal", mount.path().to_str().unwrap()]), "2 files are sealed\n");
    assert_eq!(list(), (before.clone(), before.len()));
    let damage = |name: &str, at: u64| {
        let bytes = fs::read(sample(name)).unwrap();
        for shard in fs::read_dir(mount.pool().join("segments")).unwrap() {
            for entry in fs::read_dir(shard.unwrap().path()).unwrap() {
                let path = entry.unwrap().path();
                if fs::read(&path).unwrap() == bytes {
                    let file = File::options().write(true).open(&path).unwrap();
                    std::os::unix::fs::FileExt::write_all_at(&file, &[bytes[at as usize] ^ 1], at).unwrap();
                    return;
                }
            }
        }
        panic!("no segment");
    };
    // The length of the first frame: whoever looks into the file finds nothing.
    damage("board.tfevents", 0);
    assert_eq!(list().0, before);
    assert_eq!(prints(0, &["tensors", events, "--json", "--name", "loss*", "--step", "2"]).lines().count(), 1);
    assert_eq!(prints(0, &["diff", &sample("board.tfevents"), events]).lines().count(), 1);
    // Equal checksums are believed, unless one asks for the bytes.
    let copy = mount.at("copy");
    fs::copy(sample("model.safetensors"), &copy).unwrap();
    prints(0, &["seal", copy.to_str().unwrap()]);
    // The copy has the same bytes, and so whichever segment is found first is damaged.
    damage("model.safetensors", fs::metadata(sample("model.safetensors")).unwrap().len() - 1);
    let copy = copy.to_str().unwrap();
    assert!(prints(0, &["diff", model, copy]).starts_with("0 different"));
    if setup_reads_the_medium(&mount) {
        assert!(prints(1, &["diff", "--bytes", model, copy]).contains("1 different"));
    }
}

/// Without passthrough the kernel has read the file before, and does not see what changes on the medium.
fn setup_reads_the_medium(mount: &Mount) -> bool {
    mount.passthrough() == Passthrough::On
}

/// As `agree_with_numpy`, of files on a mount that are sealed.
fn sealed_files_agree_with_numpy(setup: Setup) {
    let Some(python) = setup.python("small") else { return };
    let mount = setup.mount();
    run_ok(Command::new("cp").arg("-r").arg(samples()).arg(mount.at("samples")));
    prints(0, &["seal", mount.path().to_str().unwrap()]);
    let mut command = client(&python, "tensors_client.py");
    run_ok(command.arg(tensorfs().get_program()).arg(mount.at("samples")).arg(mount.host()));
}

/// Two parts of one checkpoint, with their index, and a file beside them.
fn in_parts(dir: &Path, last: &[u8]) {
    fs::create_dir(dir).unwrap();
    safetensors(&dir.join("model-00001-of-00002.safetensors"), &[("a.w", b"0123"), ("a.b", b"45")]);
    safetensors(&dir.join("model-00002-of-00002.safetensors"), &[("c", last)]);
    safetensors(&dir.join("other.safetensors"), &[("c", b"x")]);
    let index = r#"{"metadata": {"total_size": 9}, "weight_map": {
        "a.w": "model-00001-of-00002.safetensors", "a.b": "model-00001-of-00002.safetensors",
        "c": "model-00002-of-00002.safetensors"}}"#;
    fs::write(dir.join("model.safetensors.index.json"), index).unwrap();
}

#[test]
fn checkpoints_in_parts_are_one_thing() {
    let scratch = scratch();
    let at = |name: &str| scratch.path().join(name).to_str().unwrap().to_owned();
    in_parts(Path::new(&at("old")), b"678");
    in_parts(Path::new(&at("new")), b"679");
    let listed = names(&["tensors", &at("old")]);
    assert_eq!(listed, ["a.w", "a.b", "c", "c"]);
    let text = prints(0, &["tensors", &at("old")]);
    assert!(text.contains("old: checkpoint in parts, 3 tensors in 2 parts, 9 B"), "{text}");
    assert_eq!(prints(0, &["diff", &at("old"), &at("old")]), "0 different, 4 the same\n");
    let different = prints(1, &["diff", "--json", &at("old"), &at("new")]);
    assert!(different.lines().count() == 1 && different.contains(r#""name":"c""#), "{different}");
    assert!(prints(0, &["stat", "--json", &at("old"), "other.safetensors/c"]).contains(r#""count":1"#));
    assert!(prints(0, &["stat", "--json", &at("old"), "c"]).contains(r#""count":3"#));
    // One that is not there, and one that no index names.
    fs::rename(at("new/model-00002-of-00002.safetensors"), at("new/model-00003-of-00003.safetensors")).unwrap();
    let output = call(&["tensors", "--json", &at("new")]);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    for said in [
        "new: model-00002-of-00002.safetensors is missing",
        "new: c: its part in model-00002-of-00002.safetensors is not there",
        "new: model-00003-of-00003.safetensors is no part of the checkpoint",
    ] {
        assert!(errors.contains(said), "{errors}");
    }
    let lines = String::from_utf8(output.stdout).unwrap();
    let places: Vec<Value> =
        lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["place"].clone()).collect();
    assert_eq!(places, ["sharded", "sharded", "missing", "raw", "raw"]);
    assert!(complains(2, &["diff", &at("old"), &at("new")]).contains("is missing"));
    assert!(complains(1, &["stat", &at("new"), "c"]).contains("is not there"));
    // An index that is cut short, and one that names what is elsewhere: the files are listed all the same.
    for index in [r#"{"weight_map": {"a.w": "mod"#, r#"{"weight_map": {"c": "../old/other.safetensors"}}"#] {
        fs::write(at("new/model.safetensors.index.json"), index).unwrap();
        let output = call(&["tensors", "--json", &at("new")]);
        assert_eq!(output.status.code(), Some(1));
        assert_eq!(String::from_utf8(output.stdout).unwrap().lines().count(), 4);
        assert!(String::from_utf8(output.stderr).unwrap().contains("index.json: the plan of a checkpoint that cannot"));
    }
}

/// A part may be of any format: what is in the file by itself is what the checkpoint has, or is refused.
#[test]
fn parts_in_columns_are_never_read_as_rows() {
    let scratch = scratch();
    for (file, refused) in [("arrays.npz", false), ("compressed.npz", true)] {
        let dir = scratch.path().join(file);
        fs::create_dir(&dir).unwrap();
        fs::copy(sample(file), dir.join("m.bin")).unwrap();
        let index = r#"{"weight_map": {"f4": "m.bin", "fortran": "m.bin", "big": "m.bin"}}"#;
        fs::write(dir.join("m.bin.index.json"), index).unwrap();
        let (dir, part) = (dir.to_str().unwrap(), dir.join("m.bin"));
        for name in ["f4", "fortran", "big"] {
            if refused && name == "fortran" {
                let told = complains(1, &["cat", dir, name]);
                assert!(told.contains("its part in m.bin is stored column by column, and compressed"), "{told}");
                continue;
            }
            let of_whole: Value = serde_json::from_str(&prints(0, &["stat", "--json", dir, name])).unwrap();
            let of_part = prints(0, &["stat", "--json", part.to_str().unwrap(), name]);
            let of_part: Value = serde_json::from_str(&of_part).unwrap();
            assert_eq!((&of_whole["mean"], &of_whole["shape"]), (&of_part["mean"], &of_part["shape"]), "{name}");
            let (whole, part) = (call(&["cat", dir, name]).stdout, call(&["cat", part.to_str().unwrap(), name]).stdout);
            assert_eq!(whole == part, name != "fortran", "{file} {name}: by rows, and by columns");
        }
    }
}

/// What torch saved by itself: the names that the program gave its tensors.
#[test]
fn distributed_checkpoints_have_the_names_of_the_program() {
    let scratch = scratch();
    let dir = scratch.path().join("step-1");
    fs::create_dir(&dir).unwrap();
    let path = dir.to_str().unwrap();
    fs::copy(sample("torch2-dcp.metadata"), dir.join(".metadata")).unwrap();
    fs::copy(sample("torch2-dcp.distcp"), dir.join("__0_0.distcp")).unwrap();
    let mut listed = names(&["tensors", path]);
    listed.sort();
    assert_eq!(listed, ["half", "model.bias", "model.weight"]);
    let text = prints(0, &["tensors", path]);
    assert!(text.contains("distributed checkpoint, 3 tensors and 1 object in 1 part"), "{text}");
    let found: Value = serde_json::from_str(&prints(0, &["stat", "--json", path, "model.bias"])).unwrap();
    assert_eq!((&found["min"], &found["max"]), (&0.into(), &4.into()), "{found}");
    // The part is another file of the same format: its tensors are of other shapes, and elsewhere.
    fs::copy(sample("torch2-several.pt"), dir.join("__0_0.distcp")).unwrap();
    assert_eq!(call(&["tensors", path]).status.code(), Some(1));
    fs::write(dir.join(".metadata"), b"\x80\x04}.").unwrap();
    let output = call(&["tensors", path]);
    assert!(String::from_utf8(output.stderr).unwrap().contains(".metadata: the plan of a checkpoint that cannot be"));
}

/// What zarr's and TensorStore's libraries wrote: each array with its chunks, none of which is damaged.
/// Proves T15.
fn hierarchies_of_arrays_are_what_their_libraries_wrote(setup: Setup) {
    let Some(python) = setup.python("small") else { return };
    let mount = setup.mount();
    let top = mount.at("zoo");
    fs::create_dir(&top).unwrap();
    let expected = client(&python, "arrays_client.py").arg(&top).output().unwrap();
    assert!(expected.status.success(), "{}", String::from_utf8_lossy(&expected.stderr));
    let lines = |text: &[u8]| -> Vec<Value> {
        String::from_utf8_lossy(text).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let key = |hierarchy: &str, array: &Value| format!("{hierarchy} {}", array["name"]);
    let (mut wanted, mut found) = (std::collections::BTreeMap::new(), std::collections::BTreeMap::new());
    for array in lines(&expected.stdout) {
        wanted.insert(key(array["hierarchy"].as_str().unwrap(), &array), array);
    }
    let path = top.to_str().unwrap();
    let listed = call(&["tensors", "--json", path]);
    assert_eq!((listed.status.code(), listed.stderr.as_slice()), (Some(0), &b""[..]));
    for array in lines(&listed.stdout) {
        let root = Path::new(array["path"].as_str().unwrap()).file_name().unwrap().to_str().unwrap().to_owned();
        found.insert(key(&root, &array), array);
    }
    assert!(wanted.len() > 20 && wanted.keys().eq(found.keys()), "{:?} {:?}", wanted.keys(), found.keys());
    for (name, wanted) in &wanted {
        for field in ["dtype", "shape", "chunk", "codecs", "chunks", "chunks_there"] {
            assert_eq!(wanted[field], found[name][field], "{name}, {field}");
        }
        let (hierarchy, array) = (wanted["hierarchy"].as_str().unwrap(), wanted["name"].as_str().unwrap());
        let dir = top.join(hierarchy);
        let dir = dir.to_str().unwrap();
        // Elements, where they are plain bytes; else why not.
        match wanted["sum"].as_f64() {
            Some(sum) => {
                let numbers: Value = serde_json::from_str(&prints(0, &["stat", "--json", dir, array])).unwrap();
                let mean = numbers["mean"].as_f64().unwrap();
                let count = numbers["count"].as_f64().unwrap();
                assert!((mean * count - sum).abs() < 1e-6 * sum.abs().max(1.0), "{name}: {numbers}, and {sum}");
            }
            None => {
                let told = complains(1, &["cat", dir, array]);
                let why = ["encoded (", "plain bytes", "what is in those is not known"];
                assert!(why.iter().any(|why| told.contains(why)), "{told}");
            }
        }
    }
    let text = prints(0, &["tensors", path]);
    for said in [
        "zarr2: zarr 2, 7 arrays, 11 of 113 chunks (the others are the fill value)",
        "database: OCDBT, 4 arrays, 16 of 106",
    ] {
        assert!(text.contains(said), "{text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 80 || line.starts_with('/')), "{text}");
    let of = |name: &str| top.join(name).to_str().unwrap().to_owned();
    let listed = prints(0, &["ls", &of("zarr3")]);
    assert!(listed.contains("zarr3: zarr 3, 8 arrays, 13 of 117 chunks (the others are the fill value)"), "{listed}");
    let listed = lines(prints(0, &["ls", "--json", &of("nested")]).as_bytes());
    assert_eq!(listed.last().unwrap()["chunks_there"], 1);
    assert!(prints(0, &["ls", &of("database-deep")]).contains("OCDBT, 1 array, 64 of 64 chunks"));
    // Nothing of it is damaged, nor a checkpoint that something is missing of, sealed or not.
    for _ in 0..2 {
        for name in ["zarr2", "zarr3", "nested", "n5-raw"] {
            assert!(xattr::get(&top.join(name), "user.tensorfs.complete").is_err(), "{name}");
        }
        assert_eq!(xattr::get(&top.join("database"), "user.tensorfs.complete").unwrap(), b"complete");
        prints(0, &["seal", path]);
        prints(0, &["verify", path]);
    }
    assert_eq!(prints(0, &["diff", &of("zarr2"), &of("zarr2-consolidated")]), "0 different, 7 the same\n");
    // A chunk less is the fill value; other bytes in a chunk that is encoded are told as such.
    fs::remove_file(top.join("zarr2/plain/0")).unwrap();
    fs::write(top.join("zarr2/encoder/sparse/0.0"), b"other").unwrap();
    let different = prints(1, &["diff", "--json", &of("zarr2"), &of("zarr2-consolidated")]);
    let different: Vec<_> = lines(different.as_bytes()).iter().map(|line| line["change"].clone()).collect();
    assert_eq!(different, ["bytes", "values"]);
}

/// What is wrong with hierarchies, and what is none.
#[test]
fn hierarchies_of_arrays_say_what_is_wrong() {
    let scratch = scratch();
    let make = |name: &str, bytes: &[u8]| {
        let path = scratch.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    };
    let at = |name: &str| scratch.path().join(name).to_str().unwrap().to_owned();
    let array = |more: &str| {
        format!(
            r#"{{"zarr_format": 2, "shape": [2, 3], "chunks": [1, 3], "dtype": "|u1", "compressor": null,
            "filters": null, "order": "C", "fill_value": 9{more}}}"#
        )
    };
    make("good/.zarray", array("").as_bytes());
    make("good/1.0", &[1, 2, 3]);
    make("good/notes.txt", b"no chunk");
    make("good/2.0", &[1, 2, 3]);
    let numbers: Value = serde_json::from_str(&prints(0, &["stat", "--json", &at("good"), "array"])).unwrap();
    assert_eq!((&numbers["min"], &numbers["max"], &numbers["mean"]), (&1.into(), &9.into(), &5.5.into()));
    let found: Value = serde_json::from_str(&prints(0, &["tensors", "--json", &at("good")])).unwrap();
    assert_eq!((&found["chunks"], &found["chunks_there"], &found["stored"]), (&2.into(), &1.into(), &3.into()));
    // A chunk that its writer did not come to the end of.
    make("short/.zarray", array("").as_bytes());
    make("short/0.0", &[1, 2]);
    assert!(complains(1, &["tensors", &at("short")]).contains("its chunk 0.0 has 2 bytes, and its elements take 3"));
    // Metadata that is cut short, that says what cannot be, and of a type that is not known.
    make("cut/.zarray", array("").split_at(40).0.as_bytes());
    assert!(
        complains(1, &["tensors", &at("cut")]).contains("metadata of zarr 2 that cannot be read: JSON that is cut")
    );
    make("odd/.zarray", br#"{"zarr_format": 2, "shape": [2], "chunks": [0], "dtype": "|u1"}"#);
    assert!(complains(1, &["tensors", &at("odd")]).contains("not understood: chunks without elements"));
    make("new/.zarray", br#"{"zarr_format": 2, "shape": [2], "chunks": [2], "dtype": "int4"}"#);
    assert!(complains(0, &["tensors", &at("new")]).contains("\"int4\" is not known"));
    // An array that only the root tells of, and one of which it tells something else.
    let all = format!(
        r#"{{"metadata": {{".zgroup": {{"zarr_format": 2}}, "a/b/.zarray": {0}, "c/.zarray": {0}}}}}"#,
        array("")
    );
    make("all/.zmetadata", all.as_bytes());
    make("all/.zgroup", br#"{"zarr_format": 2}"#);
    make("all/c/.zarray", array("").replace("[2, 3]", "[5, 3]").as_bytes());
    let output = call(&["tensors", "--json", &at("all")]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("all/c: what is told of it in the root"));
    assert_eq!(names(&["tensors", &at("all")]), ["c", "a/b"]);
    // What is only told of, and has no metadata itself, is not taken for one whose elements are known.
    fs::create_dir_all(scratch.path().join("all/a/b")).unwrap();
    for _ in 0..2 {
        assert!(
            complains(1, &["stat", &at("all"), "a/b"]).contains("nothing but the root of its hierarchy tells of it")
        );
        assert_eq!(names(&["tensors", &at("all")]).len(), 2);
        fs::remove_dir_all(scratch.path().join("all/a")).ok();
    }
    // Of n5's names any program may have some.
    make("other/attributes.json", b"[1, 2]");
    make("other2/attributes.json", b"{}");
    for other in ["other", "other2"] {
        assert_eq!(prints(0, &["tensors", &at(other)]), "");
    }
    // A database whose manifest is none.
    make("db/manifest.ocdbt", b"\x0c\xdb\x3a\x2a\x20\0\0\0\0\0\0\0cut");
    assert!(complains(1, &["tensors", &at("db")]).contains("cut short"));
}

/// An array of bytes, of zarr 2, whose chunks that are not there are full of nines.
fn bytes_in_chunks(shape: &str, chunk: &str, separator: &str) -> String {
    format!(
        r#"{{"zarr_format": 2, "shape": {shape}, "chunks": {chunk}, "dtype": "|u1", "compressor": null,
        "filters": null, "order": "C", "fill_value": 9, "dimension_separator": "{separator}"}}"#
    )
}

/// A chunk that is there and is no file is not taken for one that is not there.
#[test]
fn hierarchies_have_no_fill_value_where_a_chunk_is_no_file() {
    let scratch = scratch();
    let at = |name: &str| scratch.path().join(name).to_str().unwrap().to_owned();
    fs::write(at("elsewhere"), [1, 2, 3]).unwrap();
    fs::create_dir_all(at("beside/0")).unwrap();
    fs::write(at("beside/0/0"), [1, 2, 3]).unwrap();
    let link = |to: &str, name: &str| symlink(at(to), at(name)).unwrap();
    type Make<'a> = &'a dyn Fn(&str);
    let made: [(&str, &str, Make<'_>); 6] = [
        (".", "0.0 is a link, which is not followed", &|dir| link("elsewhere", &format!("{dir}/0.0"))),
        (".", "1.0 is a directory", &|dir| fs::create_dir(at(dir) + "/1.0").unwrap()),
        (".", "0.0 is no regular file", &|dir| make_fifo(&at(&format!("{dir}/0.0")))),
        ("/", "/0 is a link, which is not followed, and no directory", &|dir| {
            link("beside/0", &format!("{dir}/0"));
        }),
        ("/", "/1/0 is a link, which is not followed", &|dir| {
            fs::create_dir(at(dir) + "/1").unwrap();
            link("elsewhere", &format!("{dir}/1/0"));
        }),
        ("/", "/1 is a file, and no directory of chunks", &|dir| fs::write(at(dir) + "/1", "1").unwrap()),
    ];
    for (number, (separator, why, make)) in made.iter().enumerate() {
        let dir = format!("array{number}");
        fs::create_dir(at(&dir)).unwrap();
        fs::write(at(&dir) + "/.zarray", bytes_in_chunks("[2, 3]", "[1, 3]", separator)).unwrap();
        assert_eq!(call(&["cat", &at(&dir), "array"]).status.code(), Some(0));
        make(&dir);
        for command in [["tensors", &at(&dir)].to_vec(), ["stat", &at(&dir), "array"].to_vec()] {
            let told = complains(1, &command);
            assert!(told.contains("not all of its chunks can be read: ") && told.contains(why), "{told}");
        }
        assert_eq!(call(&["cat", &at(&dir), "array"]).status.code(), Some(1), "{why}");
        assert!(complains(2, &["diff", &at(&dir), &at(&dir)]).contains(why));
        let listed = prints(1, &["tensors", &at(&dir)]);
        assert!(listed.contains("0 of 2 chunks (not all others are the fill value)"), "{listed}");
    }
    // Chunks that are encoded are only compared, and no fill value stands for one there, either.
    let encoded =
        bytes_in_chunks("[2, 3]", "[1, 3]", ".").replace("\"filters\": null", "\"filters\": [{\"id\": \"a\"}]");
    for dir in ["encoded", "encoded2"] {
        fs::create_dir(at(dir)).unwrap();
        fs::write(at(dir) + "/.zarray", &encoded).unwrap();
    }
    assert_eq!(prints(0, &["diff", &at("encoded"), &at("encoded2")]), "0 different, 1 the same\n");
    link("elsewhere", "encoded2/0.0");
    assert!(complains(2, &["diff", &at("encoded"), &at("encoded2")]).contains("0.0 is a link"));
}

/// Metadata that is no regular file is told, and neither followed nor opened; nor is that any failure of `ls`.
#[test]
fn hierarchies_have_metadata_in_regular_files() {
    let scratch = scratch();
    let at = |name: &str| scratch.path().join(name).to_str().unwrap().to_owned();
    fs::write(at("elsewhere.json"), bytes_in_chunks("[2, 3]", "[1, 3]", ".")).unwrap();
    for name in ["zarr.json", ".zarray", ".zgroup", ".zmetadata", "attributes.json", "manifest.ocdbt"] {
        let status = if name == "attributes.json" { 0 } else { 1 };
        type Make<'a> = (&'a str, &'a dyn Fn(&str));
        let makes: [Make; 3] = [
            ("a link, which is not followed", &|path| symlink(at("elsewhere.json"), path).unwrap()),
            ("no regular file", &|path| make_fifo(path)),
            ("a directory", &|path| fs::create_dir(path).unwrap()),
        ];
        for (number, (what, make)) in makes.iter().enumerate() {
            let dir = at(&format!("{name}-{number}"));
            fs::create_dir(&dir).unwrap();
            make(&format!("{dir}/{name}"));
            let told = format!("{dir}/{name}: has the name of metadata, and is {what}");
            assert!(complains(status, &["tensors", &dir]).contains(&told));
            assert!(complains(0, &["ls", &dir]).contains(&told));
        }
    }
    // A FIFO is not opened: whoever writes to it would find a reader.
    let fifo = at(".zarray-1") + "/.zarray";
    let writer = File::options().write(true).custom_flags(libc::O_NONBLOCK).open(fifo);
    assert_eq!(writer.unwrap_err().raw_os_error(), Some(libc::ENXIO));
    // A file that any program may have, of no hierarchy, and unreadable.
    if !nix::unistd::geteuid().is_root() {
        let dir = at("unreadable");
        fs::create_dir(&dir).unwrap();
        fs::write(dir.clone() + "/attributes.json", "{}").unwrap();
        fs::set_permissions(dir.clone() + "/attributes.json", fs::Permissions::from_mode(0o0)).unwrap();
        assert_eq!(call(&["ls", &dir]).status.code(), Some(0));
    }
}

/// `ls` of a hierarchy looks at so much of it as is soon done, and what is below is no failure of it.
fn hierarchies_are_summed_up_as_far_as_is_soon_done(setup: Setup) {
    let mount = setup.mount();
    let top = mount.at("zoo");
    fs::create_dir(&top).unwrap();
    let top = top.to_str().unwrap();
    let at = |name: &str| format!("{top}/{name}");
    fs::write(at(".zgroup"), r#"{"zarr_format": 2}"#).unwrap();
    for dir in ["one", "short", "cut"] {
        fs::create_dir(at(dir)).unwrap();
        fs::write(at(dir) + "/.zarray", bytes_in_chunks("[99999]", "[1]", ".")).unwrap();
    }
    fs::write(at("one/5"), [1]).unwrap();
    let listed = prints(0, &["ls", top]);
    assert!(listed.contains("3 arrays, 1 of 299997 chunks (the others are the fill value), 1 B\n"), "{listed}");
    // What is wrong below is found by who looks for it.
    fs::write(at("short/7"), "").unwrap();
    fs::write(at("cut/.zarray"), "{").unwrap();
    let output = call(&["ls", top]);
    let listed = String::from_utf8(output.stdout).unwrap();
    assert_eq!((output.status.code(), &*output.stderr), (Some(0), &b""[..]));
    assert!(listed.contains("2 arrays, 2 of 199998 chunks, 1 B, and more that is not looked at here\n"), "{listed}");
    assert_eq!(call(&["tensors", top]).status.code(), Some(1));
    // Those of all directories count together, also those that chunks are in.
    fs::create_dir(at("one/nested")).unwrap();
    fs::write(at("one/nested/.zarray"), bytes_in_chunks("[2, 99999]", "[1, 1]", "/")).unwrap();
    for dir in ["one", "one/nested/0", "one/nested/1"] {
        fs::create_dir_all(at(dir)).unwrap();
        (0..4000).for_each(|number| fs::write(at(&format!("{dir}/{number}")), [1]).unwrap());
    }
    let listed: Value = serde_json::from_str(prints(0, &["ls", "--json", top]).lines().last().unwrap()).unwrap();
    let there = listed["chunks_there"].as_u64().unwrap();
    assert!(listed["all"] == false && (9000..=10_000).contains(&there), "{listed}");
    let found = prints(1, &["tensors", "--json", top]);
    assert!(found.contains("\"chunks_there\":8000"), "{found}");
}

/// An odd array, or whatever else cannot be read in a directory, had all the others fail.
#[test]
fn what_is_odd_in_a_directory_keeps_nobody_from_the_rest() {
    let scratch = scratch();
    let at = |name: &str| scratch.path().join(name).to_str().unwrap().to_owned();
    let make = |name: &str, bytes: &[u8]| {
        fs::create_dir_all(Path::new(&at(name)).parent().unwrap()).unwrap();
        fs::write(at(name), bytes).unwrap();
    };
    let array = bytes_in_chunks("[2, 3]", "[1, 3]", ".");
    let group = br#"{"zarr_format": 2}"#;
    type Make<'a> = (&'a str, &'a dyn Fn(&str));
    let makes: [Make<'_>; 7] = [
        ("array0: zarr 2 that is not understood: chunks without elements", &|dir| {
            make(&format!("{dir}/array0/.zarray"), array.replace("[1, 3]", "[0, 3]").as_bytes());
        }),
        ("array0/.zarray: metadata of zarr 2 that cannot be read: JSON that is cut short", &|dir| {
            make(&format!("{dir}/array0/.zarray"), array.split_at(40).0.as_bytes());
        }),
        ("array0: its chunk 1.0 has 1 byte, and its elements take 3", &|dir| {
            make(&format!("{dir}/array0/.zarray"), array.as_bytes());
            make(&format!("{dir}/array0/1.0"), b"1");
        }),
        ("array0/.zarray: has the name of metadata, and is a link", &|dir| {
            make(&format!("{dir}/array0/here"), b"");
            symlink(at(dir), at(&format!("{dir}/array0/.zarray"))).unwrap();
        }),
        ("array0/.zgroup: metadata of zarr 2 that cannot be read", &|dir| {
            make(&format!("{dir}/array0/.zgroup"), b"[");
        }),
        ("index.json: the plan of a checkpoint that cannot be read", &|dir| {
            make(&format!("{dir}/array0/model.safetensors.index.json"), b"{\"weight_map\": {");
        }),
        ("array0/model.safetensors.index.json", &|dir| {
            make(&format!("{dir}/array0/model.safetensors.index.json"), br#"{"weight_map": {"a": "gone"}}"#);
        }),
    ];
    for (number, (why, odd)) in makes.iter().enumerate() {
        let (old, new) = (format!("old{number}"), format!("new{number}"));
        for (dir, byte) in [(&old, 1), (&new, 2)] {
            make(&format!("{dir}/.zgroup"), group);
            make(&format!("{dir}/array1/.zarray"), array.as_bytes());
            make(&format!("{dir}/array1/0.0"), &[byte, byte, byte]);
            make(&format!("{dir}/array2/.zarray"), array.as_bytes());
            safetensors(Path::new(&at(&format!("{dir}/z.safetensors"))), &[("t", b"same")]);
            odd(dir);
        }
        let why = if number == 6 { "gone is missing" } else { why };
        let (old, new) = (at(&old), at(&new));
        for (name, mean) in [("array1", 5.0), ("array2", 9.0)] {
            let numbers: Value = serde_json::from_str(&prints(0, &["stat", "--json", &old, name])).unwrap();
            assert_eq!(numbers["mean"], mean, "{why}");
            assert_eq!(prints_bytes(&["cat", &old, name]).len(), 128 + 6);
        }
        prints_bytes(&["cat", &old, "z.safetensors/t"]);
        // What there is differs as it does, and it is said that it is not all.
        let output = call(&["diff", "--json", &old, &new]);
        let (told, lines) = (String::from_utf8(output.stderr).unwrap(), String::from_utf8(output.stdout).unwrap());
        assert_eq!(output.status.code(), Some(2), "{told}{lines}");
        assert!(told.contains(why), "{told} and not {why}");
        let changed: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(changed.len(), 1, "{lines}");
        assert_eq!((&changed[0]["name"], &changed[0]["elements"]), (&"array1".into(), &3.into()), "{lines}");
        // Whoever asks for just that hears why not.
        if number < 4 {
            let told = complains(1, &["cat", &old, "array0"]);
            assert!(told.contains(why.split_once(": ").unwrap().1), "{told}");
        }
    }
}

/// What one of two directories cannot tell was called removed, or added.
#[test]
fn what_cannot_be_read_on_one_side_is_not_called_gone() {
    let scratch = scratch();
    let at = |name: &str| scratch.path().join(name).to_str().unwrap().to_owned();
    let array = bytes_in_chunks("[2, 3]", "[1, 3]", ".");
    for dir in ["old/a", "old/b", "new/a", "new/b"] {
        fs::create_dir_all(at(dir)).unwrap();
        fs::write(at(dir) + "/.zarray", &array).unwrap();
    }
    fs::write(at("new/b/.zarray"), array.split_at(40).0).unwrap();
    for [old, new] in [["old", "new"], ["new", "old"]] {
        let output = call(&["diff", "--json", &at(old), &at(new)]);
        let (told, lines) = (String::from_utf8(output.stderr).unwrap(), String::from_utf8(output.stdout).unwrap());
        assert_eq!((output.status.code(), lines.as_str()), (Some(2), ""), "{told}");
        assert!(told.contains("metadata of zarr 2 that cannot be read"), "{told}");
    }
    // What is really gone is.
    fs::remove_dir_all(at("new/b")).unwrap();
    let output = call(&["diff", "--json", &at("old"), &at("new")]);
    assert!(String::from_utf8(output.stdout).unwrap().contains("removed"), "{}", at("new"));
}

/// An array that was made at its full size, and is to be filled.
#[test]
fn sparse_arrays_are_read() {
    use std::io::Read;
    let scratch = scratch();
    let dir = scratch.path().to_str().unwrap();
    fs::write(format!("{dir}/.zarray"), bytes_in_chunks("[100, 1000000000]", "[1, 1000000]", ".")).unwrap();
    let mut cat = tensorfs_tests::tensorfs();
    let mut cat = cat.args(["cat", dir, "array"]).stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut begin = [0; 1 << 20];
    let read = cat.stdout.take().unwrap().read_exact(&mut begin);
    cat.wait().unwrap();
    read.unwrap();
    assert!(begin[128..].iter().all(|byte| *byte == 9));
}

/// Metadata can say anything in a few bytes: no more work comes of that than of what is stored.
#[test]
fn hierarchies_are_read_for_what_is_stored() {
    let scratch = scratch();
    let at = |name: &str| scratch.path().join(name).to_str().unwrap().to_owned();
    let many: String = format!("[{}]", 1_u64 << 62);
    for (dir, chunk) in [("one", "[1]"), ("all", many.as_str())] {
        fs::create_dir(at(dir)).unwrap();
        fs::write(at(dir) + "/.zarray", bytes_in_chunks(&many, chunk, ".")).unwrap();
        fs::create_dir(at(dir) + "/other").unwrap();
        fs::write(at(dir) + "/other/.zarray", bytes_in_chunks("[3]", "[3]", ".")).unwrap();
        if dir == "one" {
            fs::write(at(dir) + "/7", [1]).unwrap();
        }
        for command in ["stat", "cat"] {
            let told = complains(1, &[command, &at(dir), "array"]);
            assert!(told.contains("it is said to have 4.0 EiB, of which ") && told.contains("are stored"), "{told}");
        }
        assert_eq!(prints(0, &["diff", &at(dir), &at(dir)]), "0 different, 2 the same\n");
        assert_eq!(prints_bytes(&["cat", &at(dir), "other"])[128..], [9; 3]);
        assert_eq!(call(&["tensors", &at(dir)]).status.code(), Some(0));
    }
    // More chunks side by side than are open at a time.
    fs::create_dir(at("wide")).unwrap();
    fs::write(at("wide/.zarray"), bytes_in_chunks("[3, 200]", "[2, 1]", ".")).unwrap();
    for column in (0..200_u8).filter(|column| column % 7 != 0) {
        fs::write(at(&format!("wide/0.{column}")), [column, 100]).unwrap();
    }
    fs::write(at("wide/1.199"), [77, 0]).unwrap();
    let bytes = prints_bytes(&["cat", &at("wide"), "array"]);
    let of_row = |other: Option<u8>| {
        (0..200_u8).map(move |column| if column % 7 == 0 { 9 } else { other.unwrap_or(column) }).collect::<Vec<_>>()
    };
    assert_eq!(bytes[128..], [of_row(None), of_row(Some(100)), [vec![9; 199], vec![77]].concat()].concat());
}

/// Blocks of n5's say how large they are, and what they lack is zero; they are compared with what is row by row.
///
/// Proves T11, T15.
#[test]
fn blocks_of_n5_are_put_together() {
    let scratch = scratch();
    let at = |name: &str| scratch.path().join(name).to_str().unwrap().to_owned();
    let n5 = r#"{"dimensions": [3, 5], "blockSize": [2, 3], "dataType": "uint8", "compression": {"type": "raw"}}"#;
    let block =
        |sizes: [u8; 2], elements: &[u8]| [&[0, 0, 0, 2, 0, 0, 0, sizes[0], 0, 0, 0, sizes[1]][..], elements].concat();
    for dir in ["n5/0", "n5/1", "zarr", "hollow/zarr"] {
        fs::create_dir_all(at(dir)).unwrap();
    }
    fs::write(at("n5/attributes.json"), n5).unwrap();
    // One that is whole, one that ends where the array does, one that is smaller, and one that is not there.
    fs::write(at("n5/0/0"), block([2, 3], &[1, 2, 3, 4, 5, 6])).unwrap();
    fs::write(at("n5/1/0"), block([1, 3], &[7, 8, 9])).unwrap();
    fs::write(at("n5/0/1"), block([1, 2], &[10, 11])).unwrap();
    let columns = [1, 2, 7, 3, 4, 8, 5, 6, 9, 10, 0, 0, 11, 0, 0];
    let bytes = prints_bytes(&["cat", &at("n5"), "array"]);
    assert!(String::from_utf8_lossy(&bytes[..128]).contains("'fortran_order': True, 'shape': (3, 5)"));
    assert_eq!(bytes[128..], columns);
    let rows: Vec<u8> = (0..3).flat_map(|row| (0..5).map(move |column| columns[column * 3 + row])).collect();
    fs::write(at("zarr/.zarray"), bytes_in_chunks("[3, 5]", "[3, 5]", ".")).unwrap();
    fs::write(at("zarr/0.0"), &rows).unwrap();
    assert_eq!(prints(0, &["diff", &at("n5"), &at("zarr")]), "0 different, 1 the same\n");
    fs::write(at("zarr/0.0"), [&[99], &rows[1..]].concat()).unwrap();
    let told: Value = serde_json::from_str(&prints(1, &["diff", "--json", &at("n5"), &at("zarr")])).unwrap();
    assert_eq!((&told["elements"], &told["max_abs"]), (&1.into(), &98.0.into()));
    // Chunks of zarr's that are column by column.
    fs::write(at("zarr/.zarray"), bytes_in_chunks("[3, 5]", "[3, 5]", ".").replace("\"C\"", "\"F\"")).unwrap();
    fs::write(at("zarr/0.0"), columns).unwrap();
    assert_eq!(prints_bytes(&["cat", &at("zarr"), "array"])[128..], columns);
    assert_eq!(prints(0, &["diff", &at("n5"), &at("zarr")]), "0 different, 1 the same\n");
    // What cannot be a block is told, and no array has it.
    for wrong in [block([3, 1], &[1, 2, 3]), block([1, 2], &[1]), block([1, 2], &[1, 2, 3]), vec![]] {
        fs::write(at("n5/0/1"), wrong).unwrap();
        let told = complains(1, &["cat", &at("n5"), "array"]);
        assert!(told.contains("block"), "{told}");
        assert_eq!(call(&["diff", &at("n5"), &at("zarr")]).status.code(), Some(2));
    }
    // Encoded blocks are listed and compared as before.
    fs::write(at("n5/attributes.json"), n5.replace("raw", "gzip")).unwrap();
    assert!(complains(1, &["cat", &at("n5"), "array"]).contains("encoded (gzip)"));
    assert_eq!(call(&["tensors", &at("n5")]).status.code(), Some(0));
    // There is no end to what is said of a fill value, but there is one to how long it is looked at.
    fs::write(at("hollow/zarr/.zarray"), bytes_in_chunks("[1000000000000]", "[1000000000000]", ".")).unwrap();
    assert_eq!(prints(0, &["diff", &at("hollow"), &at("hollow")]), "0 different, 1 the same\n");
}

/// A block is what its file says when it is read, though another one had its name before.
#[test]
fn a_block_that_is_replaced_is_looked_at_again() {
    const WIDE: usize = 1 << 16;
    const COUNT: usize = 100;
    let scratch = scratch();
    let dir = scratch.path().join("n5");
    let array = format!(
        r#"{{"dimensions": [{}, 2], "blockSize": [{WIDE}, 2], "dataType": "uint8", "compression": {{"type": "raw"}}}}"#,
        WIDE * COUNT
    );
    let write = |nth: usize, name: &str, rows: u8, value: u8| {
        let head = [0, 0, 0, 2, 0, 1, 0, 0, 0, 0, 0, rows];
        let at = dir.join(nth.to_string());
        fs::create_dir_all(&at).unwrap();
        fs::write(at.join(name), [&head[..], &vec![value; WIDE * usize::from(rows)]].concat()).unwrap();
        at
    };
    (0..COUNT).for_each(|nth| drop(write(nth, "0", 2, nth as u8)));
    fs::write(dir.join("attributes.json"), array).unwrap();
    let mut cat = tensorfs();
    let mut cat = cat.arg("cat").arg(&dir).arg("array").stdout(Stdio::piped()).spawn().unwrap();
    // The first row goes through all blocks, and so does the second one. It waits for who reads what it has to say:
    // once it has said what the first block has of the first row, it has read that, and not all of the row.
    let (mut out, mut all) = (cat.stdout.take().unwrap(), vec![0; 128 + WIDE]);
    out.read_exact(&mut all).unwrap();
    let at = write(0, "new", 1, 200);
    fs::rename(at.join("new"), at.join("0")).unwrap();
    out.read_to_end(&mut all).unwrap();
    assert!(cat.wait().unwrap().success());
    let second = &all[128 + WIDE * COUNT..];
    assert!(all[128..128 + WIDE].iter().all(|byte| *byte == 0) && second[WIDE..].starts_with(&[1]));
    assert!(second[..WIDE].iter().all(|byte| *byte == 0), "the new one has no second row");
}

/// What a command has read by the time that it ends.
fn has_read(command: &mut Command) -> u64 {
    use nix::sys::wait::{Id, WaitPidFlag, waitid};
    let mut process = command.stdout(Stdio::null()).spawn().unwrap();
    let id = Id::Pid(nix::unistd::Pid::from_raw(process.id() as i32));
    waitid(id, WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT).unwrap();
    let io = fs::read_to_string(format!("/proc/{}/io", process.id())).unwrap();
    assert_eq!(process.wait().unwrap().code(), Some(1));
    io.lines().find_map(|line| line.strip_prefix("rchar: ")).unwrap().parse().unwrap()
}

/// Chunks that differ are read no more often than they have to be: once to find that, and once for how much, if they
/// can be read.
#[test]
fn chunks_that_differ_are_read_once() {
    const LEN: usize = 2 << 20;
    let scratch = scratch();
    let plain = bytes_in_chunks(&format!("[{LEN}]"), &format!("[{LEN}]"), ".");
    let encoded = plain.replace(r#""compressor": null"#, r#""compressor": {"id": "zlib", "level": 1}"#);
    for (name, metadata, times) in [("plain", plain, 2), ("encoded", encoded, 1)] {
        let mut command = tensorfs();
        command.arg("diff");
        for last in [1, 2] {
            let dir = scratch.path().join(format!("{name}{last}"));
            fs::create_dir(&dir).unwrap();
            fs::write(dir.join(".zarray"), &metadata).unwrap();
            fs::write(dir.join("0"), [&vec![7; LEN - 1][..], &[last]].concat()).unwrap();
            command.arg(dir);
        }
        let (read, once) = (has_read(&mut command), 2 * LEN as u64);
        assert!((once * times..once * times + once / 2).contains(&read), "{name}: {read} of {once}");
    }
}

/// What is of another format within a hierarchy is a hierarchy of its own, and any program's file is none.
#[test]
fn hierarchies_in_each_other_are_told_apart() {
    let scratch = scratch();
    let at = |name: &str| scratch.path().join(name).to_str().unwrap().to_owned();
    for dir in ["top/a", "top/db/d", "top/n5", "top/z"] {
        fs::create_dir_all(at(dir)).unwrap();
    }
    fs::write(at("top/.zgroup"), r#"{"zarr_format": 2}"#).unwrap();
    for dir in ["top/a", "top/z"] {
        fs::write(at(dir) + "/.zarray", bytes_in_chunks("[3]", "[3]", ".")).unwrap();
    }
    let node = leaf(&[("", "d/0")], &[(b"x", Made::Here(b"y"))]);
    fs::write(at("top/db/manifest.ocdbt"), manifest(&[("", "d/0")], (0, 0, node.len() as u64), 0)).unwrap();
    fs::write(at("top/db/d/0"), node).unwrap();
    fs::write(at("top/a/attributes.json"), b"[1, 2]").unwrap();
    fs::write(
        at("top/n5/attributes.json"),
        r#"{"dimensions": [4], "blockSize": [4], "dataType": "uint8", "compression": {"type": "raw"}}"#,
    )
    .unwrap();
    let text = prints(0, &["tensors", &at("top")]);
    for said in
        ["top: zarr 2, 2 arrays, 0 of 2 chunks", "top/db: OCDBT, 0 arrays, 0 of 0", "top/n5: n5, 1 array, 0 of 1 chunk"]
    {
        assert!(text.contains(said), "{text}");
    }
    assert_eq!(names(&["tensors", &at("top")]), ["a", "array", "z"]);
    assert_eq!(prints(0, &["diff", &at("top"), &at("top")]), "0 different, 3 the same\n");
}

/// Whoever wants one array has the others left alone.
fn one_array_is_read_without_the_others(setup: Setup) {
    let mut mount = setup.mount();
    let top = mount.path().to_owned();
    let at = |name: &str| top.join(name).to_str().unwrap().to_owned();
    for (dir, chunks) in [("top/few", 3), ("top/many", 3000), ("top/nested/many", 3000)] {
        fs::create_dir_all(at(dir)).unwrap();
        fs::write(at(dir) + "/.zarray", bytes_in_chunks("[9999]", "[1]", ".")).unwrap();
        (0..chunks).for_each(|number| fs::write(at(&format!("{dir}/{number}")), [1]).unwrap());
    }
    fs::write(at("top/.zgroup"), r#"{"zarr_format": 2}"#).unwrap();
    // What was just made the kernel knows by itself.
    mount.remount();
    let asked = || {
        let info = mount.info();
        let of = |kind: &str| info["counters"][kind].as_u64().unwrap();
        ["lookup", "getattr", "readdir", "readdirplus"].map(of).iter().sum::<u64>()
    };
    let before = asked();
    assert_eq!(prints_bytes(&["cat", &at("top"), "few"])[128..132], [1, 1, 1, 9]);
    prints(0, &["stat", &at("top"), "few"]);
    let count = asked() - before;
    assert!(count < 150, "{count} requests for an array of three chunks");
}

/// What a command prints, that has to succeed.
#[track_caller]
fn prints_bytes(arguments: &[&str]) -> Vec<u8> {
    let output = call(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

pub fn make_fifo(path: &str) {
    nix::unistd::mkfifo(path, nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
}
