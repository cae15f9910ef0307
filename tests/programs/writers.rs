//! What is seen of what the libraries write, in each way that they are used: a table in docs/TENSORS.md, of which every
//! cell is tried with the library itself.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tensorfs_tests::{Mount, Setup, on_mounts, xattr};

on_mounts!(
    what_is_seen_of_a_writer_is_what_the_table_says,
    what_is_seen_of_torch_is_what_the_table_says,
    what_is_seen_of_orbax_is_what_the_table_says,
    what_is_seen_of_trainers_is_what_the_table_says,
);

const HEADING: &str = "## Writers, and what is seen of their files";
const WAYS: [&str; 5] = ["once", "appended", "live", "killed", "sharded"];
const NONE: &str = "-";
/// What is not in the environments of the others.
const TRAINERS: [&str; 8] = [
    "SummaryWriter",
    "torch.export.save",
    "Keras",
    "Keras, weights",
    "Trainer",
    "Lightning",
    "FSDP, two ranks",
    "fully_shard, two ranks",
];

/// What a cell says: `sealed, 3 records, 2 tensors`.
#[derive(Debug, PartialEq)]
struct Seen {
    state: String,
    records: Option<u64>,
    tensors: u64,
}

impl Seen {
    fn from_cell(cell: &str) -> Self {
        let mut parts = cell.split(", ");
        let state = parts.next().unwrap().to_owned();
        let mut numbers = parts.map(|part| part.split_once(' ').unwrap()).map(|(n, what)| (what, n.parse().unwrap()));
        let mut seen = Self { state, records: None, tensors: 0 };
        for (what, number) in &mut numbers {
            match what {
                "record" | "records" => seen.records = Some(number),
                "tensor" | "tensors" => seen.tensors = number,
                _ => panic!("{cell}: {what}"),
            }
        }
        seen
    }
}

/// The rows of the table: a writer, and what is seen of it in each way.
fn table() -> Vec<(String, Vec<String>)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("docs/TENSORS.md");
    let text = std::fs::read_to_string(path).unwrap();
    let section = text.split(HEADING).nth(1).expect("the section").split("\n## ").next().unwrap();
    let cells = |line: &str| line.split('|').map(|cell| cell.trim().replace('`', "")).collect::<Vec<_>>();
    let mut lines = section.lines().filter(|line| line.starts_with('|')).map(cells);
    assert_eq!(lines.next().unwrap()[2..7], WAYS);
    lines.skip(1).map(|row| (row[1].clone(), row[2..7].to_vec())).collect()
}

/// A client that writes one file in one way.
struct Writer {
    process: Child,
    path: PathBuf,
}

impl Writer {
    /// Starts it and waits for what it has to say; nothing if its library has no such way.
    fn start(python: &Path, directory: &Path, writer: &str, way: &str) -> Option<Self> {
        let mut command = Command::new(python);
        command.arg(tensorfs_tests::client_file("writers_client.py")).arg(directory).args([writer, way]);
        command.env("PYTHONDONTWRITEBYTECODE", "1").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        // Libraries may say something, too.
        let (mut last, mut waits) = (String::new(), false);
        for line in BufReader::new(process.stdout.as_mut().unwrap()).lines() {
            let line = line.unwrap();
            let is_ready = last == "ready";
            last = line;
            if is_ready {
                waits = true;
                break;
            }
        }
        if last == "none" {
            assert!(process.wait().unwrap().success());
            return None;
        }
        assert!(!last.is_empty(), "{writer}, {way}: it said nothing");
        assert_eq!(waits, ["live", "killed"].contains(&way), "{writer}, {way}");
        Some(Self { process, path: PathBuf::from(last) })
    }

    fn end(mut self) {
        drop(self.process.stdin.take());
        assert!(self.process.wait().unwrap().success());
    }

    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

fn attribute(path: &Path, name: &str) -> Option<String> {
    let value = xattr::get(path, format!("user.tensorfs.{name}")).ok()?;
    Some(String::from_utf8(value).unwrap())
}

fn number(path: &Path, name: &str) -> u64 {
    attribute(path, name).unwrap_or_else(|| panic!("{}: no {name}", path.display())).parse().unwrap()
}

/// What is seen of a file that nobody writes any more, once it is sealed; and that its checksum is that of its bytes.
fn at_rest(mount: &Mount, path: &Path) -> Seen {
    let sealed = mount.tensorfs(["seal".as_ref(), path.as_os_str()]);
    assert!(sealed.status.success(), "{sealed:?}");
    if path.is_dir() {
        let database = path.join("manifest.ocdbt").exists();
        assert_eq!(attribute(path, "complete"), database.then(|| "complete".to_owned()), "{}", path.display());
        return hierarchy_at_rest(mount, path);
    }
    let checksum = attribute(path, "checksum").unwrap_or_else(|| panic!("{}: no checksum", path.display()));
    assert_eq!(checksum, format!("{:08x}", crc32c::crc32c(&std::fs::read(path).unwrap())));
    let state = attribute(path, "state").unwrap();
    let verified = mount.tensorfs(["verify".as_ref(), path.as_os_str()]);
    assert_eq!(verified.status.code(), Some(if state == "interrupted" { 5 } else { 0 }), "{verified:?}");
    Seen { state, records: Some(number(path, "records")), tensors: number(path, "tensors") }
}

/// What is seen of a directory of arrays: the state of all of its files, and what arrays there are.
fn hierarchy_at_rest(mount: &Mount, directory: &Path) -> Seen {
    let verified = mount.tensorfs(["verify".as_ref(), directory.as_os_str()]);
    assert!(verified.status.success(), "{verified:?}");
    let state = states_below(directory).into_iter().collect::<Vec<_>>().join(" and ");
    Seen { state, records: None, tensors: together(mount, directory).tensors }
}

/// The states of all files below a directory.
fn states_below(directory: &Path) -> BTreeSet<String> {
    let mut states = BTreeSet::new();
    for path in std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            states.append(&mut states_below(&path));
        } else {
            states.insert(attribute(&path, "state").unwrap());
        }
    }
    states
}

/// What is seen of a directory of files that are one checkpoint.
fn together(mount: &Mount, directory: &Path) -> Seen {
    let listed = mount.tensorfs(["tensors".as_ref(), "--json".as_ref(), directory.as_os_str()]);
    assert!(listed.status.success(), "{listed:?}");
    let tensors = String::from_utf8(listed.stdout).unwrap().lines().count() as u64;
    let complete = attribute(directory, "complete").unwrap_or_default();
    Seen { state: complete, records: None, tensors }
}

/// Waits until it is known that the writer of a file was killed. No commit helps it on.
fn wait_for_interrupted(path: &Path, writer: &str) {
    let known = (0..6000).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(10));
        attribute(path, "state").unwrap() == "interrupted"
    });
    assert!(known, "{writer}: it is not known that it was killed");
}

fn seen(mount: &Mount, python: &Path, (writer, way): (&str, &str), is_open: bool) -> Option<Seen> {
    let directory = mount.at(format!("{way} by {writer}"));
    let mut running = Writer::start(python, &directory, writer, way)?;
    let path = running.path.clone();
    Some(match way {
        "live" => {
            let seen =
                Seen { state: attribute(&path, "state").unwrap(), records: None, tensors: number(&path, "tensors") };
            assert_eq!(attribute(&path, "checksum"), None, "{writer}: a file that somebody writes has no checksum");
            running.end();
            seen
        }
        "killed" => {
            running.kill();
            // Of a directory none of the files was open, nor is one that is closed behind each piece.
            if is_open && path.is_file() {
                wait_for_interrupted(&path, writer);
            }
            at_rest(mount, &path)
        }
        "sharded" => {
            running.end();
            together(mount, &path)
        }
        _ => {
            running.end();
            at_rest(mount, &path)
        }
    })
}

fn holds(setup: Setup, environment: &str, is_asked: impl Fn(&str) -> bool) {
    let Some(python) = setup.python(environment) else { return };
    // A commit in the middle of a save makes a record more.
    let mount = setup.mount_with(["--commit", "3600"]).mount();
    if mount.is_plain() {
        return;
    }
    let rows: Vec<_> = table().into_iter().filter(|(writer, _)| is_asked(writer)).collect();
    assert!(!rows.is_empty());
    let mut wrong = Vec::new();
    for (writer, cells) in rows {
        for (way, cell) in WAYS.iter().zip(cells) {
            let told = if cell == NONE { None } else { Some(Seen::from_cell(&cell)) };
            let is_open = cell.starts_with("interrupted");
            let mut seen = seen(&mount, &python, (writer.as_str(), *way), is_open);
            if let (Some(seen), Some(Seen { records: None, .. })) = (&mut seen, &told) {
                seen.records = None;
            }
            if seen != told {
                wrong.push(format!("{writer}, {way}: {seen:?}, and the table says {told:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Proves T7, T12, T13, C8.
fn what_is_seen_of_a_writer_is_what_the_table_says(setup: Setup) {
    holds(setup, "small", |writer| !writer.contains("torch") && writer != "Orbax" && !TRAINERS.contains(&writer));
}

/// Proves T7, T12, T13, C8.
fn what_is_seen_of_torch_is_what_the_table_says(setup: Setup) {
    holds(setup, "torch", |writer| writer.contains("torch") && !TRAINERS.contains(&writer));
}

/// Proves T13.
fn what_is_seen_of_orbax_is_what_the_table_says(setup: Setup) {
    holds(setup, "orbax", |writer| writer == "Orbax");
}

/// Proves T7, T12, T13.
fn what_is_seen_of_trainers_is_what_the_table_says(setup: Setup) {
    holds(setup, "trainers", |writer| TRAINERS.contains(&writer));
}
