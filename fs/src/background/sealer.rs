//! Sealing files: those that nothing can write any more, those that somebody asks for, and those of a pool that is not
//! mounted.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tensorfs_layout::pool::Pool;
use tensorfs_layout::tree::{Below, LeftOut, Object};
use tensorfs_layout::{Ino, ROOT};

use crate::error::{Error, Result};
use crate::file::{Files, QUIET};
use crate::options::{Durability, Options};
use crate::protocol::Sealing;
use crate::store::Store;

use super::seal::{Outcome, may_seal, seal_file};
use super::seal_open::seal_open_file;
use super::task::{Running, Stopper, Task, guarded, stand_back};

/// When to try again with a file that something was in the way of.
const AGAIN: Duration = Duration::from_secs(10);
/// So many bytes are sealed at most while the pool is being closed; the rest waits for the next mount.
const LAST_BYTES: u64 = 1 << 30;
/// And no longer than this.
const LAST_TIME: Duration = Duration::from_secs(60);

/// Seals files whose turn has come.
pub(super) struct Sealer {
    files: Arc<Files>,
}

/// A file to be sealed.
pub(super) struct Chosen {
    ino: Ino,
    /// Also if it is sealed already.
    again: bool,
}

impl Sealer {
    /// Starts it. The files that an earlier mount left unsealed come first.
    pub fn start(files: &Arc<Files>) -> io::Result<Running> {
        Running::start(files, Self { files: files.clone() })
    }

    fn queue_unsealed(&self) {
        let store = self.files.store();
        if store.pool().is_read_only().is_some() {
            return;
        }
        let unsealed = |object: &Object| {
            object.names() > 0 && !object.attributes.damaged && object.chain().is_some_and(|chain| !chain.is_sealed())
        };
        let mut unsealed: Vec<Ino> =
            store.view().objects().filter(|(_, object)| unsealed(object)).map(|(ino, _)| ino).collect();
        unsealed.sort_unstable();
        let newest = store.pool().newest();
        for ino in unsealed {
            self.files.to_seal().add(ino, newest, QUIET);
        }
    }
}

impl Task for Sealer {
    const NAME: &'static str = "tensorfs-seal";
    type Piece = Chosen;

    fn begin(&mut self) {
        stand_back();
        self.queue_unsealed();
    }

    fn next(&mut self) -> Option<Chosen> {
        let (pool, queue) = (self.files.store().pool(), self.files.to_seal());
        queue.done();
        queue.next(|| pool.horizon()).map(|(ino, again)| Chosen { ino, again })
    }

    fn work(&mut self, Chosen { ino, again }: &Chosen) {
        let queue = self.files.to_seal();
        let stopped = || queue.is_stopped();
        let newest = || self.files.store().pool().newest();
        let sealed = seal_file(&self.files, *ino, *again, &stopped);
        let is_open = matches!(sealed, Ok(Outcome::InUse));
        let sealed = if is_open { seal_open_file(&self.files, *ino, &stopped) } else { sealed };
        match sealed {
            // One that is open is not left alone for longer because it was opened often.
            Ok(Outcome::Later) if is_open && !stopped() => queue.add_open(*ino, newest()),
            Ok(Outcome::Later) if !stopped() => queue.add(*ino, newest(), AGAIN),
            Ok(_) => {}
            Err(fault) => log::log!(fault.level, "inode {ino}: not sealed: {fault}"),
        }
    }

    fn name(Chosen { ino, .. }: &Chosen) -> String {
        name(*ino)
    }

    fn stopper(&self) -> Stopper {
        let files = self.files.clone();
        Box::new(move || files.to_seal().stop())
    }
}

fn name(ino: Ino) -> String {
    format!("inode {ino}: sealing it")
}

/// Seals what is left of the queue, as far as that does not take long. Nobody else seals any more, and all files are
/// closed.
pub(crate) fn seal_the_rest(files: &Files) {
    let store = files.store();
    if files.to_seal().len() == 0 || store.commit().is_err() {
        return;
    }
    let (mut left, begun) = (LAST_BYTES, Instant::now());
    let too_late = || begun.elapsed() > LAST_TIME;
    for ino in files.to_seal().drain() {
        let size = store.view().object(ino).map_or(0, Object::size);
        let Some(rest) = left.checked_sub(size).filter(|_| !too_late()) else { continue };
        left = rest;
        let sealed = guarded(store.counters(), || name(ino), || seal_file(files, ino, false, &too_late));
        if let Some(Err(fault)) = sealed {
            log::log!(fault.level, "inode {ino}: not sealed: {fault}");
        }
    }
}

/// Nothing has it open to write, and yet something may write it.
const UNSETTLED: &str = "it is mapped for writing, or open since before";

/// Has a file sealed soon; or, if that was begun before, says what came of it.
pub(crate) fn ask_for_seal(files: &Files, ino: Ino, begin: bool, again: bool) -> Result<Sealing> {
    let (store, queue) = (files.store(), files.to_seal());
    let node = files.node(ino);
    let mut file = files.lock(&node);
    if !file.is_open_to_write() && file.is_written() {
        // What kept it from being settled when its last writer closed it may be over.
        file.settle(0);
    }
    let waits = !begin && queue.is_under_way(ino);
    Ok(match may_seal(store, &file, again && begin)? {
        Ok(_) if begin => {
            queue.add_first(ino, store.pool().newest(), again);
            // The commit that it waits for need not be waited for.
            store.bells().commit().ring();
            Sealing::Waiting
        }
        Ok(_) | Err(Outcome::Already) if waits => Sealing::Waiting,
        Err(Outcome::Later) if file.is_quiet() || file.is_opening() => Sealing::Waiting,
        _ if store.is_known_damaged(ino) => Sealing::Unfit("its bytes are not those that were sealed".into()),
        // What it was recorded as may be sealed: nothing of it, too.
        Err(Outcome::Already) if file.is_written() && !file.is_open_to_write() => Sealing::InUse(UNSETTLED.into()),
        Err(Outcome::Already | Outcome::Sealed) => Sealing::Sealed,
        Err(Outcome::InUse) if file.is_open_to_write() => Sealing::InUse("it is open for writing".into()),
        Err(Outcome::InUse | Outcome::Later) => Sealing::InUse(UNSETTLED.into()),
        Err(Outcome::Unfit) => Sealing::Unfit("it is no file with a name, or is damaged".into()),
        Ok(_) if queue.has(ino) => Sealing::InUse("it was written meanwhile".into()),
        Ok(_) => Sealing::Unfit("it could not be sealed; the server's log says why".into()),
    })
}

/// Seals files of a pool that is not mounted, those whose path from the root is `wanted`, and closes it. `each` hears
/// of every one: its path, and what came of it. It says whether to go on.
///
/// # Errors
/// The pool's own.
pub fn seal_pool(
    pool: Pool,
    again: bool,
    wanted: &dyn Fn(&[u8]) -> bool,
    each: &mut dyn FnMut(&[u8], Sealing) -> bool,
) -> std::result::Result<(), Error> {
    let store = Arc::new(Store::new(Arc::new(pool), Options::default(), Durability::Fsync, 1024));
    let files = Files::new(store.clone());
    let below = Below::of(&store.view(), ROOT);
    let is_file = |ino| store.view().object(ino).is_some_and(Object::is_file);
    for found in below.found().iter().filter(|found| found.left_out().is_some() || is_file(found.ino())) {
        let (path, ino) = (below.path(found), found.ino());
        if !wanted(&path) {
            continue;
        }
        if let Some(why) = found.left_out() {
            let why = match why {
                LeftOut::Again => "a directory that has another name already",
                LeftOut::TooDeep => "what is in it is too deep to be gone into",
            };
            if !each(&path, Sealing::Unfit(why.into())) {
                break;
            }
            continue;
        }
        let result = match seal_file(&files, ino, again, &|| false) {
            Ok(Outcome::Sealed | Outcome::Already) => Sealing::Sealed,
            Ok(Outcome::InUse | Outcome::Later) => {
                Sealing::InUse("a program of an earlier mount can still write it".into())
            }
            Ok(Outcome::Unfit) if store.is_known_damaged(ino) => {
                Sealing::Unfit("its bytes are not those that were sealed".into())
            }
            Ok(Outcome::Unfit) => Sealing::Unfit("it is marked as damaged".into()),
            Err(fault) => Sealing::Unfit(fault.to_string()),
        };
        if !each(&path, result) {
            break;
        }
    }
    Ok(store.pool().close()?)
}
