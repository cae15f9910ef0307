//! What the last scrub of a pool came to, and the damage that is known: kept beside the log, so that it is not
//! forgotten when the pool is closed. It is told of a file only for as long as that was not written again.

use std::fs::File;
use std::io::{self, Write};

use serde::{Deserialize, Serialize};

use crate::check::report::{Finding, LastScrub};
use crate::ids::{Ino, SegmentId};
use crate::medium::dir::Dir;
use crate::medium::scrub_note::{NEW_SCRUBBED, SCRUBBED};
use crate::pool::opened::Pool;
use crate::tree::paths::spelled;
use crate::tree::view::View;

/// It is never longer: a thousand findings have less.
const MOST: u64 = 16 << 20;

/// A file that was found damaged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DamagedFile {
    ino: Ino,
    segment: SegmentId,
    /// The version of its chain.
    version: u64,
    findings: Vec<Finding>,
}

impl DamagedFile {
    /// What was found in a version of a file.
    pub fn new(ino: Ino, (segment, version): (SegmentId, u64), findings: Vec<Finding>) -> Self {
        Self { ino, segment, version, findings }
    }

    /// The file.
    pub fn ino(&self) -> Ino {
        self.ino
    }

    /// Its segment then, and the version of its chain.
    pub fn version(&self) -> (SegmentId, u64) {
        (self.segment, self.version)
    }

    /// What was found.
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// True if the file was not written since.
    fn is_still(&self, view: &View) -> bool {
        let now =
            view.object(self.ino).and_then(|object| Some((object.attributes.segment?, object.chain()?.version())));
        now == Some(self.version())
    }

    /// With the path that the file has now.
    fn named(mut self, view: &View) -> Self {
        let (path, path_bytes) = spelled(view.path_of(self.ino));
        for finding in &mut self.findings {
            finding.path.clone_from(&path);
            finding.path_bytes.clone_from(&path_bytes);
        }
        self
    }
}

/// A scrub that was interrupted: another one can go on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unfinished {
    /// The first file that was not looked at. They are looked at in the order of their numbers.
    pub next: Ino,
    /// Bytes whose checksums were verified.
    pub verified_bytes: u64,
    /// Bytes that had none.
    pub unsealed_bytes: u64,
    /// Files that were written again and again.
    pub busy_files: u64,
}

/// What is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scrubbed {
    last: Option<LastScrub>,
    damaged: Vec<DamagedFile>,
    #[serde(default)]
    unfinished: Option<Unfinished>,
}

/// As it is written: with the number of the pool that it is about.
#[derive(Serialize, Deserialize)]
struct Kept {
    pool: String,
    #[serde(flatten)]
    scrubbed: Scrubbed,
}

impl Scrubbed {
    /// The last scrub, and the files that are damaged.
    pub fn new(last: Option<LastScrub>, damaged: Vec<DamagedFile>, unfinished: Option<Unfinished>) -> Self {
        Self { last, damaged, unfinished }
    }

    /// What was kept of a pool that is open.
    pub fn read(pool: &Pool) -> Self {
        Self::read_in(pool.dir(), &pool.superblock().uuid_text(), &pool.view())
    }

    /// What was kept in a pool's directory, of the files that are as they were then. What cannot be read counts as
    /// nothing: a scrub finds it out again.
    pub(crate) fn read_in(dir: &Dir, uuid: &str, view: &View) -> Self {
        let bytes = match dir.read(SCRUBBED, MOST) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Self::default(),
            Err(error) => {
                log::warn!("{}: what the last scrub found is not known: {error}", dir.path_of(SCRUBBED).display());
                return Self::default();
            }
        };
        let kept = serde_json::from_slice::<Kept>(&bytes).ok().filter(|kept| kept.pool == uuid);
        let Some(Kept { scrubbed: Self { last, damaged, unfinished }, .. }) = kept else { return Self::default() };
        let damaged = damaged.into_iter().filter(|file| file.is_still(view)).map(|file| file.named(view));
        Self { last, damaged: damaged.collect(), unfinished }
    }

    /// Keeps it, durably, in the place of what was kept before.
    pub fn write(&self, pool: &Pool) -> io::Result<()> {
        let (dir, uuid) = (pool.dir(), pool.superblock().uuid_text());
        let bytes = serde_json::to_vec(&Kept { pool: uuid, scrubbed: self.clone() })?;
        let write = |file: &mut File| file.write_all(&bytes).and_then(|()| file.sync_all());
        let written = dir.replace_note(SCRUBBED, NEW_SCRUBBED, write).and_then(|()| dir.sync());
        written.map_err(|error| io::Error::new(error.kind(), format!("{SCRUBBED}: {error}")))
    }

    /// The last scrub that came to its end, if there was one.
    pub fn last(&self) -> Option<&LastScrub> {
        self.last.as_ref()
    }

    /// The last scrub, if it was interrupted.
    pub fn unfinished(&self) -> Option<&Unfinished> {
        self.unfinished.as_ref()
    }

    /// The files that are known to be damaged.
    pub fn damaged(&self) -> &[DamagedFile] {
        &self.damaged
    }

    /// All that was found in them.
    pub fn findings(&self) -> Vec<Finding> {
        self.damaged.iter().flat_map(|file| file.findings.clone()).collect()
    }

    /// True if a file is known to be damaged.
    pub fn is_damaged(&self, ino: Ino) -> bool {
        self.damaged.iter().any(|file| file.ino == ino)
    }
}
