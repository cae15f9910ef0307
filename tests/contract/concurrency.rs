//! Two programs on one file, in every pair of open modes and in both orders: what each sees of the other.
//!
//! The table in docs/SEMANTICS.md is what is tested: each of its cells is worked out from what two processes see on a
//! mount, and everything that they see is compared with what two such processes see on the filesystem that holds the
//! pool.

use std::fmt::Write;
use std::path::Path;
use tensorfs_tests::{Call, Child, HostCalls, Passthrough, Rule, Setup, child, on_mounts};

on_mounts!(
    what_each_of_two_sees,
    what_each_of_two_sees_with_durability_write,
    two_at_once,
    a_mapping_does_not_keep_what_was_overwritten_while_it_was_loaded,
    asynchronous_writes_leave_nothing_stale,
    asynchronous_writes_leave_nothing_stale_with_durability_write,
    a_listing_tells_nothing_from_before_a_close,
);

/// What a program does with the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// Reads.
    Read,
    /// Has it mapped and open, as Python's `mmap`.
    Hold,
    /// Has it mapped, with the descriptor closed, as safetensors and PyTorch.
    Map,
    /// `O_APPEND`, for writing only.
    Append,
    /// `O_TRUNC`, for writing only.
    Rewrite,
    /// Updates in place by `pwrite`.
    Pwrite,
    /// Updates in place through a mapping, with the descriptor closed.
    Store,
    Unlink,
    /// Renames a new file over it.
    Rename,
    /// Updates in place with `O_DIRECT`.
    Direct,
    /// Updates in place with `O_SYNC`.
    Sync,
}

use Role::*;

const ROLES: [Role; 11] = [Read, Hold, Map, Append, Rewrite, Pwrite, Store, Unlink, Rename, Direct, Sync];

/// Blocks of a mapping: more than the file has, so that growing is seen through it.
const MAPPED: usize = 24 * 4096;

impl Role {
    /// As in the table, and for the `loop` of a child.
    fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }

    fn looks_only(self) -> bool {
        matches!(self, Read | Hold | Map)
    }

    /// The descriptor is open while the other acts.
    fn has_descriptor(self) -> bool {
        !matches!(self, Map | Store | Unlink | Rename)
    }

    /// Opens the file and acts for the first time; what that led to.
    fn begin(self, child: &mut Child, path: &Path, byte: u8) -> String {
        let open = |child: &mut Child, flags: &str| child.ask(&format!("open f {flags} {}", path.display()));
        let map = |child: &mut Child, mode: &str| child.ask(&format!("map f m {MAPPED} {mode}"));
        let mut said = match self {
            Read | Hold | Map => open(child, "r"),
            Append => open(child, "wac"),
            Rewrite => open(child, "wct"),
            Pwrite | Store => open(child, "rw"),
            Direct => open(child, "rwd"),
            Sync => open(child, "rws"),
            Unlink => return child.ask(&format!("unlink {}", path.display())),
            Rename => return child.ask(&format!("replace {} {byte} 8", path.display())),
        };
        if said != "ok" {
            return said;
        }
        match self {
            Hold => said = map(child, "r"),
            Map => said = map(child, "r") + &child.ask("close f"),
            Store => said = map(child, "w") + &child.ask("close f"),
            _ => {}
        }
        said + " " + &self.act(child, byte)
    }

    /// Acts (once more), where the role is more than one call.
    fn act(self, child: &mut Child, byte: u8) -> String {
        // Each turn has blocks of its own, so that all of them can be told apart in the end.
        let block = u64::from(byte);
        match self {
            Append => child.ask(&format!("add f {byte}")),
            Rewrite => child.ask(&format!("put f 0 {} {byte}", 12 - block)),
            Pwrite | Direct | Sync => child.ask(&format!("put f {block} 1 {byte}")),
            Store => child.ask(&format!("poke m {block} {byte}")),
            Read | Hold | Map | Unlink | Rename => String::new(),
        }
    }

    /// What it sees now, through what it has.
    fn look(self, child: &mut Child) -> String {
        match self {
            Read | Pwrite | Direct | Sync => child.ask("see f"),
            Append | Rewrite => child.ask("size f"),
            Map | Store => child.ask("glance m"),
            Hold => format!("{} | {}", child.ask("see f"), child.ask("glance m")),
            Unlink | Rename => String::new(),
        }
    }
}

/// What was seen on the way, and what the cell says of it.
#[derive(Debug, Clone, PartialEq)]
struct Seen {
    /// Everything, to be compared with the same on another filesystem.
    story: String,
    /// What the first program sees of what the second does.
    first: &'static str,
    /// And the other way round.
    second: &'static str,
}

/// Two processes with these roles, and one that looks on.
struct Stage {
    one: Child,
    two: Child,
    late: Child,
}

impl Stage {
    fn new() -> Stage {
        Stage { one: child(["do"]), two: child(["do"]), late: child(["do"]) }
    }

    /// What somebody sees who opens the file just now.
    fn late(&mut self, path: &Path) -> String {
        match &*self.late.ask(&format!("open f r {}", path.display())) {
            "ok" => {}
            error => return error.to_owned(),
        }
        let read = self.late.ask("see f");
        assert_eq!(self.late.ask(&format!("map f m {MAPPED} r")), "ok");
        let mapped = self.late.ask("glance m");
        assert_eq!(self.late.ask("forget"), "ok");
        format!("{read} | {mapped}")
    }

    /// A file of 16 blocks, on which the first one begins.
    fn play(&mut self, directory: &Path, first: Role, second: Role) -> Seen {
        let path = directory.join(format!("{}-{}", first.name(), second.name()));
        let mut story = String::new();
        let mut tell = |what: &str, seen: &str| writeln!(story, "{what}: {seen}").unwrap();
        std::fs::write(&path, vec![1; 16 * 4096]).unwrap();

        let begun = first.begin(&mut self.one, &path, 2);
        assert!(!begun.contains("error"), "{}: the first gets {begun}", path.display());
        tell("first begins", &begun);
        let before = first.look(&mut self.one);
        tell("first sees", &before);
        let begun = second.begin(&mut self.two, &path, 4);
        tell("second begins", &begun);
        let missing = begun == format!("error {}", libc::ENOENT);
        assert!(missing || !begun.contains("error"), "{}: the second gets {begun}", path.display());
        let after = first.look(&mut self.one);
        tell("first sees", &after);
        // Whether what the first one has open is still what the name stands for.
        let same = match first.has_descriptor() {
            true => self.one.ask(&format!("same-file f {}", path.display())),
            false => String::new(),
        };
        tell("same file", &same);
        let third = self.late(&path);
        tell("a third sees", &third);
        let second_before = if missing { String::new() } else { second.look(&mut self.two) };
        tell("second sees", &second_before);

        tell("first acts again", &first.act(&mut self.one, 3));
        let second_after = if missing { String::new() } else { second.look(&mut self.two) };
        tell("second sees", &second_after);
        let third_after = self.late(&path);
        tell("a third sees", &third_after);
        if !missing {
            tell("second acts again", &second.act(&mut self.two, 5));
        }
        tell("first sees", &first.look(&mut self.one));
        tell("a third sees", &self.late(&path));
        for child in [&mut self.one, &mut self.two] {
            assert_eq!(child.ask("forget"), "ok");
        }
        tell("all closed", &self.late(&path));

        // Who has the file open for writing only sees its size, which an update in place does not move: there the third
        // one's eyes must do.
        let says_first = match second {
            _ if missing || second.looks_only() => "-",
            _ if matches!(first, Unlink | Rename) => "-",
            Unlink | Rename if after == before => "own",
            Rewrite if after == before => "kept",
            Rewrite => "cut",
            _ if after != before => "now",
            _ if matches!(first, Append | Rewrite) && same == "yes" && third.contains("*4") => "now",
            _ => "stale",
        };
        let says_second = match first {
            _ if missing => "none",
            _ if first.looks_only() || matches!(second, Unlink | Rename) => "-",
            Unlink if third.ends_with("*F") && !third.contains("*1") => "new",
            Rename if third.contains("*2") || second == Rewrite => "new",
            _ if second_after != second_before => "now",
            _ if matches!(second, Append | Rewrite) && third_after != third => "now",
            _ => "stale",
        };
        Seen { story, first: says_first, second: says_second }
    }
}

/// The table of the contract: for each first program and each second one, the cell's text.
fn table() -> Vec<(String, String, String)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("docs/SEMANTICS.md");
    let text = std::fs::read_to_string(path).unwrap();
    let mut lines = text.lines().skip_while(|line| !line.starts_with("| first"));
    let words = |line: &str| -> Vec<String> {
        line.trim_matches('|').split('|').map(|cell| cell.trim().trim_matches('*').to_owned()).collect()
    };
    let header = words(lines.next().expect("the table"));
    let mut cells = Vec::new();
    for line in lines.skip(1).take_while(|line| line.starts_with('|')) {
        let row = words(line);
        assert_eq!(row.len(), header.len(), "{line}");
        for (second, cell) in header[1..].iter().zip(&row[1..]) {
            cells.push((row[0].clone(), second.clone(), cell.clone()));
        }
    }
    cells
}

/// Proves O2.
#[test]
fn the_table_has_a_cell_for_each_pair_that_is_tested_and_no_other() {
    let names: Vec<String> = ROLES.iter().map(|role| role.name()).collect();
    let pairs = names.iter().flat_map(|first| names.iter().map(move |second| (first.clone(), second.clone())));
    let listed: Vec<_> = table().into_iter().map(|(first, second, _)| (first, second)).collect();
    assert_eq!(listed, pairs.collect::<Vec<_>>());
}

/// Proves O2, F3, F4, R1, R5, X1.
fn what_each_of_two_sees(setup: Setup) {
    let passthrough = setup.passthrough() == Passthrough::On;
    see_each_cell(setup, passthrough);
}

/// The files are in server mode then, also on a mount that has passthrough.
///
/// Proves O2.
fn what_each_of_two_sees_with_durability_write(setup: Setup) {
    see_each_cell(setup.mount_with(["--durability", "write"]), false);
}

/// Plays every pair; `kernel` if the kernel moves the bytes, which is what a star in the table is about.
fn see_each_cell(setup: Setup, kernel: bool) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let table = table();
    let mut stage = Stage::new();
    let mut wrong = String::new();
    for (first, second) in ROLES.into_iter().flat_map(|first| ROLES.map(|second| (first, second))) {
        let id = format!("{}/{}", first.name(), second.name());
        let said = table.iter().find(|(a, b, _)| *a == first.name() && *b == second.name());
        let said = said.map_or("", |(_, _, cell)| cell.as_str());
        let seen = stage.play(mount.path(), first, second);
        let host = stage.play(&mount.host(), first, second);
        let star = if seen == host { "" } else { "*" };
        let got = format!("{}{star} {}", seen.first, seen.second);
        // A star is for passthrough; without it the cell is as on the host, whatever its words.
        let starred = said.contains('*');
        let right = if starred && !kernel { seen == host } else { got == said };
        if !right {
            writeln!(wrong, "{id}: the table says {said:?}, but it is {got:?}\n{}host:\n{}", seen.story, host.story)
                .unwrap();
        }
        if std::env::var_os("TENSORFS_PRINT_TABLE").is_some() {
            let start = if second == Read { format!("| **{}**", first.name()) } else { String::new() };
            print!("{start} | {got}{}", if second == Sync { " |\n" } else { "" });
        }
    }
    assert!(wrong.is_empty(), "cells that are not so:\n{wrong}");
}

/// Both at once, again and again, in every pair: no error but that of a name that is not there, no deadlock, no byte
/// that nobody wrote, and in the end one content however it is looked at.
///
/// Proves O1, O3, D6, D8.
fn two_at_once(setup: Setup) {
    const LARGE: usize = 128 * 4096;
    let turns = std::env::var("TENSORFS_TURNS").map_or(30, |turns| turns.parse().unwrap());
    let mut mount = setup.mount();
    let mut files = Vec::new();
    let (mut one, mut two, mut late) = (child(["do"]), child(["do"]), child(["do"]));
    for (n, first) in ROLES.into_iter().enumerate() {
        for second in &ROLES[n..] {
            let id = format!("{}/{}", first.name(), second.name());
            let path = mount.at(id.replace('/', "-"));
            std::fs::write(&path, vec![1; 16 * 4096]).unwrap();
            // Somebody who looks at it all the time has its pages in memory.
            assert_eq!(late.ask(&format!("open held r {}", path.display())), "ok", "{id}");
            assert_eq!(late.ask(&format!("map held m {LARGE} r")), "ok", "{id}");
            late.ask("glance m");
            one.tell(&format!("loop {} {turns} 2 {}", first.name(), path.display()));
            two.tell(&format!("loop {} {turns} 3 {}", second.name(), path.display()));
            for _ in 0..20 {
                let seen = late.ask("glance m");
                assert!(!seen.contains("foreign"), "{id}: {seen}");
            }
            for (role, child) in [(first, &mut one), (*second, &mut two)] {
                let answer = child.answer();
                // A file that others are renamed over is there all the time.
                let removed = [first, *second].contains(&Unlink);
                assert!(answer == "ok" || removed && answer == "in vain", "{id}: {}: {answer}", role.name());
            }
            assert_eq!(late.ask(&format!("open f r {}", path.display())), "ok", "{id}");
            let read = late.ask("see f");
            assert_eq!(late.ask(&format!("open d rd {}", path.display())), "ok", "{id}");
            assert_eq!(late.ask("see d"), read, "{id}: what the cache has is stale");
            assert_eq!(late.ask(&format!("map f n {LARGE} r")), "ok", "{id}");
            let mapped = late.ask("glance n");
            assert!(mapped.starts_with(&read) || read == "empty", "{id}: mapped {mapped}, read {read}");
            if late.ask(&format!("same-file held {}", path.display())) == "yes" {
                assert_eq!(late.ask("see held"), read, "{id}: the one who held it sees something else");
                assert_eq!(late.ask("glance m"), mapped, "{id}: the one who had it mapped sees something else");
            }
            for command in ["unmap m", "unmap n", "close f", "close d", "close held"] {
                assert_eq!(late.ask(command), "ok", "{id}");
            }
            files.push((id, path, read));
        }
    }
    mount.remount();
    for (id, path, read) in files {
        assert_eq!(late.ask(&format!("open f r {}", path.display())), "ok", "{id}");
        assert_eq!(late.ask("see f"), read, "{id}: after a remount");
        assert_eq!(late.ask("close f"), "ok");
    }
    for child in [one, two, late] {
        child.end();
    }
}

/// A page that is loaded while a program that only writes is writing it must not stay as it was: nothing would ever
/// load it again.
///
/// Proves F3, O2.
fn a_mapping_does_not_keep_what_was_overwritten_while_it_was_loaded(setup: Setup) {
    let mount = setup.mount();
    let path = mount.at("f");
    std::fs::write(&path, vec![1; 16 * 4096]).unwrap();
    let (mut writer, mut reader, mut direct) = (child(["do"]), child(["do"]), child(["do"]));
    assert_eq!(reader.ask(&format!("open f r {}", path.display())), "ok");
    assert_eq!(reader.ask(&format!("map f m {} r", 16 * 4096)), "ok");
    assert_eq!(direct.ask(&format!("open f rd {}", path.display())), "ok");
    for round in 0..20 {
        writer.tell(&format!("loop write-only {} 0 {}", 20 + round, path.display()));
        for _ in 0..20 {
            reader.ask("glance m");
        }
        assert_eq!(writer.answer(), "ok");
        let there = direct.ask("see f");
        assert_eq!(reader.ask("glance m"), there, "round {round}: the mapping");
        assert_eq!(reader.ask("see f"), there, "round {round}: the cache");
    }
}

/// What is loaded into the cache while asynchronous writes are under way (libaio; io_uring goes the same way) must not
/// stay there once they are done.
///
/// Proves O2, F3.
fn asynchronous_writes_leave_nothing_stale(setup: Setup) {
    see_asynchronous_writes(setup);
}

/// The files are in server mode then, also on a mount that has passthrough.
///
/// Proves O2.
fn asynchronous_writes_leave_nothing_stale_with_durability_write(setup: Setup) {
    see_asynchronous_writes(setup.mount_with(["--durability", "write"]));
}

fn see_asynchronous_writes(setup: Setup) {
    let mount = setup.mount();
    for flags in ["rwd", "wd", "w"] {
        let path = mount.at(format!("f-{flags}"));
        std::fs::write(&path, vec![1; 16 * 4096]).unwrap();
        let mut writer = child(["do"]);
        assert_eq!(writer.ask(&format!("open f {flags} {}", path.display())), "ok");
        let mut readers = [(); 2].map(|()| child(["do"]));
        for reader in &mut readers {
            assert_eq!(reader.ask(&format!("open f r {}", path.display())), "ok");
            assert_eq!(reader.ask(&format!("open d rd {}", path.display())), "ok");
            assert_eq!(reader.ask(&format!("map f m {} r", 16 * 4096)), "ok");
        }
        let [reader, loader] = &mut readers;
        loader.tell("churn f m");
        for round in 0..30 {
            let byte = 1 + round % 9;
            assert_eq!(writer.ask(&format!("put-at-once f 16 {byte}")), "ok", "{flags}, round {round}");
            for look in ["glance m", "see f", "see d"] {
                assert_eq!(reader.ask(look), format!("16*{byte}"), "{flags}, round {round}: {look}");
            }
        }
    }
}

/// While a listing waits for the host over one file, another one that it has yet to tell of is closed. The kernel keeps
/// for long what a listing tells of a file that is closed.
///
/// Proves O2.
fn a_listing_tells_nothing_from_before_a_close(setup: Setup) {
    let calls = HostCalls::new();
    let mount = setup.host_calls(&calls).mount();
    if mount.is_plain() {
        return;
    }
    let dir = mount.at("dir");
    std::fs::create_dir(&dir).unwrap();
    let mut open = Vec::new();
    for n in 0..8 {
        let path = dir.join(format!("f{n}"));
        let mut file = std::fs::File::create(&path).unwrap();
        std::io::Write::write_all(&mut file, b"first").unwrap();
        open.push((path, file));
    }
    let before = mount.info()["counters"]["release"].as_u64().unwrap();
    for (_, file) in &mut open {
        std::io::Write::write_all(file, b" and more").unwrap();
    }
    let held = calls.add(Rule::of(Call::Fstat).on("/segments/").times(1).held());
    let listed = dir.clone();
    let lister = std::thread::spawn(move || std::fs::read_dir(listed).unwrap().count());
    held.wait_for_waiting(1);
    let paths: Vec<_> = open.into_iter().map(|(path, _)| path).collect();
    // That of the one which is held cannot be over.
    while mount.info()["counters"]["release"].as_u64().unwrap() < before + paths.len() as u64 - 1 {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    drop(held);
    assert_eq!(lister.join().unwrap(), paths.len());
    for path in paths {
        assert_eq!(std::fs::metadata(&path).unwrap().len(), "first and more".len() as u64, "{}", path.display());
    }
}
