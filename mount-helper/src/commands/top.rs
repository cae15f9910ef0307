//! `tensorfs top`: who does what on a mount, now.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::ask::requests::{Request, Requests};
use crate::cli::Top;
use crate::show::failure::Failure;
use crate::show::{output, size, table, text};

const INTERVAL: Duration = Duration::from_secs(2);

/// So long nothing is asked when nothing has come.
const PAUSE: Duration = Duration::from_millis(50);

/// So many processes, and directories, are told apart.
const MOST: usize = 10_000;

/// What was done together.
#[derive(Clone, Debug, Default, Serialize)]
struct Work {
    requests: u64,
    /// The time of all of them together, and of the one that took longest.
    seconds: f64,
    longest_seconds: f64,
    /// What that was.
    longest_kind: String,
    read_bytes: u64,
    written_bytes: u64,
    opened_passthrough: u64,
    opened_server: u64,
    errors: u64,
}

impl Work {
    fn add(&mut self, request: &Request) {
        self.requests += 1;
        self.seconds += request.seconds;
        if request.seconds >= self.longest_seconds {
            self.longest_seconds = request.seconds;
            self.longest_kind.clone_from(&request.kind);
        }
        match &*request.kind {
            "read" => self.read_bytes += request.bytes.unwrap_or(0),
            "write" | "copy_file_range" => self.written_bytes += request.bytes.unwrap_or(0),
            _ => {}
        }
        match request.passthrough {
            Some(true) => self.opened_passthrough += 1,
            Some(false) => self.opened_server += 1,
            None => {}
        }
        // That there is no such name is an answer.
        let is_answer = matches!(request.error.as_deref(), None | Some("ENOENT" | "ENODATA" | "ENOSYS"));
        self.errors += u64::from(!is_answer);
    }
}

/// What somebody did, or what was done somewhere.
#[derive(Debug, Serialize)]
struct Row {
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
    name: String,
    /// Its bytes, if that is no text.
    #[serde(skip_serializing_if = "Option::is_none")]
    name_bytes: Option<Vec<u8>>,
    #[serde(flatten)]
    work: Work,
}

/// What was seen in an interval.
#[derive(Debug, Default)]
struct Seen {
    processes: HashMap<(Option<u32>, String), Work>,
    directories: HashMap<PathBuf, Work>,
    requests: u64,
    lost: u64,
}

#[derive(Debug, Serialize)]
struct Told<'a> {
    seconds: f64,
    requests: u64,
    /// Requests that came too fast to be seen.
    lost: u64,
    processes: &'a [Row],
    directories: &'a [Row],
}

/// Runs the command, which ends by a signal, after so many times, or when nobody reads any more.
pub fn run(arguments: &Top) -> Result<(), Failure> {
    let mut requests = Requests::of(&arguments.target)?;
    let interval = arguments.interval.unwrap_or(INTERVAL);
    let mut left = arguments.count.unwrap_or(u64::MAX);
    while left > 0 && output::is_read() {
        let begun = Instant::now();
        let mut seen = Seen::default();
        while begun.elapsed() < interval {
            let came = requests.take()?;
            seen.lost += came.lost;
            came.requests.iter().for_each(|request| seen.add(request));
            if came.requests.is_empty() {
                thread::sleep(PAUSE.min(interval.saturating_sub(begun.elapsed())));
            }
        }
        left -= 1;
        output::print(&seen.tell(arguments, begun.elapsed())?)?;
    }
    Ok(())
}

impl Seen {
    fn add(&mut self, request: &Request) {
        self.requests += 1;
        let process = (request.pid, request.process.clone().unwrap_or_else(|| "kernel".to_owned()));
        if self.processes.len() < MOST || self.processes.contains_key(&process) {
            self.processes.entry(process).or_default().add(request);
        }
        let directory = directory(request.path());
        if self.directories.len() < MOST || self.directories.contains_key(&directory) {
            self.directories.entry(directory).or_default().add(request);
        }
    }

    fn tell(self, arguments: &Top, over: Duration) -> Result<String, Failure> {
        let (requests, lost) = (self.requests, self.lost);
        let processes = self.processes.into_iter();
        let processes = processes.map(|((pid, name), work)| Row { pid, name, name_bytes: None, work });
        let processes = busiest(processes.collect(), arguments.rows);
        let directories = self.directories.into_iter().map(|(directory, work)| Row {
            pid: None,
            name: directory.to_string_lossy().into_owned(),
            name_bytes: text::no_text(&directory),
            work,
        });
        let directories = busiest(directories.collect(), arguments.rows);
        let seconds = over.as_secs_f64();
        if arguments.json {
            let told = Told { seconds, requests, lost, processes: &processes, directories: &directories };
            return serde_json::to_string(&told)
                .map(|text| text + "\n")
                .map_err(|error| Failure::new(error.to_string()));
        }
        let mut said = format!("{:.0} requests a second", requests as f64 / seconds);
        if lost > 0 {
            said += &format!("; {lost} more came too fast to be seen");
        }
        Ok(said + "\n" + &rows("PROCESS", &processes, seconds) + &rows("DIRECTORY", &directories, seconds) + "\n")
    }
}

/// What a request is about, up to the last name of its path.
fn directory(path: Option<&Path>) -> PathBuf {
    path.map_or(Path::new("(not known)"), |path| path.parent().unwrap_or(Path::new("/"))).to_owned()
}

/// Those who kept the server busy for longest.
fn busiest(mut rows: Vec<Row>, most: usize) -> Vec<Row> {
    rows.sort_by(|one, other| other.work.seconds.total_cmp(&one.work.seconds).then_with(|| one.name.cmp(&other.name)));
    rows.truncate(most);
    rows
}

fn rows(title: &str, rows: &[Row], seconds: f64) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let heads = ["REQ/S", "MEAN", "LONGEST", "", "READ/S", "WRITE/S", "OPENS", "ERRORS"].map(str::to_owned).to_vec();
    let cells = |row: &Row| {
        let work = &row.work;
        let rate = |bytes: u64| if bytes == 0 { String::new() } else { size::humane((bytes as f64 / seconds) as u64) };
        let opens = work.opened_passthrough + work.opened_server;
        let opens =
            if opens == 0 { String::new() } else { format!("{}+{}", work.opened_passthrough, work.opened_server) };
        vec![
            format!("{:.0}", work.requests as f64 / seconds),
            text::duration(work.seconds / work.requests.max(1) as f64),
            text::duration(work.longest_seconds),
            text::plain(&work.longest_kind),
            rate(work.read_bytes),
            rate(work.written_bytes),
            opens,
            if work.errors == 0 { String::new() } else { work.errors.to_string() },
        ]
    };
    let all: Vec<Vec<String>> = [heads].into_iter().chain(rows.iter().map(cells)).collect();
    let widths = table::widths(all.iter().map(Vec::as_slice), all[0].len());
    let name = |row: &Row| match row.pid {
        Some(pid) => format!("{}[{pid}]", text::plain(&row.name)),
        None => text::plain(&row.name),
    };
    let names = [title.to_owned()].into_iter().chain(rows.iter().map(name));
    all.iter().zip(names).map(|(cells, name)| table::line(cells, &widths, &name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_counts_for_the_directory_that_it_is_in() {
        for (path, of) in [("/a/b/c", "/a/b"), ("/a", "/"), ("/", "/")] {
            assert_eq!(directory(Some(Path::new(path))), Path::new(of));
        }
    }
}
