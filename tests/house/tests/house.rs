//! Holds the project's code to its house: which room may import from which, who owns state, how wide a line is.
//!
//! Whoever adds a room or moves one changes the tables below. `tensorfs-house` shows the same things for reading.

use std::io;
use std::path::Path;
use std::sync::LazyLock;

use tensorfs_house::rooms::Rooms;
use tensorfs_house::rules::{self, Exception};
use tensorfs_house::source::Files;
use tensorfs_house::workspace::Workspace;

/// The crates that are installed, from the top down: each may depend on those below it, and on no other crate of the
/// workspace. The remote's program is above the one that serves, so that this has nothing of it.
const CRATES: [&str; 5] = ["tensorfs-remote", "tensorfs", "tensorfs-fs", "tensorfs-layout", "tensorfs-formats"];

/// The rooms of each crate, from the top down. The lowest level is what everybody may use.
const ROOMS: [Rooms; 4] = [
    Rooms { of: "tensorfs", levels: &["commands", "cli ask", "tensors", "mounting", "show"], also: &[] },
    Rooms {
        of: "tensorfs-fs",
        levels: &[
            "testing",
            "kernel",
            "ask",
            "tree content background",
            "file",
            "store reader",
            "protocol options",
            "acl caller clock confine error handover lane workers",
            "privileged shares",
            "budget holder machine rights waits",
        ],
        also: &[],
    },
    Rooms {
        of: "tensorfs-remote",
        levels: &[
            "commands",
            "restore check heal relief",
            "bring evict",
            "fetching",
            "origin",
            "carry union",
            "fetch gc",
            "repository",
            "place",
            "crypt locked_in outside",
            "error",
        ],
        also: &[],
    },
    Rooms {
        of: "tensorfs-layout",
        levels: &["testing", "check", "pool", "segment", "tree", "log", "medium", "error globs ids parallel time"],
        also: &[],
    },
];

/// Only the adapter speaks fuser.
const FUSER: &str = "fs/src/kernel";

/// And a program of the tests that is another filesystem: the file which a disk of theirs stands on.
const FUSER_OF_TESTS: &str = "tests/harness/bin/disk/";

/// The crate that may bring what is below: a runtime of threads of its own, and a network.
const REMOTE: &str = "tensorfs-remote";
const NETWORK: [&str; 8] = ["tokio", "async-std", "smol", "hyper", "rustls", "native-tls", "openssl-sys", "boring-sys"];

/// The most fields of a struct.
const FIELDS: usize = 14;

/// Structs with more fields.
const LARGE: &[Exception] = &[
    ("superblock::Raw", "its fields are those of the superblock on media"),
    ("store::Store", "it has what the store owns, each a type of its own"),
    ("info::Info", "what `tensorfs info` tells, one field a line"),
    ("second_copy::SecondCopy", "what `tensorfs info` tells of it, one field a line"),
];

/// State with fields that others see.
const SHOWN: &[Exception] = &[(
    "superblock::Superblock",
    "what is on media, field by field; writing it is all that it does, and whoever writes it holds the pool's lock",
)];

/// What takes users' bytes apart, and where that is done: in a process that is locked in.
const FORMATS: &str = "tensorfs_formats";
const READER: [&str; 1] = ["fs/src/reader"];

/// What others may name of it: what was found, how bytes are had, checksums, and copying. None of it takes bytes apart.
const NO_PARSER: [&str; 36] = [
    "Array",
    "Block",
    "DIMENSIONS_MAX",
    "Dtype",
    "Format",
    "Front",
    "Keys",
    "Kind",
    "Location",
    "MEMORY",
    "Metadata",
    "Mode",
    "NAME_MAX",
    "Node",
    "Order",
    "Planned",
    "Recognised",
    "Sink",
    "Source",
    "Storage",
    "TENSORS_MAX",
    "Tensor",
    "What",
    "copy_stored",
    "crc32c",
    "crc32c_append",
    "crc32c_join",
    "crc32c_zeroes",
    "hole_of",
    "is_called_as_plan",
    "is_stored_as_read",
    "npy_header",
    "npy_len",
    "ocdbt",
    "read_exact",
    "tensor_len",
];

/// Where pools are used, and so nothing is reached by a path: whose a pool is could have put anything on the way.
const BY_DESCRIPTOR: [&str; 2] = ["layout/src", "fs/src"];

/// Files in there that use paths of the host.
const BY_PATH: &[Exception] = &[
    ("layout/src/medium/dir.rs", "the one way into a pool: its directory is opened there, and paths are for messages"),
    ("layout/src/error.rs", "paths in messages"),
    ("layout/src/forged_logs.rs", "a test"),
    ("layout/src/log/superblock.rs", "/dev/urandom"),
    ("layout/src/medium/boot.rs", "/proc"),
    ("layout/src/medium/way.rs", "the way to a directory that is no pool's, step by step; /proc"),
    ("layout/src/segment/host_errors.rs", "/sys"),
    ("layout/src/pool/tiers.rs", "whether a new tier is in the pool, which its user names, is asked of paths"),
    ("fs/src/caller.rs", "/proc"),
    ("fs/src/confine.rs", "what a server reaches beside its pool"),
    ("fs/src/holder.rs", "/proc"),
    ("fs/src/kernel/latency.rs", "/dev/cpu_dma_latency"),
    ("fs/src/kernel/server.rs", "/proc and /sys"),
    ("fs/src/machine.rs", "/proc and /sys"),
    ("fs/src/privileged.rs", "/proc"),
    ("fs/src/reader/jail.rs", "/proc"),
];

/// Where pools are known by the names of their directories alone, and not what is in these.
const BY_NAME: &str = "mount-helper/src";
const PARTS: [&str; 6] =
    ["\"segments", "join(\"quarantine\"", "\"tier.json", "join(\"log\"", "join(\"lock\"", "join(\"log.new\""];

/// Where paths are for what is no pool's: a path is made of two there only for the reason that stands here.
const JOINED: [&str; 3] = ["mount-helper/src", "remote/bin", "remote/src"];
const JOINS: &[Exception] = &[
    ("mount-helper/src/ask/about.rs", "what is in .tensorfs of a mount"),
    ("mount-helper/src/ask/mending.rs", "a file of its own in a directory for temporary ones"),
    ("mount-helper/src/ask/requests.rs", "what is in .tensorfs of a mount"),
    ("mount-helper/src/commands/alarm.rs", "lines of text"),
    ("mount-helper/src/commands/metrics.rs", "a directory that the user names, for node exporter"),
    ("mount-helper/src/commands/quota/walk.rs", "below a mount, for messages"),
    ("mount-helper/src/commands/restore.rs", "below a mount, for messages"),
    ("mount-helper/src/commands/rollback.rs", "below a mount, for messages, and beneath an open directory"),
    ("mount-helper/src/commands/scrub.rs", "a file of a mount"),
    ("mount-helper/src/commands/tier/map.rs", "what is in .tensorfs of a mount"),
    ("remote/src/relief.rs", "what is in .tensorfs of a mount"),
    ("mount-helper/src/mounting/busy.rs", "/proc"),
    ("mount-helper/src/mounting/connection.rs", "/sys"),
    ("mount-helper/src/mounting/elsewhere.rs", "/proc"),
    ("mount-helper/src/mounting/paths.rs", "the way that the user names"),
    ("mount-helper/src/mounting/sight.rs", "the way to a mount"),
    ("mount-helper/src/mounting/keeper/watchdog.rs", "/proc"),
    ("mount-helper/src/show/text.rs", "a shape"),
    ("remote/src/commands/get.rs", "where the user wants the bytes"),
    ("remote/src/commands/mount.rs", "a file of a mount"),
    ("remote/src/locked_in.rs", "the user's own credentials"),
    ("remote/src/place/directory.rs", "for messages of the store"),
    ("remote/src/place/mod.rs", "names in an object store"),
    ("remote/src/place/profile.rs", "the user's own credentials"),
];

/// The most characters of a line.
const WIDTH: usize = 120;

/// No comment begins with these words: they lean on another one, which may not stand above for long.
const LEANING: [&str; 1] = ["The same"];

/// What is against each rule.
#[derive(Default)]
struct Found {
    rooms: Vec<String>,
    circles: Vec<String>,
    crates: Vec<String>,
    fuser: Vec<String>,
    parsers: Vec<String>,
    network: Vec<String>,
    large: Vec<String>,
    shown: Vec<String>,
    wide: Vec<String>,
    leaning: Vec<String>,
    paths: Vec<String>,
}

/// Reading the code takes a second or more, so that is done once.
static FOUND: LazyLock<io::Result<Found>> = LazyLock::new(find);

fn find() -> io::Result<Found> {
    let workspace = Workspace::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."))?;
    let files = workspace.files()?;
    let lock = std::fs::read_to_string(workspace.root.join("Cargo.lock"))?;
    let mut found = Found {
        crates: rules::crates_against_order(&workspace.packages, &CRATES),
        network: rules::brings(&lock, &workspace.packages, &NETWORK, REMOTE),
        wide: rules::wide_lines(&files, WIDTH),
        leaning: rules::leaning_comments(&files, &LEANING),
        paths: by_path(&files),
        ..Found::default()
    };
    let (mut large, mut shown) = (Vec::new(), Vec::new());
    for package in &workspace.packages {
        let crates = package.crates(&files, true)?;
        found.circles.extend(crates.iter().flat_map(rules::circles));
        let fuser = crates.iter().flat_map(|of| rules::foreign_outside(of, "fuser", FUSER));
        found.fuser.extend(fuser.filter(|place| !place.starts_with(FUSER_OF_TESTS)));
        if !CRATES.contains(&package.name.as_str()) {
            continue;
        }
        let rooms = ROOMS.iter().find(|rooms| rooms.of == package.name);
        // Not the tests beside it.
        let sources = package.directory.join("src");
        for of in crates.iter().filter(|of| Path::new(&of.name).starts_with(&sources)) {
            found.parsers.extend(rules::unlisted_outside(of, FORMATS, &NO_PARSER, &READER));
            found.rooms.extend(rooms.into_iter().flat_map(|rooms| rules::against_order(of, rooms)));
            found.large.extend(rules::large_structs(of, FIELDS, LARGE));
            found.shown.extend(rules::shown_state(of, rooms, SHOWN));
            large.extend(rules::large_structs(of, FIELDS, &[]));
            shown.extend(rules::shown_state(of, rooms, &[]));
        }
    }
    found.large.extend(rules::needless(LARGE, &large));
    found.shown.extend(rules::needless(SHOWN, &shown));
    for name in CRATES.iter().filter(|name| workspace.package(name).is_none()) {
        found.crates.push(format!("crate {name} of the table is not there"));
    }
    Ok(found)
}

fn by_path(files: &Files) -> Vec<String> {
    let all = |exceptions| BY_DESCRIPTOR.iter().flat_map(move |room| rules::paths(files, room, exceptions));
    let mut found: Vec<String> = all(BY_PATH).collect();
    let without: Vec<String> = all(&[]).collect();
    let unused = BY_PATH.iter().filter(|(file, _)| !without.iter().any(|place| place.starts_with(file)));
    found.extend(unused.map(|(file, _)| format!("{file} needs no exception")));
    found.extend(rules::says(files, BY_NAME, &PARTS));
    let all = |exceptions| JOINED.iter().flat_map(move |room| rules::joined(files, room, exceptions));
    found.extend(all(JOINS));
    let without: Vec<String> = all(&[]).collect();
    let unused = JOINS.iter().filter(|(file, _)| !without.iter().any(|place| place.starts_with(file)));
    found.extend(unused.map(|(file, _)| format!("{file} needs no exception")));
    found
}

fn holds(rule: &str, breaches: impl Fn(&Found) -> &[String]) {
    match &*FOUND {
        Ok(found) => {
            let places = breaches(found);
            assert!(places.is_empty(), "{rule}; {} places:\n{}", places.len(), places.join("\n"));
        }
        Err(error) => panic!("the code cannot be read: {error}"),
    }
}

#[test]
fn rooms_import_downwards() {
    holds("a room imports only from those below it, in the order of the table ROOMS", |found| &found.rooms);
}

#[test]
fn no_modules_in_circles() {
    holds("files do not name each other in a circle", |found| &found.circles);
}

#[test]
fn crates_depend_downwards() {
    holds("a crate depends only on those below it, in the order of the table CRATES", |found| &found.crates);
}

#[test]
fn only_the_adapter_speaks_fuser() {
    holds("fuser is named in fs/src/kernel/, and in the tests' own disk, and nowhere else", |found| &found.fuser);
}

#[test]
fn bytes_of_users_are_taken_apart_by_readers_alone() {
    holds("what takes bytes of users apart is named in fs/src/reader/ and nowhere else", |found| &found.parsers);
}

#[test]
fn only_the_remote_has_a_network() {
    holds("tokio and TLS come with the crate of remote/ and no other way", |found| &found.network);
}

#[test]
fn structs_fit_in_a_head() {
    holds("a struct has at most 14 fields, or a reason in the table LARGE", |found| &found.large);
}

#[test]
fn state_is_seen_in_its_room_alone() {
    holds("fields of state are seen in their own room, or there is a reason in the table SHOWN", |found| &found.shown);
}

#[test]
fn lines_are_not_too_wide() {
    holds("a line has at most 120 characters", |found| &found.wide);
}

#[test]
fn nothing_in_a_pool_is_reached_by_a_path() {
    holds("what is in a pool or a tier is reached from its open directory, and by no path", |found| &found.paths);
}

#[test]
fn comments_stand_alone() {
    holds("a comment says what it says in full", |found| &found.leaning);
}
