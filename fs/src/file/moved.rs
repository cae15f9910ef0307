//! Directories that were moved: what lies below one counts from its new name on, so what is written there is recorded
//! before that name is durable.
//!
//! It is done when a commit is about to make the move durable, and not when the directory is moved: that takes no
//! longer because many files are open. A power loss leaves either what was before the move, or all that was recorded
//! behind it. Whoever commits may have the lock of a file, so no other one's is waited for.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};

use tensorfs_layout::log::{Origin, Record, Transaction};
use tensorfs_layout::pool::{Edit, Pool};
use tensorfs_layout::tree::{Object, View};
use tensorfs_layout::{Error, Ino, ROOT};

use crate::clock;
use crate::store::Store;
use crate::store::host::{self, HostStat};
use crate::store::writers::Written;

use super::node::Nodes;

/// So many names are looked at before others get their turn.
const LOT: usize = 1024;

/// More directories than that are on no path that can be.
const LONGEST: usize = 1 << 20;

/// A host that fails is asked so often.
const TRIES: usize = 3;

/// Has every commit of the store's pool learn first what is written below directories that were moved.
pub(super) fn learn_before_commits(store: &Arc<Store>, nodes: &Nodes) {
    let (store, nodes): (Weak<Store>, Nodes) = (Arc::downgrade(store), nodes.clone());
    let pool = store.upgrade().map(|store| store.pool().clone());
    let Some(pool) = pool else { return };
    pool.before_moves(Box::new(move |directories| {
        let Some(store) = store.upgrade() else { return Ok(()) };
        below(&store, directories).iter().try_for_each(|written| learn(store.pool(), &nodes, written))
    }));
}

/// The segments below some directories that something may write. What lies there is gone through, or if that is more,
/// the files that something may write.
fn below(store: &Store, directories: &[Ino]) -> Vec<Written> {
    let writers = store.writers();
    let mut patience = 4 * writers.len();
    let mut found = Vec::new();
    let mut left = directories.to_vec();
    let mut entered: HashSet<Ino> = left.iter().copied().collect();
    while let Some(dir) = left.pop() {
        let mut cookie = 0;
        loop {
            if writers.len() == 0 {
                return Vec::new();
            }
            let lot: Vec<(u64, Ino, bool)> = {
                let view = store.view();
                let is_dir = |ino| view.object(ino).is_some_and(Object::is_dir);
                view.entries_after(dir, cookie).take(LOT).map(|(cookie, _, ino)| (cookie, ino, is_dir(ino))).collect()
            };
            let Some((last, ..)) = lot.last() else { break };
            cookie = *last;
            found.extend(lot.iter().filter_map(|(_, ino, _)| writers.get(*ino)));
            left.extend(lot.iter().filter(|(_, ino, is_dir)| *is_dir && entered.insert(*ino)).map(|(_, ino, _)| *ino));
            match patience.checked_sub(lot.len()) {
                Some(rest) => patience = rest,
                None => return written_below(store, directories),
            }
        }
    }
    found
}

/// Those of the segments that something may write whose files lie below some directories, or may do so as they have
/// several names. The host is asked for none of them.
fn written_below(store: &Store, directories: &[Ino]) -> Vec<Written> {
    let mut known: HashMap<Ino, bool> = directories.iter().map(|dir| (*dir, true)).collect();
    known.entry(ROOT).or_insert(false);
    let mut found = Vec::new();
    for lot in store.writers().all().chunks(LOT) {
        let view = store.view();
        let mut below = |written: &&Written| {
            view.object(written.ino).is_none_or(|object| match object.only_place() {
                Some(dir) => is_below(&view, &mut known, dir),
                None => object.names() > 0,
            })
        };
        found.extend(lot.iter().filter(|written| below(written)).cloned());
    }
    found
}

/// True if a directory lies below one of those that are known to, and if that cannot be told. Others know it then.
fn is_below(view: &View, known: &mut HashMap<Ino, bool>, dir: Ino) -> bool {
    let mut passed = Vec::new();
    let mut at = dir;
    let below = loop {
        if let Some(below) = known.get(&at) {
            break *below;
        }
        passed.push(at);
        match view.object(at).and_then(Object::parent) {
            // In a damaged tree a directory could be below itself.
            Some(parent) if passed.len() < LONGEST => at = parent,
            _ => break true,
        }
    };
    known.extend(passed.into_iter().map(|dir| (dir, below)));
    below
}

/// Records what a segment has become. If the host fails over it again and again, its file counts as one that could not
/// be synced: the new name is not to be durable as that of a file that is whole, and others' commits go on.
fn learn(pool: &Pool, nodes: &Nodes, written: &Written) -> tensorfs_layout::Result<()> {
    let (ino, segment) = (written.ino, written.segment);
    let host = match (0..TRIES).find_map(|_| host::stat(&*written.fd).ok()) {
        Some(host) => host,
        None if nodes.peek(ino).is_none() => return Ok(()),
        None => {
            pool.segments().fail(segment, "what it has become is not known, and its directory has another name");
            return Ok(());
        }
    };
    let still = nodes.peek(ino).is_some_and(|node| node.has_seen(&host));
    let has_value = |object: &Object| object.has_value();
    if still && !pool.view().object(ino).is_some_and(has_value) {
        return Ok(());
    }
    pool.touch(segment)?;
    let record = |mut edit: Edit<'_>| match grown(&edit, written, &host) {
        Some(record) => edit.store_for_commit(Transaction::new(0).with(record)).map(drop),
        None => Ok(()),
    };
    match record(pool.edit_with_any_room()) {
        // Cleaning may be what commits: only where nothing at all is left, room is waited for.
        Err(Error::NoSpace { .. }) => record(pool.edit()),
        recorded => recorded,
    }
}

/// What is to be recorded of a segment that is a file's own. While the file is cut, whoever cuts it records it.
fn grown(edit: &Edit<'_>, written: &Written, host: &HostStat) -> Option<Record> {
    let (ino, segment) = (written.ino, written.segment);
    let object = edit.object(ino).filter(|object| object.names() > 0)?;
    let own = object.attributes.segment == Some(segment) && !object.is_cut_unconfirmed();
    let newer = host.size > object.size() || host.allocated != object.allocated() || object.has_value();
    let offset = object.next_record(host.size);
    let (len, allocated, origin) = (host.size - offset, host.allocated, Origin::at(clock::now()));
    (own && newer && host.size >= object.size()).then_some(Record::Data {
        ino,
        segment,
        offset,
        len,
        allocated,
        origin,
    })
}
