//! What is said of a file that was not written to its end.

use std::fs;
use std::path::Path;

use serde_json::Value;
use tensorfs_tests::{Mount, Setup, on_mounts, samples, wait_until};

use super::attribute;

on_mounts!(
    a_file_that_ends_early_is_interrupted,
    an_event_file_that_ends_in_no_frame_is_interrupted,
    a_zip_that_its_library_reads_is_not_interrupted
);

/// What `verify` says: its exit status, and the verdict.
fn verify(mount: &Mount, path: &Path) -> (Option<i32>, Value) {
    let output = mount.tensorfs(["verify", "--json", path.to_str().unwrap()]);
    let text = String::from_utf8(output.stdout).unwrap();
    let line: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    (output.status.code(), line["verdict"].clone())
}

/// A file that was never whole is told from one that is, in every format that says how long it is, and no longer once
/// it was saved again.
///
/// Proves T7, T12.
fn a_file_that_ends_early_is_interrupted(setup: Setup) {
    let mut mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let torch = ["torch2-tensor.pt", "torch2-dcp.distcp"];
    let hdf5 = ["plain.h5", "userblock.h5"];
    let ends = ["table.parquet", "table.arrow", "stream.arrow"];
    let formats = ["model.safetensors", "f4.npy", "arrays.npz", "board.tfevents"];
    let formats: Vec<&str> = [&formats[..], &torch, &hdf5, &ends].concat();
    let cut = |name: &str, mount: &Mount| mount.at(format!("cut-{name}"));
    let bytes = |name: &str| match name {
        "table.parquet" => b"PAR1\x15\x04\x15anything at all\x06\0\0\0PAR1".to_vec(),
        "table.arrow" => b"ARROW1\0\0\xff\xff\xff\xff\0\0\0\0anything\x06\0\0\0ARROW1".to_vec(),
        _ => fs::read(samples().join(name)).unwrap(),
    };
    for &name in &formats {
        let whole = bytes(name);
        fs::write(mount.at(name), &whole).unwrap();
        fs::write(cut(name, &mount), &whole[..whole.len() - 1]).unwrap();
    }
    // Nothing that promises an end: text, what only begins as a stream of Arrow's, Feather of the first kind, encrypted
    // Parquet, and HDF5 that something was appended to.
    let streams = ["text", "schema.arrow", "first.feather", "encrypted.parquet", "longer.h5"];
    fs::write(mount.at(streams[0]), "PAR1, a text that promises nothing").unwrap();
    fs::write(mount.at(streams[1]), b"\xff\xff\xff\xff\x10\0\0\0\0\0\x0a\0anything").unwrap();
    fs::write(mount.at(streams[2]), b"FEA1\0\0\0\0anything").unwrap();
    fs::write(mount.at(streams[3]), b"PARE\x15\x04anything").unwrap();
    fs::write(mount.at(streams[4]), [&bytes(hdf5[0])[..], b"more"].concat()).unwrap();
    mount.tensorfs_ok(["seal", mount.path().to_str().unwrap()]);
    let check = |mount: &Mount| {
        for &name in &formats {
            assert_eq!(attribute(&mount.at(name), "state").unwrap(), "sealed", "{name}");
            assert_eq!(attribute(&cut(name, mount), "state").unwrap(), "interrupted", "{name}");
            assert_eq!(verify(mount, &mount.at(name)), (Some(0), "ok".into()), "{name}");
            assert_eq!(verify(mount, &cut(name, mount)), (Some(5), "interrupted".into()), "{name}");
        }
        for name in streams {
            assert_eq!(verify(mount, &mount.at(name)), (Some(0), "ok".into()), "{name}");
        }
    };
    check(&mount);
    let said = mount.tensorfs(["verify", cut(formats[0], &mount).to_str().unwrap()]);
    let text = String::from_utf8(said.stdout).unwrap();
    assert!(text.contains("interrupted: the tensors take") && text.contains("0 whole, 1 interrupted"), "{text}");
    let listed = mount.tensorfs_ok(["ls", mount.path().to_str().unwrap()]);
    assert_eq!(listed.matches("interrupted").count(), formats.len(), "{listed}");
    // The log knows, also while the pool is not mounted.
    mount.umount();
    let listed = mount.tensorfs_ok(["ls", mount.pool().to_str().unwrap()]);
    assert_eq!(listed.matches("interrupted").count(), formats.len(), "{listed}");
    mount.mount();
    check(&mount);
    for name in formats {
        let path = cut(name, &mount);
        fs::write(&path, bytes(name)).unwrap();
        wait_until("saved again", || attribute(&path, "state").unwrap() == "sealed");
    }
}

/// Whatever reads event files ends there: what was reserved for a writer who was killed, or was never stored.
///
/// Proves T12, T13.
fn an_event_file_that_ends_in_no_frame_is_interrupted(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let whole = fs::read(samples().join("board.tfevents")).unwrap();
    fs::write(mount.at("whole"), &whole).unwrap();
    let tails: [(&str, &[u8]); 3] = [("zeroes", &[0; 5000]), ("few", &[0; 12]), ("text", b"this is no frame at all")];
    for (name, tail) in tails {
        fs::write(mount.at(name), [&whole[..], tail].concat()).unwrap();
        assert_eq!(attribute(&mount.at(name), "complete").unwrap(), "incomplete", "{name}");
    }
    mount.tensorfs_ok(["seal", mount.path().to_str().unwrap()]);
    for (name, _) in tails {
        let file = mount.at(name);
        assert_eq!(attribute(&file, "complete").unwrap(), "incomplete", "{name}");
        assert_eq!(attribute(&file, "state").unwrap(), "interrupted", "{name}");
        assert_eq!(attribute(&file, "tensors"), attribute(&mount.at("whole"), "tensors"), "{name}");
        assert_eq!(verify(&mount, &file), (Some(5), "interrupted".into()), "{name}");
    }
    assert_eq!(verify(&mount, &mount.at("whole")), (Some(0), "ok".into()));
    assert_eq!(attribute(&mount.at("whole"), "complete").unwrap(), "complete");
}

/// A shorter archive was written over a longer file, or the rest was reserved.
///
/// Proves T12, T13.
fn a_zip_that_its_library_reads_is_not_interrupted(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    for name in ["arrays.npz", "torch2-tensor.pt"] {
        let whole = fs::read(samples().join(name)).unwrap();
        fs::write(mount.at("whole"), &whole).unwrap();
        let tensors = attribute(&mount.at("whole"), "tensors").unwrap();
        for tail in [&[0; 4096][..], b"what was there before"] {
            fs::write(mount.at(name), [&whole[..], tail].concat()).unwrap();
            assert_eq!(attribute(&mount.at(name), "complete").unwrap(), "complete", "{name}");
            mount.tensorfs_ok(["seal", mount.at(name).to_str().unwrap()]);
            assert_eq!(attribute(&mount.at(name), "state").unwrap(), "sealed", "{name}");
            assert_eq!(attribute(&mount.at(name), "complete").unwrap(), "complete", "{name}");
            assert_eq!(attribute(&mount.at(name), "tensors").unwrap(), tensors, "{name}");
            assert_eq!(verify(&mount, &mount.at(name)), (Some(0), "ok".into()), "{name}");
        }
        // A second save that was cut short.
        fs::write(mount.at(name), [&whole[..], &whole[..whole.len() / 2]].concat()).unwrap();
        mount.tensorfs_ok(["seal", mount.at(name).to_str().unwrap()]);
        assert_eq!(attribute(&mount.at(name), "state").unwrap(), "interrupted", "{name}");
        assert_eq!(attribute(&mount.at(name), "complete").unwrap(), "incomplete", "{name}");
    }
}
