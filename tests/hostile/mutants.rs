//! Fuzzing by mutants of seeds, on the stable toolchain: nothing that reads untrusted bytes panics on any.
//!
//! `TENSORFS_FUZZ=N` makes N mutants for each of the cheapest targets, and fewer for the costly ones (default: 3,000);
//! `TENSORFS_FUZZ_FROM=N` starts with another mutant than the first. Bytes that make a target panic are kept, and the
//! message says how to run them again: `TENSORFS_FUZZ_INPUT=FILE`. `tests/hostile/cargo-fuzz` has the same targets for
//! cargo-fuzz.

use std::io::{Read, Seek, SeekFrom};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use tensorfs_tests::databases::manifest;
use tensorfs_tests::fuzz::{Mutator, TARGETS, Target};
use tensorfs_tests::{Passthrough, Setup, xattr};

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is no number: {text}")))
}

fn target(name: &str) -> &'static Target {
    TARGETS.iter().find(|target| target.name == name).unwrap()
}

/// Inputs that once made a target fail, or are to be kept for another reason.
fn corpus(target: &Target) -> Vec<Vec<u8>> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("hostile/found").join(target.name);
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(dir).into_iter().flatten().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).unwrap()).collect()
}

fn run(target: &Target, bytes: &[u8], what: &str) {
    if catch_unwind(AssertUnwindSafe(|| (target.run)(bytes))).is_err() {
        let path = tensorfs_tests::scratch().keep().join(format!("{}.input", target.name));
        std::fs::write(&path, bytes).unwrap();
        let (name, path) = (target.name, path.display());
        panic!(
            "{name}: {what} makes it panic; again: TENSORFS_FUZZ_INPUT={path} cargo test -p tensorfs-tests --test \
            hostile mutants::{name}"
        );
    }
}

fn fuzz(name: &str) {
    let target = target(name);
    if let Some(path) = std::env::var_os("TENSORFS_FUZZ_INPUT") {
        return (target.run)(&std::fs::read(path).unwrap());
    }
    let mut seeds = (target.seeds)();
    assert!(!seeds.is_empty());
    seeds.extend(corpus(target));
    for (n, seed) in seeds.iter().enumerate() {
        run(target, seed, &format!("seed {n}"));
    }
    let from = number("TENSORFS_FUZZ_FROM", 0);
    let count = (number("TENSORFS_FUZZ", 3000) / u64::from(target.cost)).max(1);
    for n in from..from + count {
        run(target, &Mutator::new(n).mutant(&seeds), &format!("mutant {n}"));
    }
    println!("{name}: {} executions", seeds.len() as u64 + count);
}

macro_rules! targets {
    ($($name:ident)*) => {
        $(#[test] fn $name() { fuzz(stringify!($name)); })*

        #[test]
        fn every_target_is_run() {
            let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
            assert_eq!(names, [$(stringify!($name)),*]);
        }
    };
}

targets!(
    record description block handover answers log tfrecord safetensors npy npz shards plan arrays ocdbt
    ocdbt_bodies gguf hdf5 arrow bare ends torch within
);

/// Targets that readers run, asked by a command; asked by a server; and what is no file of a user's, but of a pool, of
/// the server before, or what a reader says.
const BY_COMMANDS: [&str; 11] =
    ["tfrecord", "safetensors", "npy", "npz", "gguf", "hdf5", "arrow", "bare", "ends", "torch", "within"];
const BY_SERVERS: [(&str, &str); 2] = [("plan", ".metadata"), ("shards", "model.safetensors.index.json")];
/// What commands ask readers of files of these names.
const BY_NAMES: [&str; 3] = ["arrays", "ocdbt", "ocdbt_bodies"];
const NOT_BY_READERS: [&str; 6] = ["record", "description", "block", "handover", "answers", "log"];

#[test]
fn every_target_of_users_files_is_run_in_readers() {
    let servers = BY_SERVERS.map(|(name, _)| name);
    let mut known = [&BY_COMMANDS[..], &servers[..], &BY_NAMES[..], &NOT_BY_READERS[..]].concat();
    let mut all = TARGETS.map(|target| target.name);
    known.sort_unstable();
    all.sort_unstable();
    assert_eq!(known, all);
}

/// Metadata of arrays that is no longer what a library wrote does to a reader no more than its work, either.
#[test]
fn readers_survive_mutants_of_metadata() {
    let dir = tensorfs_tests::scratch();
    let from = number("TENSORFS_FUZZ_FROM", 0);
    let seeds = (target("arrays").seeds)();
    for n in from..from + number("TENSORFS_FUZZ", 3000) / 30 {
        let metadata = tensorfs_formats::Metadata::ALL[n as usize % 6];
        let path = dir.path().join(n.to_string());
        std::fs::create_dir(&path).unwrap();
        std::fs::write(path.join(metadata.name()), Mutator::new(n).mutant(&seeds)).unwrap();
    }
    // Databases of which one file is another, and one that is not there is any.
    let seeds = (target("ocdbt").seeds)();
    for n in from..from + number("TENSORFS_FUZZ", 3000) / 30 {
        let path = dir.path().join(format!("database{n}"));
        std::fs::create_dir_all(path.join("d")).unwrap();
        let node = Mutator::new(n).mutant(&seeds);
        let whole = manifest(&[("", "d/0")], (0, 0, node.len() as u64), (n % 3) as u8);
        let manifest = if n % 2 == 0 { whole } else { Mutator::new(n + 1).mutant(&[whole]) };
        std::fs::write(path.join("manifest.ocdbt"), manifest).unwrap();
        std::fs::write(path.join("d/0"), node).unwrap();
    }
    let listed = tensorfs_tests::run(tensorfs_tests::tensorfs().args(["tensors", "--json"]).arg(dir.path()));
    let told = String::from_utf8_lossy(&listed.stderr);
    assert!(matches!(listed.status.code(), Some(0 | 1)) && !told.contains("reader"), "{told}");
}

/// Mutants of files of each format do to a reader what they do in this process: no more than its work. There
/// are as many as `TENSORFS_FUZZ` says, divided by 30.
#[test]
fn readers_survive_mutants_too() {
    let dir = tensorfs_tests::scratch();
    let from = number("TENSORFS_FUZZ_FROM", 0);
    let mut expected = Vec::new();
    for name in BY_COMMANDS {
        let seeds = (target(name).seeds)();
        for n in from..from + number("TENSORFS_FUZZ", 3000) / 30 {
            let bytes = Mutator::new(n).mutant(&seeds);
            let path = dir.path().join(format!("{name}.{n}"));
            std::fs::write(&path, &bytes).unwrap();
            let found = tensorfs_formats::recognise(&&bytes[..], &mut |_| std::ops::ControlFlow::Continue(()));
            expected.push((path, found.tensors));
        }
    }
    let output = tensorfs_tests::run(tensorfs_tests::tensorfs().args(["tensors", "--json"]).arg(dir.path()));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!errors.contains("the reader that looked into it"), "{errors}");
    let mut found = std::collections::HashMap::<String, u64>::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        *found.entry(line["path"].as_str().unwrap().to_owned()).or_default() += 1;
    }
    for (path, tensors) in expected {
        assert_eq!(found.get(path.to_str().unwrap()).copied().unwrap_or(0), tensors, "{}", path.display());
    }
}

/// On a mount, too, where tensors are decoded and files are sealed: what is unpacked is what this process unpacks.
#[test]
fn readers_of_a_server_survive_mutants_too() {
    let name = "readers_of_a_server_survive_mutants_too";
    if !Setup::can(Passthrough::Off) {
        return tensorfs_tests::skip(name, "nothing can be mounted");
    }
    let mount = Setup::new(name, Passthrough::Off).mount();
    if mount.is_plain() {
        return;
    }
    let from = number("TENSORFS_FUZZ_FROM", 0);
    let (mut files, mut read) = (Vec::new(), 0);
    for name in BY_COMMANDS {
        let seeds = (target(name).seeds)();
        for n in from..from + number("TENSORFS_FUZZ", 3000) / 30 {
            let bytes = Mutator::new(n).mutant(&seeds);
            let mut tensors = Vec::new();
            let found = tensorfs_formats::recognise(&&bytes[..], &mut |tensor| {
                tensors.push(tensor);
                std::ops::ControlFlow::Continue(())
            });
            let file = format!("{name}.{n}");
            std::fs::write(mount.at(&file), &bytes).unwrap();
            let said = xattr::get(&mount.at(&file), "user.tensorfs.tensors").unwrap();
            assert_eq!(String::from_utf8(said).unwrap(), found.tensors.to_string(), "{file}");
            read += read_some(&mount.at(".tensorfs/tensors").join(&file), &mut 20);
            files.push((file, found.tensors));
        }
    }
    println!("{} files, {read} tensors that were read", files.len());
    assert!(read > 0);
    let sealed = mount.tensorfs([std::ffi::OsStr::new("seal"), mount.path().as_os_str()]);
    assert!(sealed.status.success(), "{sealed:?}");
    for (file, tensors) in files {
        let get = |what: &str| String::from_utf8(xattr::get(&mount.at(&file), what).unwrap()).unwrap();
        assert!(["sealed", "interrupted"].contains(&&*get("user.tensorfs.state")), "{file}");
        assert_eq!(get("user.tensorfs.tensors"), tensors.to_string(), "{file}");
    }
    let info = mount.info();
    assert!(info["readers"]["failed"] == 0 && info["readers"]["started"].as_u64() > Some(0), "{info}");
    assert!(!mount.log().contains("panicked"), "{}", mount.log());
}

/// Reads so many tensors below a directory of the tree, whatever comes of it. How many could be read.
fn read_some(directory: &Path, left: &mut u32) -> u64 {
    let mut read = 0;
    for path in std::fs::read_dir(directory).into_iter().flatten().map_while(Result::ok).map(|entry| entry.path()) {
        if *left == 0 {
            break;
        }
        if path.is_dir() {
            read += read_some(&path, left);
            continue;
        }
        *left -= 1;
        let Ok(mut file) = std::fs::File::open(&path) else { continue };
        // The first mebibyte, and the last bytes, of what may say that it has terabytes.
        let begin = std::io::copy(&mut (&mut file).take(1 << 20), &mut std::io::sink());
        let end = file.seek(SeekFrom::End(-16)).and_then(|_| file.read_to_end(&mut Vec::new()));
        read += u64::from(begin.is_ok() && end.is_ok());
    }
    read
}

/// So do plans and indexes, which readers are asked for where a directory is a checkpoint.
#[test]
fn readers_survive_mutants_of_plans_too() {
    if !Setup::can(Passthrough::Off) {
        return tensorfs_tests::skip("readers_survive_mutants_of_plans_too", "nothing can be mounted");
    }
    let mount = Setup::new("plans", Passthrough::Off).mount();
    if mount.is_plain() {
        return;
    }
    let from = number("TENSORFS_FUZZ_FROM", 0);
    for (name, file) in BY_SERVERS {
        let seeds = (target(name).seeds)();
        for n in from..from + number("TENSORFS_FUZZ", 3000) / 30 {
            let directory = mount.at(format!("{name}.{n}"));
            std::fs::create_dir(&directory).unwrap();
            std::fs::write(directory.join(file), Mutator::new(n).mutant(&seeds)).unwrap();
            match xattr::get(&directory, "user.tensorfs.complete") {
                Ok(said) => assert!([&b"complete"[..], b"incomplete"].contains(&&said[..]), "{name} {n}"),
                // Of one that takes more than it may.
                Err(errno) => assert_eq!(errno, nix::errno::Errno::EIO, "{name} {n}"),
            }
            // Its tensors have no parts, and are there or not. Of one that cannot be read to its end none is.
            let tensors = mount.at(format!(".tensorfs/tensors/{name}.{n}.checkpoint"));
            for tensor in std::fs::read_dir(tensors).into_iter().flatten().map_while(Result::ok) {
                let path = tensor.path();
                assert!(path.is_dir() || std::fs::read(path).is_err(), "{name} {n}");
            }
        }
    }
    let info = mount.info();
    assert!(info["readers"]["failed"] == 0 && info["readers"]["started"].as_u64() > Some(0), "{info}");
}

#[test]
fn mutants_are_the_same_for_the_same_number_and_differ_from_their_seeds() {
    let seeds = [b"some bytes of a seed".to_vec(), vec![0; 100]];
    let mutants: Vec<_> = (0..100).map(|n| Mutator::new(n).mutant(&seeds)).collect();
    assert_eq!(mutants, (0..100).map(|n| Mutator::new(n).mutant(&seeds)).collect::<Vec<_>>());
    assert!(mutants.iter().filter(|mutant| !seeds.contains(mutant)).count() > 90);
}
