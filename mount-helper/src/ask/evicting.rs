//! Having files of a mount leave for the pool's remote: the program that knows remotes looks whether all of a file is
//! there, and the server whether it is what was carried.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::thread::{self, JoinHandle};

use serde::Deserialize;
use tensorfs_layout::Ino;

use crate::ask::carrier;
use crate::show::failure::{At, Failure};

/// Bytes of what that program complains of that are kept.
const COMPLAINTS: usize = 64 << 10;

/// What came of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Evicted {
    /// Its bytes are in the remote alone.
    Gone,
    /// It has none.
    Empty,
    /// It is where it was.
    Stays(String),
}

/// The program at work. It ends with this.
pub struct Evicting {
    path: PathBuf,
    child: Child,
    asks: Option<ChildStdin>,
    tells: BufReader<ChildStdout>,
    complaints: Option<JoinHandle<String>>,
}

#[derive(Deserialize)]
struct Told {
    ino: u64,
    gone: bool,
    why: Option<String>,
}

impl Evicting {
    /// Starts it for the mount that a path is on.
    pub fn start(path: &Path, check_data: bool) -> Result<Self, Failure> {
        let mut command = carrier::command();
        command.arg("evict").args(check_data.then_some("--check-data")).arg("--").arg(path);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| carrier::reason(&error))?;
        let (asks, tells, complains) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let Some(tells) = tells.map(BufReader::new) else { return Err(Failure::at(path, "nobody answers")) };
        let complaints = complains.map(|mut complains| {
            thread::spawn(move || {
                let (mut last, mut some) = (Vec::new(), vec![0; COMPLAINTS]);
                while let Ok(read) = complains.read(&mut some)
                    && read > 0
                {
                    last.extend_from_slice(&some[..read]);
                    last.drain(..last.len().saturating_sub(COMPLAINTS));
                }
                String::from_utf8_lossy(&last).into_owned()
            })
        });
        Ok(Self { path: path.to_owned(), child, asks, tells, complaints })
    }

    /// Has a file leave.
    pub fn evict(&mut self, ino: Ino) -> Result<Evicted, Failure> {
        let mut line = String::new();
        let asked = self.asks.as_mut().map(|asks| writeln!(asks, "{ino}").and_then(|()| asks.flush()));
        if matches!(asked, Some(Ok(()))) {
            self.tells.read_line(&mut line).at(&self.path)?;
        }
        match serde_json::from_str::<Told>(&line) {
            Ok(told) if told.ino == ino.0 => Ok(match told.why {
                Some(why) => Evicted::Stays(why),
                None if told.gone => Evicted::Gone,
                None => Evicted::Empty,
            }),
            _ => Err(self.ended()),
        }
    }

    /// Why it has ended.
    fn ended(&mut self) -> Failure {
        self.asks = None;
        let said = self.complaints.take().and_then(|complaints| complaints.join().ok()).unwrap_or_default();
        let last = said.lines().last().map(|last| last.trim_start_matches("tensorfs remote: ").to_owned());
        last.map_or_else(|| Failure::at(&self.path, "tensorfs-carrier failed"), Failure::new)
    }
}

impl Drop for Evicting {
    fn drop(&mut self) {
        // It ends when nobody asks any more.
        self.asks = None;
        let _ = self.child.wait();
    }
}
