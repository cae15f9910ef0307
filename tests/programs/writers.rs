//! What is seen of what the libraries write, in each way that they are used: a table in docs/TENSORS.md, of which every
//! cell is tried with the library itself. A second one has a reason for each way that a library does not have.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use tensorfs_tests::{Mount, Setup, on_mounts, wait_until, xattr};

on_mounts!(
    what_is_seen_of_a_writer_is_what_the_table_says,
    what_is_seen_of_torch_is_what_the_table_says,
    what_is_seen_of_orbax_is_what_the_table_says,
    what_is_seen_of_trainers_is_what_the_table_says,
);

const HEADING: &str = "## Writers, and what is seen of their files";
const REASONS: &str = "### Ways that there are not";
const WAYS: [&str; 5] = ["once", "appended", "live", "killed", "sharded"];
const NONE: &str = "-";
/// What is not in the environments of the others.
const TRAINERS: [&str; 10] = [
    "SummaryWriter",
    "torch.export.save",
    "Keras",
    "Keras, weights",
    "save_pretrained",
    "save_pretrained, before safetensors",
    "Trainer",
    "Lightning",
    "FSDP, two ranks",
    "fully_shard, two ranks",
];
/// What is sealed as it grows (C9), and whose writer goes on when it is told to.
const GROWING: [&str; 2] = ["tensorboardX", "smdebug"];
/// So often it is looked at whether it is, which takes a process each time.
const LOOKS: usize = 1000;

/// What a cell says: `sealed, 3 records, 2 tensors`.
#[derive(Debug, PartialEq)]
struct Seen {
    state: String,
    records: Option<u64>,
    tensors: u64,
    left_out: u64,
}

impl Seen {
    fn from_cell(cell: &str) -> Self {
        let mut parts = cell.split(", ");
        let state = parts.next().unwrap().to_owned();
        let mut numbers = parts.map(|part| part.split_once(' ').unwrap()).map(|(n, what)| (what, n.parse().unwrap()));
        let mut seen = Self { state, records: None, tensors: 0, left_out: 0 };
        for (what, number) in &mut numbers {
            match what {
                "record" | "records" => seen.records = Some(number),
                "tensor" | "tensors" => seen.tensors = number,
                "left out" => seen.left_out = number,
                _ => panic!("{cell}: {what}"),
            }
        }
        seen
    }

    fn of(mount: &Mount, path: &Path) -> Self {
        let state = states_at(path).into_iter().collect::<Vec<_>>().join(" and ");
        if path.is_file() {
            let (records, tensors) = (Some(number(path, "records")), number(path, "tensors"));
            return Self { state, records, tensors, left_out: 0 };
        }
        // Of parts it is told whether they are all there, if anything says which there have to be.
        let complete = attribute(path, "complete");
        assert!(complete.is_some() || !path.join("manifest.ocdbt").exists(), "{}: a database", path.display());
        let listed = mount.tensorfs(["tensors".as_ref(), "--json".as_ref(), path.as_os_str()]);
        assert!(listed.status.success(), "{listed:?}");
        let [tensors, left_out] = [listed.stdout, listed.stderr].map(|text| String::from_utf8(text).unwrap());
        let left_out = left_out.lines().filter(|line| line.contains("is left out")).count() as u64;
        let tensors = tensors.lines().count() as u64;
        Self { state: complete.unwrap_or(state), records: None, tensors, left_out }
    }
}

/// The rows of the table: a writer, and what is seen of it in each way.
fn table() -> Vec<(String, Vec<String>)> {
    let mut rows = rows_below(HEADING);
    assert_eq!(rows.remove(0)[1..], WAYS);
    rows.into_iter().map(|row| (row[0].clone(), row[1..].to_vec())).collect()
}

/// Of which writers there is no such way, and why.
fn reasons() -> BTreeMap<(String, String), String> {
    let mut reasons = BTreeMap::new();
    for row in &rows_below(REASONS)[1..] {
        for (writer, way) in row[0].split("; ").flat_map(|writer| row[1].split(", ").map(move |way| (writer, way))) {
            let before = reasons.insert((writer.to_owned(), way.to_owned()), row[2].clone());
            assert_eq!(before, None, "{writer}, {way}: two reasons");
        }
    }
    reasons
}

/// The cells of the first table below a heading of docs/TENSORS.md, its head first.
fn rows_below(heading: &str) -> Vec<Vec<String>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("docs/TENSORS.md");
    let text = fs::read_to_string(path).unwrap();
    let section = text.split(&format!("{heading}\n")).nth(1).expect("the section");
    let lines = section.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    let cells = |line: &str| line.split('|').map(|cell| cell.trim().replace('`', "")).collect::<Vec<_>>();
    let mut rows: Vec<_> = lines.map(|line| cells(line)[1..].to_vec()).collect();
    rows.iter_mut().for_each(|row| assert_eq!(row.pop().as_deref(), Some("")));
    rows.remove(1);
    rows
}

#[test]
fn each_way_that_there_is_not_has_a_reason_and_no_other_has() {
    let row = |(writer, cells): (String, Vec<String>)| {
        let ways = WAYS.iter().zip(cells).filter(|(_, cell)| cell == NONE);
        ways.map(|(way, _)| (writer.clone(), (*way).to_owned())).collect::<Vec<_>>()
    };
    let without: BTreeSet<_> = table().into_iter().flat_map(row).collect();
    let reasons = reasons();
    assert!(reasons.values().all(|why| why.len() > 20), "{reasons:?}");
    assert_eq!(without, reasons.into_keys().collect());
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

    /// Has it write more.
    fn go_on(&mut self) {
        self.process.stdin.as_mut().unwrap().write_all(b"more\n").unwrap();
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

/// What is seen of what nobody writes any more, once it is sealed; and that each checksum is that of the bytes.
fn at_rest(mount: &Mount, path: &Path) -> Seen {
    let sealed = mount.tensorfs(["seal".as_ref(), path.as_os_str()]);
    assert!(sealed.status.success(), "{sealed:?}");
    for file in files_at(path) {
        let checksum = attribute(&file, "checksum").unwrap_or_else(|| panic!("{}: no checksum", file.display()));
        assert_eq!(checksum, format!("{:08x}", crc32c::crc32c(&fs::read(&file).unwrap())), "{}", file.display());
    }
    let (states, complete) = (states_at(path), attribute(path, "complete"));
    let verified = mount.tensorfs(["verify".as_ref(), path.as_os_str()]);
    let is_whole = !states.contains("interrupted") && complete.as_deref().is_none_or(|complete| complete == "complete");
    assert_eq!(verified.status.code(), Some(if is_whole { 0 } else { 5 }), "{verified:?}");
    Seen::of(mount, path)
}

/// What is seen of what somebody is still writing: it has no checksum. Of a directory it may be that nobody has any of
/// its files open, for all that the program has not done yet.
fn in_the_making(mount: &Mount, path: &Path) -> Seen {
    if path.is_file() {
        assert_eq!(attribute(path, "checksum"), None, "{}: somebody writes it", path.display());
        return Seen::of(mount, path);
    }
    mount.tensorfs_ok(["sync".as_ref(), mount.path().as_os_str()]);
    wait_until("each file is closed", || !states_at(path).contains("open"));
    let seen = Seen::of(mount, path);
    let is_closed = ["committed", "committed and sealed", "sealed"].contains(&seen.state.as_str());
    Seen { state: if is_closed { "closed".to_owned() } else { seen.state }, ..seen }
}

/// An event file is sealed as it grows: each record has the checksum of its bytes before its writer writes more.
fn is_sealed_as_it_grows(mount: &Mount, running: &mut Writer) {
    let path = running.path.clone();
    let mut before = 0;
    for turn in 0..2 {
        let sealed = (0..LOOKS).find_map(|_| {
            std::thread::sleep(std::time::Duration::from_millis(50));
            // What is sealed is what is durable.
            File::open(&path).unwrap().sync_all().unwrap();
            let (len, records) = (fs::metadata(&path).unwrap().len(), records_of(mount, &path));
            (len > before && sealed_to(&records) == len).then_some(records)
        });
        let records = sealed.unwrap_or_else(|| panic!("{}, turn {turn}: not all of it is sealed", path.display()));
        let bytes = fs::read(&path).unwrap();
        for record in &records {
            let [offset, len] = ["offset", "len"].map(|name| record[name].as_u64().unwrap() as usize);
            let checksum = format!("{:08x}", crc32c::crc32c(&bytes[offset..offset + len]));
            assert_eq!(record["crc32c"].as_str(), Some(checksum.as_str()), "{record}");
        }
        assert!(records.iter().any(|record| record["state"] == "provisional"), "{records:?}");
        assert_eq!(attribute(&path, "state").as_deref(), Some("open"));
        before = bytes.len() as u64;
        running.go_on();
    }
}

fn records_of(mount: &Mount, path: &Path) -> Vec<Value> {
    let listed = mount.tensorfs_ok(["records".as_ref(), "--json".as_ref(), path.as_os_str()]);
    listed.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Where the records end that have a checksum.
fn sealed_to(records: &[Value]) -> u64 {
    let sealed = records.iter().take_while(|record| record["crc32c"].is_string());
    sealed.last().map_or(0, |record| record["offset"].as_u64().unwrap() + record["len"].as_u64().unwrap())
}

/// A file, or all that are below a directory.
fn files_at(path: &Path) -> Vec<PathBuf> {
    if !path.is_dir() {
        return vec![path.to_owned()];
    }
    fs::read_dir(path).unwrap().flat_map(|entry| files_at(&entry.unwrap().path())).collect()
}

/// The states of a file, or of all that are below a directory.
fn states_at(path: &Path) -> BTreeSet<String> {
    files_at(path).iter().map(|file| attribute(file, "state").unwrap()).collect()
}

/// Waits until it is known that the writer of a file was killed. No commit helps it on.
fn wait_for_interrupted(path: &Path, writer: &str) {
    let known = (0..6000).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(10));
        states_at(path).contains("interrupted")
    });
    assert!(known, "{writer}: it is not known that it was killed");
}

fn seen(mount: &Mount, python: &Path, (writer, way): (&str, &str), is_interrupted: bool) -> Option<Seen> {
    let directory = mount.at(format!("{way} by {writer}"));
    let mut running = Writer::start(python, &directory, writer, way)?;
    let path = running.path.clone();
    if way == "live" {
        let seen = in_the_making(mount, &path);
        if GROWING.contains(&writer) {
            is_sealed_as_it_grows(mount, &mut running);
        }
        running.end();
        return Some(seen);
    }
    if way == "killed" {
        running.kill();
        // Not so if none of its files was open then.
        if is_interrupted {
            wait_for_interrupted(&path, writer);
        }
    } else {
        running.end();
    }
    Some(at_rest(mount, &path))
}

fn holds(setup: Setup, environment: &str, is_asked: impl Fn(&str) -> bool) {
    let Some(python) = setup.python(environment) else { return };
    // A commit in the middle of a save makes a record more.
    let mount = setup.mount_with(["--commit", "3600"]).mount();
    if mount.is_plain() {
        return;
    }
    let mut rows: Vec<_> = table().into_iter().filter(|(writer, _)| is_asked(writer)).collect();
    assert!(!rows.is_empty());
    if let Ok(only) = std::env::var("TENSORFS_WRITERS") {
        rows.retain(|(writer, _)| only.split("; ").any(|one| one == writer));
    }
    let mut wrong = Vec::new();
    for (writer, cells) in rows {
        for (way, cell) in WAYS.iter().zip(cells) {
            let told = if cell == NONE { None } else { Some(Seen::from_cell(&cell)) };
            let is_interrupted = cell.contains("interrupted");
            let mut seen = seen(&mount, &python, (writer.as_str(), *way), is_interrupted);
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
