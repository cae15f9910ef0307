//! Holds the project's code to its house: which room may import from which, who owns state, how wide a line is.
//!
//! Whoever adds a room or moves one changes the tables below. `tensorfs-house` shows the same things for reading.

use std::path::Path;

use tensorfs_house::rooms::Rooms;
use tensorfs_house::rules::{self, Exception};
use tensorfs_house::source::{Crate, Files};
use tensorfs_house::workspace::Workspace;

/// The crates that are installed, from the top down: each may depend on those below it, and on no other crate of the
/// workspace.
const CRATES: [&str; 4] = ["tensorfs", "tensorfs-fs", "tensorfs-layout", "tensorfs-formats"];

/// The rooms of each crate, from the top down. The lowest level is what everybody may use.
const ROOMS: [Rooms; 3] = [
    Rooms { of: "tensorfs", levels: &["commands", "cli ask", "tensors", "mounting", "show"], also: &[] },
    Rooms {
        of: "tensorfs-fs",
        levels: &[
            "testing",
            "kernel",
            "tree content background ask",
            "file",
            "store",
            "protocol options",
            "acl caller clock error lane workers",
        ],
        also: &[],
    },
    Rooms {
        of: "tensorfs-layout",
        levels: &["testing", "check", "pool", "segment", "tree", "log", "medium", "error ids parallel time"],
        also: &[],
    },
];

/// Only the adapter speaks fuser.
const FUSER: &str = "fs/src/kernel";

/// The crate that may bring what is below: a runtime of threads of its own, and a network.
const REMOTE: &str = "tensorfs-remote";
const NETWORK: [&str; 8] = ["tokio", "async-std", "smol", "hyper", "rustls", "native-tls", "openssl-sys", "boring-sys"];

/// The most fields of a struct.
const FIELDS: usize = 14;

/// Structs with more fields.
const LARGE: &[Exception] = &[
    ("superblock::Raw", "its fields are those of the superblock on media"),
    ("info::Info", "what `tensorfs info` tells, one field a line"),
    ("options::MountOptions", "the options of a mount on the command line"),
];

/// State with fields that others see.
const SHOWN: &[Exception] = &[];

/// The most characters of a line.
const WIDTH: usize = 120;

/// No comment begins with these words: they lean on another one, which may not stand above for long.
const LEANING: [&str; 1] = ["The same"];

fn workspace() -> Workspace {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    Workspace::read(&root).unwrap()
}

/// The libraries and programs of some members of the workspace, each with the member's name.
fn crates(names: &[&'static str]) -> Vec<(&'static str, Crate)> {
    let workspace = workspace();
    let mut found = Vec::new();
    for name in names {
        let package = workspace.package(name).unwrap_or_else(|| panic!("no crate {name}: see the table CRATES"));
        let files = Files::read(&workspace.root, &package.directory).unwrap();
        found.extend(package.crates(&files, false).unwrap().into_iter().map(|of| (*name, of)));
    }
    found
}

fn holds(rule: &str, breaches: &[String]) {
    assert!(breaches.is_empty(), "{rule}; {} places:\n{}", breaches.len(), breaches.join("\n"));
}

#[test]
fn rooms_import_downwards() {
    let mut found = Vec::new();
    for rooms in &ROOMS {
        for (_, of) in crates(&[rooms.of]) {
            found.extend(rules::against_order(&of, rooms));
        }
    }
    holds("a room imports only from those below it, in the order of the table ROOMS", &found);
}

#[test]
fn no_modules_in_circles() {
    let workspace = workspace();
    let files = workspace.files().unwrap();
    let mut found = Vec::new();
    for package in &workspace.packages {
        for of in package.crates(&files, true).unwrap() {
            found.extend(rules::circles(&of));
        }
    }
    holds("files do not name each other in a circle", &found);
}

#[test]
fn crates_depend_downwards() {
    let found = rules::crates_against_order(&workspace().packages, &CRATES);
    holds("a crate depends only on those below it, in the order of the table CRATES", &found);
}

#[test]
fn only_the_adapter_speaks_fuser() {
    let mut found = Vec::new();
    for (_, of) in crates(&CRATES) {
        found.extend(rules::foreign_outside(&of, "fuser", FUSER));
    }
    holds("fuser is named in fs/src/kernel/ and nowhere else", &found);
}

#[test]
fn only_the_remote_has_a_network() {
    let workspace = workspace();
    let lock = std::fs::read_to_string(workspace.root.join("Cargo.lock")).unwrap();
    let found = rules::brings(&lock, &workspace.packages, &NETWORK, REMOTE);
    holds("tokio and TLS come with the crate of remote/ and no other way", &found);
}

#[test]
fn structs_fit_in_a_head() {
    let mut all = Vec::new();
    let mut found = Vec::new();
    for (_, of) in crates(&CRATES) {
        found.extend(rules::large_structs(&of, FIELDS, LARGE));
        all.extend(rules::large_structs(&of, FIELDS, &[]));
    }
    found.extend(rules::needless(LARGE, &all));
    holds("a struct has at most 14 fields, or a reason in the table LARGE", &found);
}

#[test]
fn state_is_seen_in_its_room_alone() {
    let mut all = Vec::new();
    let mut found = Vec::new();
    for (name, of) in crates(&CRATES) {
        let rooms = ROOMS.iter().find(|rooms| rooms.of == name);
        found.extend(rules::shown_state(&of, rooms, SHOWN));
        all.extend(rules::shown_state(&of, rooms, &[]));
    }
    found.extend(rules::needless(SHOWN, &all));
    holds("fields of state are seen in their own room, or there is a reason in the table SHOWN", &found);
}

#[test]
fn lines_are_not_too_wide() {
    holds("a line has at most 120 characters", &rules::wide_lines(&workspace().files().unwrap(), WIDTH));
}

#[test]
fn comments_stand_alone() {
    let found = rules::leaning_comments(&workspace().files().unwrap(), &LEANING);
    holds("a comment says what it says in full", &found);
}
