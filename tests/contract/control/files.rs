//! Every tensor is a file, with the bytes that its own library reads.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tensorfs_formats::crc32c;
use tensorfs_tests::{Mount, Setup, client, on_mounts, run_ok, safetensors, samples};

use super::{attribute, bytes, files, npy, sealed, text, tree};

on_mounts!(
    every_tensor_is_a_file,
    tensors_are_what_their_libraries_read,
    tensors_of_torch_are_what_torch_reads,
    what_is_no_tensor_is_not_there,
);

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
    let Some(python) = setup.python(environment) else { return };
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    run_ok(client(&python, "make_formats.py").arg(mount.at("made")));
    run_ok(client(&python, "control_client.py").arg(mount.at("made")).arg(tree(&mount, "made")).arg(mount.host()));
}

/// smdebug, safetensors, NumPy and tensorboardX write; NumPy reads the tree.
///
/// Proves T1, T2.
fn tensors_are_what_their_libraries_read(setup: Setup) {
    check_with_libraries(setup, "small");
}

fn tensors_of_torch_are_what_torch_reads(setup: Setup) {
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
    assert_eq!(
        text(&listed(&mount.at(".tensorfs"))),
        ["README", "accesses", "info", "metrics", "placement", "tensors", "trace"]
    );
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
