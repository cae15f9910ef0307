//! The file `.tensorfs/trace`: a line of JSON for each request that was answered since it was opened. What was not
//! there yet when somebody read to its end is there when he reads on.

use std::sync::Arc;
use std::time::UNIX_EPOCH;

use nix::errno::Errno;
use parking_lot::Mutex;
use serde::Serialize;
use tensorfs_layout::Ino;
use tensorfs_layout::tree::{View, spelled};

use crate::store::{Store, Traced, Watch};
use crate::waits::Wait;

use super::fixed::{DIRECTORY, FIXED, is_control};
use super::paths::Paths;

/// So many lines are made at a time.
const LOT: usize = 256;

/// One who looks at the requests of a mount.
pub(super) struct Requests {
    watch: Arc<Watch>,
    /// What was made of them and did not fit into what was asked for, and where files are.
    told: Mutex<Told>,
}

#[derive(Default)]
struct Told {
    left: Vec<u8>,
    paths: Paths,
}

/// What is told of requests. Fields are only ever added.
#[derive(Serialize)]
#[serde(untagged)]
enum Line<'a> {
    Lost { lost: u64 },
    Request(Box<Request<'a>>),
}

#[derive(Serialize)]
struct Request<'a> {
    /// When it came, in seconds since 1970.
    time: f64,
    kind: &'a str,
    pid: Option<u32>,
    process: Option<&'a str>,
    uid: u32,
    path: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_bytes: Option<Vec<u8>>,
    ino: u64,
    /// From when it came to its answer.
    seconds: f64,
    waits: Waits,
    bytes: Option<u64>,
    passthrough: Option<bool>,
    error: Option<String>,
}

/// What it waited for, in seconds; the rest is its own work, and other calls of the host.
struct Waits(Vec<(&'static str, f64)>);

impl Serialize for Waits {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().copied())
    }
}

impl Requests {
    /// Begins to look.
    pub fn new(watch: Arc<Watch>) -> Self {
        Self { watch, told: Mutex::default() }
    }

    /// So many bytes at most of what has come.
    pub fn read(&self, store: &Store, size: u32) -> Vec<u8> {
        let (size, mut told) = (size as usize, self.told.lock());
        let Told { left, paths } = &mut *told;
        while left.len() < size {
            let (lost, lot) = self.watch.take(LOT);
            if lost == 0 && lot.is_empty() {
                break;
            }
            if lost > 0 {
                add(left, &Line::Lost { lost });
            }
            learn(store, paths, &lot);
            paths.search(store);
            // Others may change the tree behind each: files can be deep.
            lot.iter().for_each(|traced| add(left, &Line::Request(Box::new(line(paths, &store.view(), traced)))));
        }
        let size = size.min(left.len());
        let rest = left.split_off(size);
        std::mem::replace(left, rest)
    }
}

fn add(text: &mut Vec<u8>, line: &Line<'_>) {
    if serde_json::to_writer(&mut *text, line).is_ok() {
        text.push(b'\n');
    }
}

/// What these requests say about where files are, and what they leave to be searched for.
fn learn(store: &Store, paths: &mut Paths, lot: &[Traced]) {
    for traced in lot.iter().filter(|traced| !is_control(traced.about)) {
        let view = store.view();
        if let Some(name) = &traced.name {
            paths.saw(&view, traced.about, name);
        }
        paths.of(&view, traced.about);
    }
}

fn line<'a>(paths: &mut Paths, view: &View, traced: &'a Traced) -> Request<'a> {
    let named = Wait::ALL.iter().map(|(wait, name)| (*name, traced.notes.waited(*wait)));
    let waits = [("queue", traced.queued)].into_iter().chain(named);
    let errno = traced.notes.errno;
    let (path, path_bytes) = spelled(path(paths, view, traced));
    Request {
        time: traced.at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64(),
        kind: traced.kind,
        pid: traced.process.as_ref().map(|(pid, _)| *pid),
        process: traced.process.as_ref().map(|(_, name)| &**name),
        uid: traced.uid,
        path,
        path_bytes,
        ino: traced.about.0,
        seconds: traced.took.as_secs_f64(),
        waits: Waits(
            waits.filter(|(_, time)| !time.is_zero()).map(|(name, time)| (name, time.as_secs_f64())).collect(),
        ),
        bytes: traced.notes.bytes,
        passthrough: traced.notes.passthrough,
        error: (errno != 0).then(|| format!("{:?}", Errno::from_raw(errno))),
    }
}

/// Where it is now, from the mount's root on, if that is known.
fn path(paths: &mut Paths, view: &View, traced: &Traced) -> Option<Vec<u8>> {
    let about = match traced.about {
        ino if is_control(ino) => control_path(ino),
        ino => paths.of(view, ino)?,
    };
    Some(match &traced.name {
        Some(name) => [about.strip_suffix(b"/").unwrap_or(&about), b"/", name].concat(),
        None => about,
    })
}

/// What is below it is not named.
fn control_path(ino: Ino) -> Vec<u8> {
    match FIXED.iter().find(|(fixed, ..)| *fixed == ino) {
        Some((_, name, _)) => [b"/.tensorfs/", *name].concat(),
        None if ino == DIRECTORY => b"/.tensorfs".to_vec(),
        None => b"/.tensorfs/tensors/...".to_vec(),
    }
}
