//! The control tree: every tensor of every file as a `.npy`, and what tensorfs says of a file in extended attributes.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CString, OsStr};
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use nix::errno::Errno;
use serde_json::Value;
use tensorfs_formats::crc32c;
use tensorfs_tests::{Mount, Setup, is_root, on_mounts, run, run_ok, safetensors, shell, venv};

on_mounts!(
    every_tensor_is_a_file,
    tensors_are_what_their_libraries_read,
    tensors_of_torch_are_what_torch_reads,
    what_is_no_tensor_is_not_there,
    awkward_names_are_escaped,
    tensors_of_one_name_are_told_apart,
    an_event_file_is_followed_while_it_is_written,
    an_open_tensor_shows_one_version,
    removed_and_moved_files,
    who_may_not_read_a_file_may_not_read_its_tensors,
    a_change_of_permission_counts_at_once,
    access_lists_count,
    reading_tensors_changes_nothing,
    reading_tensors_is_not_in_the_way,
    the_tree_cannot_be_changed,
    attributes_say_what_a_file_is,
    attributes_are_not_copied_and_cannot_be_set,
    a_checkpoint_of_many_tensors,
    a_file_of_many_tensors_takes_little_memory,
);

// --- files with tensors ------------------------------------------------------------------------------

fn samples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../layout/formats/tests/samples")
}

fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2][..], &varint(bytes.len() as u64), bytes].concat()
}

/// A frame of an event file with one number.
fn event(name: &[u8], step: i64, mode: Option<u8>, number: f32) -> Vec<u8> {
    let plugin = |mode: u8| field(9, &field(1, &[field(1, b"mode"), field(2, &[b'0' + mode])].concat()));
    let number = [&[0x15][..], &number.to_le_bytes()].concat();
    frame(step, &[field(1, name), number, mode.map(plugin).unwrap_or_default()].concat())
}

/// A frame with a line of bytes.
fn event_of_bytes(name: &[u8], step: i64, bytes: &[u8]) -> Vec<u8> {
    let dimension = field(2, &[&[0x08][..], &varint(bytes.len() as u64)].concat());
    let tensor = [&[0x08, 4][..], &field(2, &dimension), &field(4, bytes)].concat();
    frame(step, &[field(1, name), field(8, &tensor)].concat())
}

fn frame(step: i64, value: &[u8]) -> Vec<u8> {
    let payload = [&[0x10][..], &varint(step as u64), &field(5, &field(1, value))].concat();
    let masked = |bytes: &[u8]| crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes();
    let len = (payload.len() as u64).to_le_bytes();
    [&len[..], &masked(&len), &payload, &masked(&payload)].concat()
}

// --- looking at the tree -----------------------------------------------------------------------------

fn tree(mount: &Mount, name: &str) -> PathBuf {
    mount.at(".tensorfs/tensors").join(name)
}

/// All files below a directory, by their paths in it.
fn files(directory: &Path) -> BTreeSet<Vec<u8>> {
    let mut found = BTreeSet::new();
    let mut left = vec![directory.to_owned()];
    while let Some(path) = left.pop() {
        for entry in fs::read_dir(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())) {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_dir() {
                left.push(entry.path());
            } else {
                let path = entry.path();
                assert!(found.insert(path.strip_prefix(directory).unwrap().as_os_str().as_bytes().to_vec()));
            }
        }
    }
    found
}

#[track_caller]
fn text(paths: &BTreeSet<Vec<u8>>) -> Vec<String> {
    paths.iter().map(|path| String::from_utf8(path.clone()).unwrap()).collect()
}

/// The header of a `.npy` and the bytes behind it.
fn npy(bytes: &[u8]) -> (String, &[u8]) {
    assert!(bytes.starts_with(b"\x93NUMPY"), "{:?}", &bytes[..bytes.len().min(16)]);
    let (len, start) = match bytes[6] {
        1 => (u16::from_le_bytes([bytes[8], bytes[9]]) as usize, 10),
        _ => (u32::from_le_bytes(bytes[8..12].try_into().unwrap()) as usize, 12),
    };
    (String::from_utf8_lossy(&bytes[start..start + len]).into_owned(), &bytes[start + len..])
}

/// The bytes of a tensor.
fn bytes(path: &Path) -> Vec<u8> {
    let bytes = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert_eq!(bytes.len() as u64, fs::metadata(path).unwrap().len());
    npy(&bytes).1.to_vec()
}

fn attribute(path: &Path, name: &str) -> Result<String, Errno> {
    let (path, name) = (c(path), CString::new(format!("user.tensorfs.{name}")).unwrap());
    let mut value = [0_u8; 100];
    // SAFETY: plain system call; the buffer is as long as said.
    let len = unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), value.len()) };
    Errno::result(len).map(|len| String::from_utf8(value[..len as usize].to_vec()).unwrap())
}

fn c(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

/// Waits until something is so; it always becomes so, sooner or later.
#[track_caller]
fn wait_until(what: &str, is: impl Fn() -> bool) {
    for _ in 0..6000 {
        if is() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("{what}: not after a minute");
}

fn sealed(path: &Path) {
    wait_until("sealed", || attribute(path, "state").unwrap() == "sealed");
}

/// `yes` if a shell command of another user succeeds.
fn may(mount: &Mount, uid: u32, script: &str) -> bool {
    run(Command::new("setpriv")
        .args(["--reuid", &uid.to_string(), "--regid", &uid.to_string(), "--clear-groups", "bash", "-c", script])
        .current_dir(mount.path()))
    .status
    .success()
}

// --- what is there -----------------------------------------------------------------------------------

/// What libraries read from the samples, and what the tree shows of them: before they are sealed, and from their seals.
///
/// Proves T1, T2.
fn every_tensor_is_a_file(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    run_ok(Command::new("cp").arg("-r").arg(samples()).arg(mount.at("samples")));
    check_samples(&mount);
    for entry in fs::read_dir(mount.at("samples")).unwrap() {
        sealed(&entry.unwrap().path());
    }
    check_samples(&mount);
}

fn check_samples(mount: &Mount) {
    let (mut checked, mut with_tensors) = (0, BTreeSet::new());
    for entry in fs::read_dir(samples()).unwrap() {
        let path = entry.unwrap().path();
        let Some(name) = path.file_name().unwrap().to_str().unwrap().strip_suffix(".json") else { continue };
        let sample: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let directory = tree(mount, "samples").join(name);
        let tensors = sample["tensors"].as_array().unwrap();
        let counted = attribute(&mount.at("samples").join(name), "tensors");
        if tensors.is_empty() {
            assert!(!directory.exists(), "{name}");
            assert_eq!(counted, Ok("0".to_owned()), "{name}");
            continue;
        }
        assert_eq!(counted, Ok(tensors.len().to_string()), "{name}");
        with_tensors.insert(name.as_bytes().to_vec());
        let mut wanted = BTreeSet::new();
        for tensor in tensors.iter().filter(|tensor| !tensor["crc32c"].is_null()) {
            let step = tensor["step"].as_i64().map(|step| format!("@{step}")).unwrap_or_default();
            let path = format!("{}{step}.npy", tensor["name"].as_str().unwrap());
            let file = fs::read(directory.join(&path)).unwrap_or_else(|error| panic!("{name}: {path}: {error}"));
            let (header, bytes) = npy(&file);
            assert_eq!(u64::from(crc32c(bytes)), tensor["crc32c"].as_u64().unwrap(), "{name}: {path}");
            let shape: Vec<_> = tensor["shape"].as_array().unwrap().iter().map(|n| n.to_string()).collect();
            let shape = format!("'shape': ({}{})", shape.join(", "), if shape.len() == 1 { "," } else { "" });
            let packed = tensor["dtype"].as_str().unwrap().starts_with("float4");
            assert!(header.contains(&shape) || packed, "{name}: {path}: {header}");
            let fortran = if tensor["fortran"] == true { "True" } else { "False" };
            assert!(header.contains(&format!("'fortran_order': {fortran}")), "{name}: {path}: {header}");
            let code = match tensor["dtype"].as_str().unwrap() {
                "float32" => "f4'",
                "int64" => "i8'",
                "bool" => "b1'",
                "complex128" => "c16'",
                "uint16" => "u2'",
                "bfloat16" => "V2'",
                _ => "",
            };
            assert!(header.contains(code), "{name}: {path}: {header}");
            assert!(wanted.insert(path.into_bytes()), "{name}");
            checked += 1;
        }
        assert_eq!(text(&files(&directory)), text(&wanted), "{name}");
    }
    assert!(checked > 200, "only {checked}");
    // Listed are the files with tensors, as directories, and no others.
    let listed = fs::read_dir(tree(mount, "samples")).unwrap().map(|entry| {
        let entry = entry.unwrap();
        assert!(entry.file_type().unwrap().is_dir());
        entry.file_name().as_bytes().to_vec()
    });
    assert_eq!(listed.collect::<BTreeSet<_>>(), with_tensors);
}

fn check_with_libraries(setup: Setup, environment: &str) {
    let Some(python) = venv(environment) else {
        return setup.skip("no Python environment: tests/run makes one");
    };
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let script = |name: &str| {
        // smdebug waits for ever for what does not come. An hour is no measure of speed.
        let mut command = Command::new("timeout");
        command.args(["--signal=KILL", "3600"]).arg(&python);
        command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("clients").join(name));
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        command
    };
    run_ok(script("make_formats.py").arg(mount.at("made")));
    run_ok(script("control_client.py").arg(mount.at("made")).arg(tree(&mount, "made")).arg(mount.host()));
}

/// smdebug, safetensors, NumPy and tensorboardX write; NumPy reads the tree.
///
/// Proves T1, T2.
fn tensors_are_what_their_libraries_read(setup: Setup) {
    check_with_libraries(setup, "small");
}

fn tensors_of_torch_are_what_torch_reads(setup: Setup) {
    if std::env::var("TENSORFS_LARGE").as_deref() != Ok("1") {
        return setup.skip("needs gigabytes of packages: TENSORFS_LARGE=1");
    }
    // An old one, with smdebug beside it, and a new one.
    for environment in ["large", "torch"] {
        check_with_libraries(setup.clone(), environment);
    }
}

/// Proves T1.
fn what_is_no_tensor_is_not_there(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    fs::write(mount.at("text"), "no tensors").unwrap();
    fs::write(mount.at("empty"), "").unwrap();
    fs::create_dir(mount.at("directory")).unwrap();
    std::os::unix::fs::symlink("model", mount.at("link")).unwrap();
    run_ok(Command::new("mkfifo").arg(mount.at("fifo")));
    fs::copy(samples().join("objects.npy"), mount.at("objects.npy")).unwrap();
    fs::write(mount.at("model"), safetensors(&[("x", b"abc")])).unwrap();
    let listed = |directory: &Path| -> BTreeSet<Vec<u8>> {
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().as_bytes().to_vec()).collect()
    };
    assert_eq!(text(&listed(&tree(&mount, ""))), ["directory", "model", "objects.npy"]);
    for name in ["text", "empty", "link", "fifo", "missing", ".tensorfs", "model/y.npy", "model/x", "text/x.npy"] {
        assert!(!tree(&mount, name).exists(), "{name}");
    }
    // Its array is listed by `tensorfs tensors`, but it is pickled.
    assert_eq!(listed(&tree(&mount, "objects.npy")), BTreeSet::new());
    assert_eq!(text(&listed(&mount.at(".tensorfs"))), ["README", "accesses", "info", "placement", "tensors"]);
    let readme = fs::read_to_string(mount.at(".tensorfs/README")).unwrap();
    assert!(
        readme.contains("np.load") && readme.len() as u64 == fs::metadata(mount.at(".tensorfs/README")).unwrap().len()
    );
    // What becomes a file with tensors is there at once, and what ceases to be one is not.
    fs::write(mount.at("text"), safetensors(&[("now", b"1")])).unwrap();
    fs::write(mount.at("model"), "not any more").unwrap();
    assert_eq!(text(&listed(&tree(&mount, ""))), ["directory", "objects.npy", "text"]);
    assert_eq!(bytes(&tree(&mount, "text/now.npy")), b"1");
}

/// Proves T2.
fn awkward_names_are_escaped(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let (long, deep) = ("é".repeat(300), "d/".repeat(40));
    let list: Vec<(&str, String)> = vec![
        ("plain", "plain.npy".into()),
        ("a.b.c", "a.b.c.npy".into()),
        ("nested/name", "nested/name.npy".into()),
        ("nested", "nested.npy".into()),
        ("nested.npy", "nested.npy.npy".into()),
        ("nested.npy/name", "nested%2Enpy/name.npy".into()),
        ("nested//name", "nested/%/name.npy".into()),
        ("/", "%/%.npy".into()),
        ("", "%.npy".into()),
        (".", "%2E.npy".into()),
        ("../../etc/passwd", "%2E%2E/%2E%2E/etc/passwd.npy".into()),
        ("nul\0and\nline", "nul%00and%0Aline.npy".into()),
        ("100%", "100%25.npy".into()),
        ("100%25", "100%2525.npy".into()),
        ("w@5", "w%405.npy".into()),
        ("w@#2", "w%40#2.npy".into()),
        ("-rf *;$(x)'\"\\", "-rf *;$(x)'\"\\.npy".into()),
        (&long, format!("{0}%/{0}%/{0}.npy", "é".repeat(100))),
        (&deep, format!("{}{}.npy", "d/".repeat(31), "d%2F".repeat(9))),
    ];
    let contents: Vec<Vec<u8>> = (0..list.len() as u8).map(|n| vec![n; 3]).collect();
    let tensors: Vec<(&str, &[u8])> =
        list.iter().zip(&contents).map(|((name, _), bytes)| (*name, &bytes[..])).collect();
    fs::write(mount.at("hostile"), safetensors(&tensors)).unwrap();
    // No UTF-8 is for formats whose names are bytes.
    fs::write(mount.at("bytes"), event(b"\xff/\xc3\xa4\xc3", -3, None, 1.5)).unwrap();
    for round in 0..2 {
        for ((name, path), content) in list.iter().zip(&contents) {
            assert_eq!(&bytes(&tree(&mount, "hostile").join(path)), content, "{name:?}");
        }
        let want: BTreeSet<Vec<u8>> = list.iter().map(|(_, path)| path.clone().into_bytes()).collect();
        assert_eq!(text(&files(&tree(&mount, "hostile"))), text(&want));
        assert_eq!(bytes(&tree(&mount, "bytes/%FF/ä%C3@-3.npy")), 1.5_f32.to_le_bytes());
        if round == 0 {
            sealed(&mount.at("hostile"));
            sealed(&mount.at("bytes"));
        }
    }
    // Nothing is found by another name than its own.
    for name in ["nested/../plain.npy/x", "w@5.npy", "%2e.npy", "100%.npy", "plain@0.npy", "plain@#1.npy", "Plain.npy"]
    {
        assert!(!tree(&mount, "hostile").join(name).exists(), "{name}");
    }
}

/// Proves T2.
fn tensors_of_one_name_are_told_apart(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let list = [
        ("loss", 1, Some(1), "loss@1.npy"),
        ("loss", 2, Some(1), "loss@2.npy"),
        ("loss", 1, Some(2), "loss@1@EVAL.npy"),
        ("loss", 1, Some(1), "loss@1@#2.npy"),
        ("loss", 1, None, "loss@1@NONE.npy"),
        ("loss", 1, Some(2), "loss@1@EVAL@#2.npy"),
        ("deep/loss", 1, Some(2), "deep/loss@1.npy"),
        ("loss", 1, Some(1), "loss@1@#3.npy"),
    ];
    let path = mount.at("events");
    let mut file = File::create(&path).unwrap();
    let mut written = BTreeMap::new();
    for (n, (name, step, mode, path)) in list.into_iter().enumerate() {
        file.write_all(&event(name.as_bytes(), step, mode, n as f32)).unwrap();
        written.insert(path.as_bytes().to_vec(), n as f32);
        // What was there keeps its name.
        let directory = tree(&mount, "events");
        assert_eq!(text(&files(&directory)), text(&written.keys().cloned().collect()));
        for (path, number) in &written {
            assert_eq!(bytes(&directory.join(OsStr::from_bytes(path))), number.to_le_bytes());
        }
    }
    drop(file);
    sealed(&path);
    assert_eq!(text(&files(&tree(&mount, "events"))), text(&written.keys().cloned().collect()));
}

/// Proves T4.
fn an_event_file_is_followed_while_it_is_written(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let mut file = File::create(mount.at("events")).unwrap();
    let directory = tree(&mount, "events");
    let frames: Vec<Vec<u8>> = (0..60).map(|n| event(b"train/loss", n, None, n as f32)).collect();
    let mut first: Option<(File, u64)> = None;
    for (n, frame) in frames.iter().enumerate() {
        // A frame that is not complete is not shown.
        let (half, rest) = frame.split_at(frame.len() / 2);
        file.write_all(half).unwrap();
        if n > 0 {
            assert_eq!(files(&directory).len(), n);
        } else {
            assert!(!directory.exists());
        }
        file.write_all(rest).unwrap();
        assert_eq!(files(&directory).len(), n + 1);
        assert_eq!(bytes(&directory.join(format!("train/loss@{n}.npy"))), (n as f32).to_le_bytes());
        // What was there is the same file all along.
        let path = directory.join("train/loss@0.npy");
        let (open, ino) = first.get_or_insert_with(|| {
            let open = File::open(&path).unwrap();
            let ino = open.metadata().unwrap().ino();
            (open, ino)
        });
        assert_eq!(fs::metadata(&path).unwrap().ino(), *ino);
        let mut whole = vec![0; open.metadata().unwrap().len() as usize];
        open.read_exact_at(&mut whole, 0).unwrap();
        assert_eq!(npy(&whole).1, 0_f32.to_le_bytes());
    }
    // Started over: nothing of what was there is.
    file.set_len(0).unwrap();
    assert!(!directory.exists());
    let more: Vec<u8> = (0..80).flat_map(|n| event(b"other", n, None, 7.0)).collect();
    file.write_all_at(&more, 0).unwrap();
    assert_eq!(files(&directory).len(), 80);
    assert_eq!(bytes(&directory.join("other@79.npy")), 7_f32.to_le_bytes());
}

/// Proves T5.
fn an_open_tensor_shows_one_version(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let path = mount.at("model");
    let large = |byte: u8| vec![byte; 400_000];
    let place = tree(&mount, "model/x.npy");
    let read = |file: &File| {
        let mut all = vec![0; file.metadata().unwrap().len() as usize];
        // From the server, not from the kernel's cache.
        // SAFETY: plain system call.
        unsafe { libc::posix_fadvise(std::os::fd::AsRawFd::as_raw_fd(file), 0, 0, libc::POSIX_FADV_DONTNEED) };
        file.read_exact_at(&mut all, 0).map(|()| npy(&all).1.to_vec())
    };
    let stale = |result: std::io::Result<Vec<u8>>, old: &[u8]| match result {
        Ok(bytes) => assert!(bytes == old, "torn"),
        Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ESTALE)),
    };
    fs::write(&path, safetensors(&[("x", &large(1))])).unwrap();
    let first = File::open(&place).unwrap();
    assert_eq!(read(&first).unwrap(), large(1));

    // Replaced: the version that was opened, or none.
    fs::write(&path, safetensors(&[("x", &large(2))])).unwrap();
    stale(read(&first), &large(1));
    let second = File::open(&place).unwrap();
    assert_eq!(read(&second).unwrap(), large(2));
    fs::write(mount.at("new"), safetensors(&[("x", &large(3)), ("y", b"y")])).unwrap();
    fs::rename(mount.at("new"), &path).unwrap();
    stale(read(&second), &large(2));
    let third = File::open(&place).unwrap();
    assert_eq!(read(&third).unwrap(), large(3));
    assert_eq!(bytes(&tree(&mount, "model/y.npy")), b"y");

    // An event file that grows goes on being read; one that is started over does not, even if it is longer than before.
    let mut events = File::create(mount.at("events")).unwrap();
    let step = |n| event_of_bytes(b"x", n, &large(n as u8));
    events.write_all(&step(1)).unwrap();
    let growing = File::open(tree(&mount, "events/x@1.npy")).unwrap();
    for n in 2..5 {
        events.write_all(&step(n)).unwrap();
        assert_eq!(read(&growing).unwrap(), large(1));
    }
    events.set_len(0).unwrap();
    let again: Vec<u8> = (11..16).flat_map(step).collect();
    events.write_all_at(&again, 0).unwrap();
    assert_eq!(read(&growing).unwrap_err().raw_os_error(), Some(libc::ESTALE));
    assert_eq!(bytes(&tree(&mount, "events/x@11.npy")), large(11));

    // Changed in place: no longer readable, until it is opened again.
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&[9; 10], fs::metadata(&path).unwrap().len() - 100).unwrap();
    assert_eq!(read(&third).unwrap_err().raw_os_error(), Some(libc::ESTALE));
    let changed = bytes(&place);
    assert!(changed.contains(&9) && changed.contains(&3) && changed.len() == 400_000);
    // And cut short.
    let fourth = File::open(&place).unwrap();
    file.set_len(200_000).unwrap();
    assert_eq!(read(&fourth).unwrap_err().raw_os_error(), Some(libc::ESTALE));
    assert!(!place.exists());
}

/// Proves T1, T5.
fn removed_and_moved_files(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    fs::create_dir_all(mount.at("a/b")).unwrap();
    fs::write(mount.at("a/b/model"), safetensors(&[("x", b"one"), ("deep/y", b"two")])).unwrap();
    let mut open = File::open(tree(&mount, "a/b/model/x.npy")).unwrap();
    let here = File::open(tree(&mount, "a/b/model/deep")).unwrap();
    fs::rename(mount.at("a/b"), mount.at("c")).unwrap();
    assert!(!tree(&mount, "a/b").exists());
    assert_eq!(bytes(&tree(&mount, "c/model/deep/y.npy")), b"two");
    // A file of two names is in two places.
    fs::hard_link(mount.at("c/model"), mount.at("a/other")).unwrap();
    fs::hard_link(mount.at("c/model"), mount.at("a/third")).unwrap();
    for place in ["c/model", "a/other", "a/third"] {
        assert_eq!(text(&files(&tree(&mount, place))), ["deep/y.npy", "x.npy"]);
        assert_eq!(fs::canonicalize(tree(&mount, place).join("deep")).unwrap(), tree(&mount, place).join("deep"));
    }
    let inos: BTreeSet<u64> = ["c/model", "a/other", "a/third"]
        .iter()
        .map(|place| fs::metadata(tree(&mount, place)).unwrap().ino())
        .collect();
    assert_eq!(inos.len(), 3);
    for name in ["c/model", "a/other", "a/third"] {
        fs::remove_file(mount.at(name)).unwrap();
        assert!(!tree(&mount, name).exists());
    }
    mount.sync();
    let mut all = Vec::new();
    match open.read_to_end(&mut all) {
        Ok(_) => assert_eq!(npy(&all).1, b"one"),
        Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ESTALE)),
    }
    drop(here);
    assert_eq!(fs::read_dir(tree(&mount, "c")).unwrap().count(), 0);
    fs::remove_dir(mount.at("c")).unwrap();
    assert!(!tree(&mount, "c").exists());
}

// --- permissions -------------------------------------------------------------------------------------

fn needs_root(setup: &Setup) -> bool {
    if !is_root() {
        setup.skip("needs root, to become somebody else");
    }
    !is_root()
}

/// What the owner, group and others may do with the file they may do with its tensors, and no more.
///
/// Proves T3.
fn who_may_not_read_a_file_may_not_read_its_tensors(setup: Setup) {
    if needs_root(&setup) {
        return;
    }
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    fs::set_permissions(mount.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let model = safetensors(&[("x", b"secret"), ("deep/y", b"secret")]);
    // Modes of a directory and of a file in it: uid 1000 owns both, 2000 is in their group, 3000 is nobody.
    for (n, (directory, file)) in [
        (0o755, 0o644),
        (0o755, 0o640),
        (0o755, 0o600),
        (0o755, 0o604),
        (0o755, 0o000),
        (0o755, 0o711),
        (0o750, 0o644),
        (0o700, 0o666),
        (0o711, 0o644),
        (0o744, 0o644),
    ]
    .into_iter()
    .enumerate()
    {
        let (dir, path) = (mount.at(format!("d{n}")), mount.at(format!("d{n}/model")));
        fs::create_dir(&dir).unwrap();
        fs::write(&path, &model).unwrap();
        for (path, mode) in [(&path, file), (&dir, directory)] {
            std::os::unix::fs::chown(path, Some(1000), Some(2000)).unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        }
        let place = format!(".tensorfs/tensors/d{n}");
        for uid in [1000, 2000, 3000] {
            let reads = may(&mount, uid, &format!("cat d{n}/model"));
            let lists = may(&mount, uid, &format!("ls d{n}"));
            let what = format!("{directory:o} {file:o} {uid}");
            assert_eq!(may(&mount, uid, &format!("cat {place}/model/x.npy")), reads, "{what}");
            assert_eq!(may(&mount, uid, &format!("cat {place}/model/deep/y.npy")), reads, "{what}");
            assert_eq!(may(&mount, uid, &format!("ls {place}/model")), reads, "{what}");
            assert_eq!(may(&mount, uid, &format!("ls {place}/model/deep")), reads, "{what}");
            assert_eq!(may(&mount, uid, &format!("ls {place}")), lists, "{what}");
            assert_eq!(may(&mount, uid, &format!("getfattr -n user.tensorfs.tensors d{n}/model")), reads, "{what}");
            assert!(!may(&mount, uid, &format!("test -w {place}/model/x.npy")), "{what}");
        }
        // Root reads everything, as ever.
        assert_eq!(bytes(&mount.at(format!("{place}/model/x.npy"))), b"secret");
    }
    // The root of the mount counts, too.
    fs::set_permissions(mount.path(), fs::Permissions::from_mode(0o711)).unwrap();
    assert!(may(&mount, 3000, "cat d0/model .tensorfs/tensors/d0/model/x.npy"));
    assert!(!may(&mount, 3000, "ls .tensorfs/tensors"));
    fs::set_permissions(mount.path(), fs::Permissions::from_mode(0o755)).unwrap();
}

/// Proves T3.
fn a_change_of_permission_counts_at_once(setup: Setup) {
    if needs_root(&setup) {
        return;
    }
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    fs::set_permissions(mount.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::create_dir(mount.at("d")).unwrap();
    let path = mount.at("d/model");
    fs::write(&path, safetensors(&[("x", b"secret")])).unwrap();
    let readable = || may(&mount, 3000, "cat .tensorfs/tensors/d/model/x.npy && ls .tensorfs/tensors/d/model");
    let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    for _ in 0..3 {
        assert!(readable());
        set(&path, 0o600);
        assert!(!readable());
        set(&path, 0o644);
        assert!(readable());
        set(&mount.at("d"), 0o700);
        assert!(!readable());
        set(&mount.at("d"), 0o755);
        std::os::unix::fs::chown(&path, Some(3000), None).unwrap();
        set(&path, 0o044);
        // The owner's bits count for the owner.
        assert!(!readable());
        set(&path, 0o400);
        assert!(readable());
        std::os::unix::fs::chown(&path, Some(0), None).unwrap();
        set(&path, 0o644);
    }
    // Who is inside already loses the right like anybody else.
    let mut inside = Command::new("setpriv")
        .args(["--reuid", "3000", "--regid", "3000", "--clear-groups", "bash", "-c"])
        .arg("cd .tensorfs/tensors/d/model && ls && echo in && read && ls; echo $? && read && ls && echo again")
        .current_dir(mount.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(inside.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut stdin = inside.stdin.take().unwrap();
    assert_eq!(lines.by_ref().take(2).collect::<Vec<_>>(), ["x.npy", "in"]);
    set(&path, 0o600);
    writeln!(stdin).unwrap();
    assert_ne!(lines.next().unwrap(), "x.npy");
    set(&path, 0o644);
    writeln!(stdin).unwrap();
    assert_eq!(lines.collect::<Vec<_>>(), ["x.npy", "again"]);
    assert!(inside.wait().unwrap().success());
}

/// Lists grant and refuse what they grant and refuse for the file itself.
///
/// Proves T3.
fn access_lists_count(setup: Setup) {
    if Command::new("setfacl").arg("--version").output().is_err() {
        return setup.skip("setfacl is not installed");
    }
    if needs_root(&setup) {
        return;
    }
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    fs::set_permissions(mount.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let model = safetensors(&[("x", b"secret"), ("deep/y", b"secret")]);
    for (n, (mode, list, on)) in [
        (0o600, "u:3000:r", "model"),
        (0o644, "u:3000:-", "model"),
        (0o600, "g:3000:r", "model"),
        (0o644, "g:3000:-", "model"),
        (0o600, "u:3000:rw,m::-", "model"),
        // The mask does not grant reading: whom the list names must not be taken for one of the others.
        (0o644, "u:3000:rw,m::w", "model"),
        (0o644, "u:3000:rwx,m::x", "model"),
        (0o604, "u:3000:w", "model"),
        (0o700, "u:3000:x", "."),
        (0o700, "u:3000:r", "."),
        (0o700, "u:3000:rx", "."),
        (0o755, "u:3000:-", "."),
        (0o755, "u:3000:w,m::w", "."),
    ]
    .into_iter()
    .enumerate()
    {
        let dir = mount.at(format!("d{n}"));
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("model"), &model).unwrap();
        fs::set_permissions(dir.join(on), fs::Permissions::from_mode(mode)).unwrap();
        shell(&dir, &format!("setfacl -m {list} {on}"));
        for uid in [3000, 4000] {
            let what = format!("{mode:o} {list} {on} {uid}");
            for (file, tensor) in [
                (format!("cat d{n}/model"), format!("cat .tensorfs/tensors/d{n}/model/x.npy")),
                (format!("cat d{n}/model"), format!("cat .tensorfs/tensors/d{n}/model/deep/y.npy")),
                (format!("cat d{n}/model"), format!("ls .tensorfs/tensors/d{n}/model")),
                (format!("ls d{n}"), format!("ls .tensorfs/tensors/d{n}")),
            ] {
                let (may_file, may_tensor) = (may(&mount, uid, &file), may(&mount, uid, &tensor));
                assert_eq!(may_tensor, may_file, "{what}: {tensor}");
            }
        }
    }
}

// --- what it leaves alone ----------------------------------------------------------------------------

/// Proves T6.
fn reading_tensors_changes_nothing(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let path = mount.at("model");
    fs::write(&path, safetensors(&[("x", b"abc")])).unwrap();
    let old = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let times = fs::FileTimes::new().set_accessed(old).set_modified(old);
    File::options().write(true).open(&path).unwrap().set_times(times).unwrap();
    // From the server, not from what the kernel remembers.
    let seen = |path: &Path| {
        let path = c(path);
        // SAFETY: all zeroes is a valid `statx`.
        let mut stat: libc::statx = unsafe { std::mem::zeroed() };
        let (flags, mask) = (libc::AT_STATX_FORCE_SYNC, libc::STATX_BASIC_STATS);
        // SAFETY: a NUL-terminated path and a buffer of the right type.
        let done = unsafe { libc::statx(libc::AT_FDCWD, path.as_ptr(), flags, mask, &mut stat) };
        assert_eq!(done, 0);
        let time = |time: libc::statx_timestamp| (time.tv_sec, time.tv_nsec);
        (time(stat.stx_atime), time(stat.stx_mtime), time(stat.stx_ctime), stat.stx_nlink, stat.stx_blocks)
    };
    let before = seen(&path);
    assert_eq!(before.0, (1_000_000_000, 0));
    assert_eq!(bytes(&tree(&mount, "model/x.npy")), b"abc");
    assert_eq!(attribute(&path, "tensors").unwrap(), "1");
    assert_eq!(seen(&path), before);
    // Also with the file open, when the segment's own times count.
    let open = OpenOptions::new().read(true).custom_flags(libc::O_NOATIME).open(&path).unwrap();
    assert_eq!(bytes(&tree(&mount, "model/x.npy")), b"abc");
    assert_eq!(seen(&path), before);
    drop(open);
    assert_eq!(seen(&path), before);
    // And the tree's files have the file's times.
    assert_eq!(fs::metadata(tree(&mount, "model/x.npy")).unwrap().mtime(), 1_000_000_000);
}

/// An open tensor does not count as an open file: a replace keeps the old version, and a file that is first opened
/// O_SYNC is in server mode.
///
/// Proves T6.
fn reading_tensors_is_not_in_the_way(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let path = mount.at("model");
    let count = |name: &str| mount.info()["counters"][name].as_u64().unwrap();
    for round in 0..4 {
        fs::write(&path, safetensors(&[("x", &vec![round; 1 << 20])])).unwrap();
        let open = File::open(tree(&mount, "model/x.npy")).unwrap();
        let mut some = [0; 1000];
        open.read_exact_at(&mut some, 4096).unwrap();
        assert_eq!(some, [round; 1000]);
        // SAFETY: a read-only mapping of an open file, which is unmapped again.
        let map = unsafe {
            let map = libc::mmap(
                std::ptr::null_mut(),
                8192,
                libc::PROT_READ,
                libc::MAP_SHARED,
                std::os::fd::AsRawFd::as_raw_fd(&open),
                0,
            );
            assert_ne!(map, libc::MAP_FAILED);
            assert_eq!(*map.cast::<u8>().add(5000), round);
            map
        };
        let (through_server, passed) = (count("opened_server"), count("opened_passthrough"));
        let synchronous = OpenOptions::new().write(true).custom_flags(libc::O_SYNC).open(&path).unwrap();
        assert_eq!((count("opened_server"), count("opened_passthrough")), (through_server + 1, passed));
        drop(synchronous);
        let (replaced, in_place) = (count("replaced"), count("truncated_in_place"));
        fs::write(&path, safetensors(&[("x", &vec![round; 1 << 20])])).unwrap();
        assert_eq!((count("replaced"), count("truncated_in_place")), (replaced + 1, in_place));
        // SAFETY: it was mapped above.
        unsafe { libc::munmap(map, 8192) };
    }
}

/// Proves T1, N7.
fn the_tree_cannot_be_changed(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    fs::create_dir(mount.at("d")).unwrap();
    fs::write(mount.at("d/model"), safetensors(&[("x", b"abc"), ("deep/y", b"def")])).unwrap();
    for (directory, name) in
        [("", "d"), ("d", "model"), ("d/model", "x.npy"), ("d/model", "deep"), ("d/model/deep", "y.npy")]
    {
        let (directory, path) = (tree(&mount, directory), tree(&mount, directory).join(name));
        assert!(File::create(directory.join("new")).is_err());
        assert!(fs::create_dir(directory.join("new")).is_err());
        assert!(std::os::unix::fs::symlink("x", directory.join("new")).is_err());
        assert!(fs::remove_file(&path).is_err() && fs::remove_dir(&path).is_err());
        assert!(fs::rename(&path, directory.join("new")).is_err());
        assert!(fs::rename(&path, mount.at("new")).is_err());
        assert!(fs::rename(mount.at("d"), directory.join("new")).is_err());
        assert!(fs::hard_link(&path, mount.at("new")).is_err());
        assert!(fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).is_err());
        assert!(OpenOptions::new().write(true).open(&path).is_err());
        let (file, name) = (c(&path), CString::new("user.x").unwrap());
        // SAFETY: plain system call; the value is as long as said.
        let set = unsafe { libc::setxattr(file.as_ptr(), name.as_ptr(), b"x".as_ptr().cast(), 1, 0) };
        assert_eq!((set, Errno::last()), (-1, Errno::EPERM));
    }
    assert_eq!(text(&files(&tree(&mount, ""))), ["d/model/deep/y.npy", "d/model/x.npy"]);
    assert_eq!(fs::read_dir(mount.path()).unwrap().count(), 1);
    // A tool that goes through it meets nothing odd.
    let copy = mount.host().join("copy");
    run_ok(Command::new("cp").arg("-a").arg(tree(&mount, "d")).arg(&copy));
    assert_eq!(bytes(&copy.join("model/deep/y.npy")), b"def");
    run_ok(Command::new("cp").arg("-r").arg(tree(&mount, "d")).arg(mount.at("copy")));
    assert_eq!(bytes(&mount.at("copy/model/deep/y.npy")), b"def");
    run_ok(Command::new("tar").arg("-cf").arg(mount.host().join("x.tar")).arg("-C").arg(tree(&mount, "")).arg("d"));
    assert_eq!(run_ok(Command::new("find").arg(tree(&mount, "d")).args(["-type", "f"])).lines().count(), 2);
    run_ok(Command::new("cp").arg(mount.at(".tensorfs/info")).arg(mount.at("info")));
    assert!(fs::metadata(mount.at("info")).unwrap().len() > 100);
}

// --- attributes --------------------------------------------------------------------------------------

/// Proves T7.
fn attributes_say_what_a_file_is(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let path = mount.at("model");
    let large = vec![5; 100_000];
    let content = safetensors(&[("a", &large), ("b", b"small"), ("c", &large)]);
    let mut file = File::create(&path).unwrap();
    assert_eq!(attribute(&path, "state").unwrap(), "open");
    file.write_all(&content).unwrap();
    assert_eq!(attribute(&path, "tensors").unwrap(), "3");
    assert_eq!(attribute(&path, "checksum"), Err(Errno::ENODATA));
    drop(file);
    sealed(&path);
    assert_eq!(attribute(&path, "checksum").unwrap(), format!("{:08x}", crc32c(&content)));
    // A run for the header, one for each large tensor, one for what is between.
    let records: u32 = attribute(&path, "records").unwrap().parse().unwrap();
    assert!((3..=5).contains(&records), "{records}");
    // It can be written again: nothing is known for sure.
    let mut file = OpenOptions::new().append(true).open(&path).unwrap();
    assert_eq!(attribute(&path, "state").unwrap(), "open");
    assert_eq!(attribute(&path, "checksum"), Err(Errno::ENODATA));
    file.write_all(b"more").unwrap();
    drop(file);
    mount.sync();
    let state = attribute(&path, "state").unwrap();
    assert!(["committed", "sealed"].contains(&&state[..]), "{state}");
    sealed(&path);
    let whole = [&content[..], b"more"].concat();
    assert_eq!(attribute(&path, "checksum").unwrap(), format!("{:08x}", crc32c(&whole)));
    // No longer a safetensors file.
    assert_eq!(attribute(&path, "tensors").unwrap(), "0");
    // Replaced, but not complete yet: what is said is of the new bytes.
    fs::write(&path, &content).unwrap();
    sealed(&path);
    let mut file = File::create(&path).unwrap();
    file.write_all(b"text").unwrap();
    assert_eq!(attribute(&path, "tensors").unwrap(), "0");
    assert_eq!(attribute(&path, "state").unwrap(), "open");
    assert_eq!(attribute(&path, "checksum"), Err(Errno::ENODATA));
    drop(file);
    // Other things have none.
    fs::create_dir(mount.at("d")).unwrap();
    for name in ["state", "records", "tensors", "checksum"] {
        assert_eq!(attribute(&mount.at("d"), name), Err(Errno::ENODATA));
    }
    assert_eq!(attribute(&path, "other"), Err(Errno::ENODATA));
    fs::write(mount.at("empty"), "").unwrap();
    assert_eq!(attribute(&mount.at("empty"), "tensors").unwrap(), "0");
}

/// Proves T8.
fn attributes_are_not_copied_and_cannot_be_set(setup: Setup) {
    if Command::new("setfattr").arg("--version").output().is_err() {
        return setup.skip("setfattr is not installed");
    }
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let path = mount.at("model");
    fs::write(&path, safetensors(&[("x", b"abc")])).unwrap();
    shell(mount.path(), "setfattr -n user.mine -v 1 model");
    sealed(&path);
    assert_eq!(shell(mount.path(), "getfattr -d -m - model | grep user").trim(), "user.mine=\"1\"");
    shell(mount.path(), "mkdir d");
    for name in ["state", "checksum", "anything"] {
        for what in ["model", "d"] {
            assert!(
                shell(mount.path(), &format!("setfattr -n user.tensorfs.{name} -v x {what} 2>&1 || true"))
                    .contains("not permitted")
            );
            assert!(
                shell(mount.path(), &format!("setfattr -x user.tensorfs.{name} {what} 2>&1 || true"))
                    .contains("not permitted")
            );
        }
    }
    assert_eq!(attribute(&path, "state").unwrap(), "sealed");
    // Copies have the user's attributes, and none of these; within the mount, out of it, and back.
    let host = mount.host();
    shell(
        mount.path(),
        &format!("cp -a --preserve=all model copy && cp -a --preserve=all model {}/out", host.display()),
    );
    assert_eq!(shell(mount.path(), "getfattr -d -m - copy | grep user").trim(), "user.mine=\"1\"");
    let out = shell(&host, "getfattr -d -m - out | grep user || true");
    assert!(!out.contains("tensorfs"), "{out}");
    shell(mount.path(), &format!("cp -a --preserve=all {}/out back", host.display()));
    assert_eq!(bytes(&tree(&mount, "back/x.npy")), b"abc");
    // What was dumped is restored, but for these.
    shell(
        mount.path(),
        "getfattr --absolute-names -d -m - model > dump; setfattr -x user.mine model; setfattr --restore=dump",
    );
    assert_eq!(shell(mount.path(), "getfattr -d -m - model | grep user").trim(), "user.mine=\"1\"");
}

/// A checkpoint of many tensors, from its bytes and from its seals.
///
/// Proves T9.
fn a_checkpoint_of_many_tensors(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let names: Vec<String> = (0..20_000).map(|n| format!("layer{}/block/{n}", n % 3)).collect();
    let contents: Vec<[u8; 4]> = (0..20_000_u32).map(u32::to_le_bytes).collect();
    let tensors: Vec<(&str, &[u8])> =
        names.iter().zip(&contents).map(|(name, bytes)| (&name[..], &bytes[..])).collect();
    let path = mount.at("model");
    fs::write(&path, safetensors(&tensors)).unwrap();
    for round in 0..2 {
        let found = files(&tree(&mount, "model"));
        assert_eq!(found.len(), names.len());
        for n in [0, 1, 7777, 19_999] {
            assert!(found.contains(format!("{}.npy", names[n]).as_bytes()));
            assert_eq!(bytes(&tree(&mount, "model").join(format!("{}.npy", names[n]))), contents[n]);
        }
        if round == 0 {
            sealed(&path);
        }
    }
}

// --- bounds ------------------------------------------------------------------------------------------

/// The most memory that the server has had, in KiB.
fn peak(mount: &Mount) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", mount.pid().unwrap())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().split(' ').next().unwrap().parse().unwrap()
}

/// An event file of 50,000 numbers, or a million with TENSORFS_LARGE=1: it is listed whole, in bounded memory.
///
/// Proves T9.
fn a_file_of_many_tensors_takes_little_memory(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let count = if std::env::var("TENSORFS_LARGE").as_deref() == Ok("1") { 1_000_000 } else { 50_000 };
    let mut file = std::io::BufWriter::new(File::create(mount.at("events")).unwrap());
    for n in 0..count {
        file.write_all(&event(format!("group{}/loss", n % 7).as_bytes(), n, None, n as f32)).unwrap();
    }
    // Kept open: what is listed is not from a seal.
    file.flush().unwrap();
    let before = peak(&mount);
    let mut listed = 0;
    for group in 0..7 {
        let directory = tree(&mount, "events").join(format!("group{group}"));
        let mut steps = BTreeSet::new();
        for entry in fs::read_dir(&directory).unwrap() {
            let name = entry.unwrap().file_name();
            let step = name.to_str().unwrap().strip_prefix("loss@").unwrap().strip_suffix(".npy").unwrap();
            assert!(steps.insert(step.parse::<i64>().unwrap()), "{step} twice");
        }
        assert!(steps.iter().all(|step| step % 7 == group));
        listed += steps.len() as i64;
    }
    assert_eq!(listed, count);
    for n in [0, 1, count / 2, count - 1] {
        let path = tree(&mount, "events").join(format!("group{}/loss@{n}.npy", n % 7));
        assert_eq!(bytes(&path), (n as f32).to_le_bytes());
    }
    let grown = peak(&mount) - before;
    // Two versions of an index of 28 bytes a tensor, while it grows; what recognition takes; and what the allocator keeps.
    let bound = (count as u64 * 2 * 40 / 1024) + (96 << 10);
    assert!(grown < bound, "{grown} KiB more, and {bound} are allowed");
}
