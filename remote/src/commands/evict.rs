//! `evict`: files leave a mount, as its remote has them. Whoever asks for them writes a number on a line, and reads
//! what came of it before the next one.

use std::fs;
use std::io::{self, BufRead};

use serde::Serialize;

use crate::commands::{cli, mount, show};
use crate::error::{Error, Result};
use crate::evict::{Evicted, Evictor};
use crate::fetching::Fetching;

/// A line.
#[derive(Serialize)]
struct Told {
    ino: u64,
    /// It needs no room here any more.
    gone: bool,
    /// Why it stays, if it has bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
}

pub fn run(arguments: &cli::Evict) -> Result<()> {
    let shown = arguments.path.display();
    let host = |source| Error::Host { path: shown.to_string(), what: "find", source };
    let path = fs::canonicalize(&arguments.path).map_err(host)?;
    let mount = mount::on_mount(&path).ok_or_else(|| Error::Refused(format!("{shown}: not on a tensorfs mount")))?;
    let fetching = Fetching::new(&mount.pool)?;
    let mut evictor = Evictor::of(&mount.pool, &mount.at, arguments.check_data, fetching)?;
    for line in io::stdin().lock().lines() {
        let line = line.map_err(|source| Error::Host { path: "standard input".into(), what: "read", source })?;
        let Ok(ino) = line.trim().parse() else {
            return Err(Error::Refused(format!("{:?} is no number of a file", line.trim())));
        };
        let (gone, why) = match evictor.evict(ino, false)? {
            Evicted::Gone => (true, None),
            Evicted::Empty => (false, None),
            Evicted::Stays(why) => (false, Some(why)),
        };
        show::json(&Told { ino, gone, why });
        show::printed()?;
    }
    evictor.see_to_fetching()
}
