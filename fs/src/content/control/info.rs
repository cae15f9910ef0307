//! What there is to know about a pool and its mount.

use std::collections::{BTreeSet, HashSet};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize, Serializer};
use tensorfs_layout::Ino;
use tensorfs_layout::check::{Finding, LastScrub};
use tensorfs_layout::medium::{Domain, Flushes};
use tensorfs_layout::pool::Recovery;
use tensorfs_layout::segment::{QuarantineEntry, TierInfo};
use tensorfs_layout::tree::{spelled, spelled_all};

use crate::file::Files;
use crate::handover::KeeperInfo;
use crate::options::Durability;
use crate::reader::ReaderInfo;
use crate::store::{Counts, FollowInfo};

use super::second_copy::SecondCopy;

/// What a pool is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum State {
    /// A server has it in use.
    #[serde(rename = "mounted")]
    Mounted,
    /// It is unmounted, and a server serves those who still have files open, or closes it.
    #[serde(rename = "detached")]
    Detached,
    /// It was closed in order.
    #[serde(rename = "clean")]
    Clean,
    /// Its last server did not close it; the next mount recovers it.
    #[serde(rename = "unsafe shutdown")]
    UnsafeShutdown,
}

/// What there is to know about a pool and its mount: the file `.tensorfs/info`, and `tensorfs info --json`.
///
/// Fields are only ever added. Where a pool is not mounted, what only a server knows is `null`, `false` or empty.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Info {
    /// Version of the program that answers.
    pub version: String,
    /// The pool's directory.
    #[serde(serialize_with = "lossy")]
    pub pool: PathBuf,
    /// Its bytes, if that is no text.
    #[serde(default)]
    pub pool_bytes: Option<Vec<u8>>,
    /// The pool's number, as 8-4-4-4-12 hexadecimal digits.
    pub uuid: String,
    /// The layout name chosen when the pool was created.
    pub layout: String,
    /// Whether the pool is mounted, and if not, how it was left.
    pub state: State,
    /// The server's process.
    pub pid: Option<u32>,
    /// Where it is mounted.
    #[serde(serialize_with = "lossy_option")]
    pub mountpoint: Option<PathBuf>,
    /// Its bytes, if that is no text.
    #[serde(default)]
    pub mountpoint_bytes: Option<Vec<u8>>,
    /// If that is in another mount namespace than that of whoever asks, a process of that one.
    #[serde(default)]
    pub mount_namespace_of: Option<u32>,
    /// How stores to the pool become durable.
    pub domain: Option<Domain>,
    /// When data survives a power loss.
    pub durability: Option<Durability>,
    /// Seconds between commits in the background.
    pub commit_seconds: Option<f64>,
    /// The longest that it took since this server began from one of them to the next, the one under way included.
    #[serde(default)]
    pub longest_commit_seconds: Option<f64>,
    /// Deleted files of which the host still holds the bytes: they go once their deletion is durable.
    #[serde(default)]
    pub pending_removals: u64,
    /// Those of which the host would not remove the bytes. It is asked again.
    #[serde(default)]
    pub refused_removals: u64,
    /// Whether the kernel reads, writes and maps open files itself.
    pub passthrough: bool,
    /// If not, why.
    pub passthrough_reason: Option<String>,
    /// Whether the processors are kept from sleeping deeply while requests arrive.
    #[serde(default)]
    pub latency: bool,
    /// If not, why.
    #[serde(default)]
    pub latency_reason: Option<String>,
    /// Bytes that the pool can hold: its limit, but no more than the filesystems that it is on have.
    pub capacity: u64,
    /// What may still be written: as far as the limit and the host allow.
    #[serde(default)]
    pub available: Option<u64>,
    /// Bytes of the host that it uses, log included.
    pub used: u64,
    /// The size limit chosen when the pool was created.
    pub limit: Option<u64>,
    /// Regular files.
    pub files: u64,
    /// Directories, the root included.
    pub directories: u64,
    /// Live records in the log.
    pub records: u64,
    /// Bytes of the log.
    pub log_bytes: u64,
    /// How often a server ended without closing the pool.
    pub unsafe_shutdowns: u64,
    /// What opening the pool for this mount found and did.
    pub recovery: Option<Recovery>,
    /// Files that a process outside this mount still has open or mapped, since a server was killed; 100 at most.
    pub open_segments: Vec<String>,
    /// The bytes of those of their paths that are no text, in the same places.
    #[serde(default)]
    pub open_segments_bytes: Vec<Option<Vec<u8>>>,
    /// Files whose bytes may not be what was written.
    pub damaged_files: Vec<String>,
    /// The bytes of those of their paths that are no text, in the same places.
    #[serde(default)]
    pub damaged_files_bytes: Vec<Option<Vec<u8>>>,
    /// What scrubbing found damaged, and was not written again.
    #[serde(default)]
    pub damage_found: Vec<Finding>,
    /// The last scrub that came to its end.
    #[serde(default)]
    pub last_scrub: Option<LastScrub>,
    /// Files that wait to be sealed.
    #[serde(default)]
    pub unsealed_files: u64,
    /// What was set aside.
    pub quarantine: Vec<QuarantineEntry>,
    /// How often what happened since this server began.
    pub counters: Counts,
    /// How often the host was made to flush since this server began.
    #[serde(default)]
    pub flushes: Flushes,
    /// The processes that look into the bytes of files.
    #[serde(default)]
    pub readers: ReaderInfo,
    /// Why the pool takes no more changes.
    pub read_only: Option<String>,
    /// The pool's tiers, its own directory first.
    #[serde(default)]
    pub tiers: Vec<TierInfo>,
    /// Who keeps watch over the server, if somebody is to.
    #[serde(default)]
    pub keeper: Option<KeeperInfo>,
    /// The pool's second copy, if it has one.
    #[serde(default)]
    pub second_copy: Option<SecondCopy>,
    /// How its tree goes on to newer ones of the remote that it was made from, if it does.
    #[serde(default)]
    pub following: Option<FollowInfo>,
}

impl Info {
    /// What there is to know about the pool and the mount that these files are of.
    ///
    /// `paths` says whether files are named by their paths, which may lead through directories that not everybody may
    /// look into; else by their numbers.
    pub(crate) fn gather(files: &Files, paths: bool) -> Self {
        let store = files.store();
        let pool = store.pool();
        let usage = store.usage();
        let superblock = pool.superblock();
        let recovery = pool.recovery().shown();
        let still_open = files.outlived();
        let ((open_segments, open_segments_bytes), (damaged_files, damaged_files_bytes)) = {
            let view = pool.view();
            let path = |ino: Ino| match paths.then(|| store.path_to_show(&view, ino)).flatten() {
                Some(path) => path,
                None => format!("inode {ino}").into_bytes(),
            };
            let recorded: HashSet<Ino> = view.damaged().collect();
            let is_new = |ino: &Ino| !recorded.contains(ino) && view.object(*ino).is_some();
            let unrecorded: BTreeSet<Ino> = pool.unrecorded_failures().into_iter().filter(is_new).collect();
            let damaged = view.damaged().chain(unrecorded);
            (spelled_all(still_open.into_iter().map(path)), spelled_all(damaged.map(path)))
        };
        let mut quarantine = files.quarantined();
        let mut damage_found = store.known_damage();
        if !paths {
            for note in quarantine.iter_mut().filter_map(|entry| entry.note.as_mut()) {
                (note.path, note.path_bytes) = (None, None);
            }
            for finding in &mut damage_found {
                (finding.path, finding.path_bytes, finding.tensors) = (None, None, Vec::new());
            }
        }
        let carried = pool.carried().inspect_err(|error| log::debug!("{error}")).ok().flatten();
        let second_copy = carried.and_then(|carried| SecondCopy::of(&carried, &superblock.uuid_text(), pool.horizon()));
        let second_copy = if paths { second_copy } else { second_copy.map(SecondCopy::without_names) };
        let following = store.options().second_copy.follow.map(|every| {
            let url = store.view().remote().map(|(_, tier)| tier.path().display().to_string());
            store.following().told(url, every)
        });
        let following = if paths { following } else { following.map(FollowInfo::without_names) };
        let link = store.link();
        let space = files.space().unwrap_or_default();
        Self {
            version: store.options().version.to_owned(),
            pool: pool.path().to_owned(),
            pool_bytes: no_text(pool.path()),
            uuid: superblock.uuid_text(),
            layout: superblock.layout,
            state: State::Mounted,
            pid: Some(std::process::id()),
            mountpoint: Some(store.options().mountpoint.clone()),
            mountpoint_bytes: no_text(&store.options().mountpoint),
            mount_namespace_of: None,
            domain: Some(pool.domain()),
            durability: Some(store.durability()),
            commit_seconds: Some(store.options().commit.as_secs_f64()),
            longest_commit_seconds: Some(store.bells().rounds().longest().as_secs_f64()),
            pending_removals: pool.freed() as u64,
            refused_removals: pool.unremoved() as u64,
            passthrough: link.has_passthrough(),
            passthrough_reason: link.no_passthrough().map(str::to_owned),
            latency: link.no_latency().is_none(),
            latency_reason: link.no_latency().map(str::to_owned),
            capacity: space.capacity,
            available: Some(space.available),
            used: store.used(),
            limit: usage.limit,
            files: usage.files,
            directories: usage.directories,
            records: usage.records,
            log_bytes: usage.log_bytes,
            unsafe_shutdowns: superblock.unsafe_shutdowns,
            open_segments,
            open_segments_bytes,
            recovery: Some(recovery),
            damaged_files,
            damaged_files_bytes,
            damage_found,
            last_scrub: store.last_scrub(),
            unsealed_files: files.to_seal().len() as u64,
            quarantine,
            counters: store.counters().read(),
            flushes: pool.flushes(),
            readers: files.readers().describe(),
            read_only: pool.is_read_only(),
            tiers: store.describe_tiers(),
            keeper: link.handover().map(|handover| handover.describe()),
            second_copy,
            following,
        }
    }
}

/// The bytes of a path that is no text.
fn no_text(path: &Path) -> Option<Vec<u8>> {
    spelled(Some(path.as_os_str().as_bytes().to_vec())).1
}

/// A path need not be text; what is not is replaced.
fn lossy<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&path.to_string_lossy())
}

fn lossy_option<S: Serializer>(path: &Option<PathBuf>, serializer: S) -> Result<S::Ok, S::Error> {
    path.as_ref().map(|path| path.to_string_lossy()).serialize(serializer)
}
