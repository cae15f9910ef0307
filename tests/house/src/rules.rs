//! What the tests hold the code to. Each rule gives a line of text for each place that is against it: file, line, and
//! what is there.

use std::collections::{BTreeMap, BTreeSet};

use crate::arrows::Arrows;
use crate::circles::knots;
use crate::names::Names;
use crate::rooms::Rooms;
use crate::source::{Crate, Files};
use crate::structs::{Struct, structs};
use crate::text;
use crate::workspace::Package;

/// A module imports against the order of the rooms, or is in none.
pub fn against_order(of: &Crate, rooms: &Rooms) -> Vec<String> {
    let arrows = Arrows::of(&Names::new(of));
    rooms.breaches(of, &arrows.own).iter().map(ToString::to_string).collect()
}

/// Files name each other in a circle.
pub fn circles(of: &Crate) -> Vec<String> {
    let arrows = Arrows::of(&Names::new(of));
    knots(&arrows.own, |module| &of.modules[module].file).iter().map(ToString::to_string).collect()
}

/// Code outside of a directory names something of another crate.
pub fn foreign_outside(of: &Crate, foreign: &str, directory: &str) -> Vec<String> {
    let arrows = Arrows::of(&Names::new(of)).foreign.into_iter();
    arrows
        .filter(|arrow| arrow.path.first().is_some_and(|first| first == foreign) && !arrow.file.starts_with(directory))
        .map(|arrow| format!("{}:{}: {}", arrow.file.display(), arrow.line, arrow.path.join("::")))
        .collect()
}

/// Code outside of some directories names something of another crate that is not on a list, or the crate itself, under
/// which anything of it could be had.
pub fn unlisted_outside(of: &Crate, foreign: &str, listed: &[&str], directories: &[&str]) -> Vec<String> {
    let arrows = Arrows::of(&Names::new(of)).foreign.into_iter();
    arrows
        .filter(|arrow| {
            arrow.path.first().is_some_and(|first| first == foreign)
                && arrow.path.get(1).is_none_or(|what| !listed.contains(&what.as_str()))
                && !directories.iter().any(|directory| arrow.file.starts_with(directory))
        })
        .map(|arrow| format!("{}:{}: {}", arrow.file.display(), arrow.line, arrow.path.join("::")))
        .collect()
}

/// A crate of the order, which runs from the top down, depends on one above it, or on a member of the workspace that is
/// not in the order.
pub fn crates_against_order(packages: &[Package], order: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    for (at, name) in order.iter().enumerate() {
        for package in packages.iter().filter(|package| package.name == *name) {
            for other in &package.dependencies {
                let member = packages.iter().any(|package| package.name == *other);
                if member && !order[at + 1..].contains(&other.as_str()) {
                    found.push(format!("{}/Cargo.toml: {name} -> {other}", package.label()));
                }
            }
        }
    }
    found
}

/// Members of the workspace that are built with a crate which only `owner` may bring. `lock` is the text of Cargo.lock.
pub fn brings(lock: &str, members: &[Package], forbidden: &[&str], owner: &str) -> Vec<String> {
    let graph = locked(lock);
    let mut found = Vec::new();
    for member in members.iter().filter(|member| member.name != owner) {
        let mut ways: BTreeMap<&str, &str> = BTreeMap::new();
        let mut next = vec![member.name.as_str()];
        while let Some(at) = next.pop() {
            for other in graph.get(at).into_iter().flatten() {
                if other != owner && !ways.contains_key(other.as_str()) {
                    ways.insert(other, at);
                    next.push(other);
                }
            }
        }
        for name in forbidden {
            if let Some(by) = ways.get(name) {
                found.push(format!("Cargo.lock: {} is built with {name}, because {by} is", member.name));
            }
        }
    }
    found
}

/// Names of what each package depends on. Versions of one package count as one.
fn locked(lock: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut graph: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut name = String::new();
    for line in lock.lines() {
        if let Some(of) = line.strip_prefix("name = ") {
            name = of.trim_matches('"').to_owned();
        } else if let Some(entry) = line.strip_prefix(" \"") {
            let of = entry.split(['"', ' ']).next().unwrap_or_default();
            graph.entry(name.clone()).or_default().insert(of.to_owned());
        }
    }
    graph
}

/// A struct that a rule does not hold for: `module::Struct`, and why.
pub type Exception = (&'static str, &'static str);

fn excepted(of: &Crate, one: &Struct, exceptions: &[Exception]) -> bool {
    let module = of.modules[one.module].path.last().map_or("crate", String::as_str);
    exceptions.iter().any(|(name, _)| *name == format!("{module}::{}", one.name))
}

/// A struct has more fields than fit in a head.
pub fn large_structs(of: &Crate, most: usize, exceptions: &[Exception]) -> Vec<String> {
    let all = structs(&Names::new(of)).into_iter();
    all.filter(|one| one.fields.len() > most && !excepted(of, one, exceptions))
        .map(|one| format!("{}:{}: {} has {} fields", one.file.display(), one.line, one.name, one.fields.len()))
        .collect()
}

/// State has fields that are seen outside of its room. See [`crate::structs::State`] for what counts as state. A crate
/// without an order of rooms is one room.
pub fn shown_state(of: &Crate, rooms: Option<&Rooms>, exceptions: &[Exception]) -> Vec<String> {
    let mut found = Vec::new();
    for one in structs(&Names::new(of)) {
        let module = &of.modules[one.module];
        // What the table does not know is a room by itself.
        let room = rooms.map(|rooms| rooms.room_path(module).unwrap_or_else(|| module.path[..1].to_vec()));
        let room = room.unwrap_or_default();
        let shown = one.shown_beyond(&room);
        if let Some(why) = &one.state
            && !shown.is_empty()
            && !excepted(of, &one, exceptions)
        {
            let (file, line, fields) = (one.file.display(), one.line, shown.join(", "));
            found.push(format!("{file}:{line}: {} shows {fields} beyond its room, and is state: {why}", one.name));
        }
    }
    found
}

/// Exceptions that are not needed: without them, the rule finds nothing that they name.
pub fn needless(exceptions: &[Exception], without_them: &[String]) -> Vec<String> {
    let named = |name: &str| {
        let (module, of) = name.split_once("::").unwrap_or(("", name));
        without_them.iter().any(|line| {
            line.contains(&format!(": {of} "))
                && [format!("{module}.rs:"), format!("{module}/mod.rs:")].iter().any(|file| line.contains(file))
        })
    };
    let unused = exceptions.iter().filter(|(name, _)| !named(name));
    unused.map(|(name, _)| format!("{name} needs no exception")).collect()
}

/// A line of code or comment is too wide.
pub fn wide_lines(files: &Files, width: usize) -> Vec<String> {
    flaws(files, |file| text::too_long(file, width))
}

/// What reaches a file by its path, or makes a path of two. Each ends where a name or an argument begins.
const BY_PATH: [&str; 24] = [
    "fs::read",
    "fs::write",
    "fs::metadata",
    "fs::symlink_metadata",
    "fs::remove_",
    "fs::create_",
    "fs::rename",
    "fs::hard_link",
    "fs::copy",
    "fs::exists",
    "fs::canonicalize",
    "fs::set_permissions",
    "fs::symlink",
    "fs::chown",
    "DirBuilder::new",
    "File::open(",
    "File::create",
    "File::options(",
    "fs::OpenOptions",
    ".canonicalize()",
    ".symlink_metadata()",
    ".read_dir()",
    ".exists()",
    ".with_file_name(",
];

/// Code below a directory reaches a file of the host by a path, or makes a path of two, other than in a file that is
/// excepted. What only tests see is left out.
pub fn paths(files: &Files, directory: &str, exceptions: &[Exception]) -> Vec<String> {
    lines_that(files, directory, exceptions, |line| BY_PATH.iter().any(|call| line.contains(call)) || joins(line))
}

/// As [`paths`], for code that makes a path of two.
pub fn joined(files: &Files, directory: &str, exceptions: &[Exception]) -> Vec<String> {
    lines_that(files, directory, exceptions, joins)
}

/// A line makes a path of two.
fn joins(line: &str) -> bool {
    line.match_indices(".join(").any(|(at, call)| {
        let argument = &line[at + call.len()..];
        let between_words = argument.strip_prefix('"').and_then(|rest| rest.split_once('"'));
        let joins_words = between_words.is_some_and(|(text, _)| !text.contains(char::is_alphanumeric));
        // A thread that is waited for has none.
        !argument.starts_with(')') && !joins_words
    })
}

fn lines_that(files: &Files, directory: &str, exceptions: &[Exception], is_so: impl Fn(&str) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    for (path, text) in files.iter().filter(|(path, _)| path.starts_with(directory)) {
        if exceptions.iter().any(|(name, _)| path == std::path::Path::new(name)) {
            continue;
        }
        let code = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
        for (at, line) in code.lines().enumerate() {
            let line = line.trim();
            if !line.starts_with("//") && is_so(line) {
                found.push(format!("{}:{}: {line}", path.display(), at + 1));
            }
        }
    }
    found
}

/// Code below a directory, but for what only tests see, says one of some words.
pub fn says(files: &Files, directory: &str, words: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    for (path, text) in files.iter().filter(|(path, _)| path.starts_with(directory)) {
        let code = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
        let lines = code.lines().map(str::trim).enumerate();
        let said = lines.filter(|(_, line)| !line.starts_with("//") && words.iter().any(|word| line.contains(word)));
        found.extend(said.map(|(at, line)| format!("{}:{}: {line}", path.display(), at + 1)));
    }
    found
}

/// A comment begins with words that lean on another one.
pub fn leaning_comments(files: &Files, beginnings: &[&str]) -> Vec<String> {
    let leans = |comment: &str| {
        beginnings.iter().any(|begin| {
            comment.strip_prefix(begin).is_some_and(|rest| !rest.starts_with(|next: char| next.is_alphanumeric()))
        })
    };
    flaws(files, |file| {
        // To read a file takes long, and few have the words at all.
        if !beginnings.iter().any(|words| file.contains(words)) {
            return Vec::new();
        }
        text::comments(file).into_iter().filter(|(_, comment)| leans(comment)).collect()
    })
}

fn flaws(files: &Files, find: impl Fn(&str) -> Vec<text::Flaw>) -> Vec<String> {
    let mut found = Vec::new();
    for (path, file) in files.iter() {
        found.extend(find(file).into_iter().map(|(line, what)| format!("{}:{line}: {what}", path.display())));
    }
    found
}
