//! The requests of a mount, as they are answered.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::mounting::sight;
use crate::mounting::target::Target;
use crate::show::failure::{Failure, reason};
use crate::show::text;

/// Where a mounted filesystem tells of them.
const TRACE: &str = ".tensorfs/trace";

/// A line of it is shorter, whatever paths there are.
const LINE: usize = 1 << 20;

/// A request that was answered. What the server says beyond that is left alone.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Request {
    /// When it came, in seconds since 1970.
    pub time: f64,
    /// What was asked.
    pub kind: String,
    /// The process, if one asked that the server can see.
    pub pid: Option<u32>,
    /// What it is called.
    pub process: Option<String>,
    /// The user.
    pub uid: u32,
    /// What it is about, from the mount's root on, if that is known.
    pub path: Option<String>,
    /// The path's bytes, if it is no text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_bytes: Option<Vec<u8>>,
    /// Its number, or that of the directory.
    pub ino: u64,
    /// From when it came to its answer.
    pub seconds: f64,
    /// What was waited for meanwhile, in seconds.
    pub waits: BTreeMap<String, f64>,
    /// Bytes that were read, written or copied.
    pub bytes: Option<u64>,
    /// Of an open: whether the kernel moves the bytes.
    pub passthrough: Option<bool>,
    /// What it failed with.
    pub error: Option<String>,
}

impl Request {
    /// What it is about, as it is, from the mount's root on, if that is known.
    pub fn path(&self) -> Option<&Path> {
        text::told_path(self.path.as_deref(), self.path_bytes.as_deref())
    }

    /// Who asked: `python3[123]`.
    pub fn who(&self) -> String {
        match (&self.process, self.pid) {
            (Some(name), Some(pid)) => format!("{}[{pid}]", text::plain(name)),
            _ => "kernel".to_owned(),
        }
    }

    /// Why it took so long, in so far as that is known.
    pub fn reason(&self) -> String {
        let longest = self.waits.iter().max_by(|one, other| one.1.total_cmp(other.1));
        match longest {
            Some((what, seconds)) if *seconds * 2.0 >= self.seconds => {
                format!("waited {} for {}", text::duration(*seconds), meaning(what))
            }
            _ => "worked, or waited for calls of the host that are not told apart".to_owned(),
        }
    }
}

/// What is waited for, by the server's word for it.
fn meaning(what: &str) -> &str {
    match what {
        "queue" => "a free thread",
        "lock" => "another request about the file",
        "others" => "others who have the file open",
        "host" => "the host, to read or write bytes",
        "sync" => "the host, to make the bytes durable",
        "log" => "the pool's log",
        "commit" => "a commit",
        "reader" => "a look into the file",
        other => other,
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    Lost { lost: u64 },
    Request(Box<Request>),
}

/// What the requests of a mount are read from.
pub struct Requests {
    file: File,
    mount: PathBuf,
    /// What was read of a line whose end is still to come.
    rest: Vec<u8>,
    buffer: Vec<u8>,
}

/// What came since the last time.
#[derive(Default)]
pub struct Came {
    pub requests: Vec<Request>,
    /// How many more there were, which nobody took in time.
    pub lost: u64,
}

impl Requests {
    /// Begins to look at the requests of a mount.
    pub fn of(target: &Path) -> Result<Self, Failure> {
        let mount = Target::of(target)?.mount()?;
        if mount.is_dead() {
            return Err(Failure::new(super::about::gone(&mount)));
        }
        let whole = sight::whole(&mount)?;
        let place = whole.mount_point();
        Ok(Self { file: open(place)?, mount: place.to_owned(), rest: Vec::new(), buffer: vec![0; 128 << 10] })
    }

    /// What came since the last time, or some of it.
    pub fn take(&mut self) -> Result<Came, Failure> {
        let read = match self.file.read(&mut self.buffer) {
            // Another server has taken over, which begins anew.
            Err(error) if error.raw_os_error() == Some(libc::EBADF) => {
                self.rest.clear();
                self.file = open(&self.mount)?;
                0
            }
            read => read.map_err(|error| Failure::at(&self.mount, reason(&error)))?,
        };
        self.rest.extend_from_slice(&self.buffer[..read]);
        let mut came = Came::default();
        let end = self.rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        for line in self.rest.drain(..end).collect::<Vec<_>>().split(|byte| *byte == b'\n') {
            match serde_json::from_slice(line) {
                _ if line.is_empty() => {}
                Ok(Line::Lost { lost }) => came.lost += lost,
                Ok(Line::Request(request)) => came.requests.push(*request),
                Err(_) => return Err(self.unknown()),
            }
        }
        if self.rest.len() > LINE { Err(self.unknown()) } else { Ok(came) }
    }

    fn unknown(&self) -> Failure {
        Failure::at(&self.mount, "its server speaks of something unknown here")
    }
}

/// What the requests of a mount are told by.
fn open(mount: &Path) -> Result<File, Failure> {
    File::open(mount.join(TRACE)).map_err(|error| match error.kind() {
        ErrorKind::NotFound => Failure::at(mount, "its server is of a version that cannot be looked at so"),
        ErrorKind::PermissionDenied => {
            Failure::at(mount, "only root and the user who runs the server see who asks for what")
        }
        _ if error.raw_os_error() == Some(libc::ENFILE) => {
            Failure::at(mount, "eight others look already, and no more may")
        }
        _ => Failure::at(mount, reason(&error)),
    })
}
