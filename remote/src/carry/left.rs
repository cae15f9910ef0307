//! What is told of files that have left for this remote: nothing else has their bytes, so they keep the parts that they
//! had then.

use std::collections::HashMap;

use tensorfs_layout::check::Committed;
use tensorfs_layout::tree::{FileChain, Object};
use tensorfs_layout::{Ino, SegmentId};

use crate::error::{Error, Result};
use crate::repository::{Content, Line, Part, Repository, Sealed, State, Tree, object_name};

/// True of what is in the pool's own remote.
pub fn is_away(committed: &Committed, segment: SegmentId) -> bool {
    let own = committed.view().remote().filter(|(_, tier)| tier.is_own_remote());
    own.is_some_and(|(number, _)| segment.tier() == number)
}

/// What is told of a file that has left, given what was said before.
pub fn content(
    (committed, ino): (&Committed, Ino),
    (chain, before): (&FileChain, Option<&Content>),
    (settled, (segment, version), seals): (bool, (u64, u64), Vec<Sealed>),
) -> Result<Content> {
    let Some(before) = before.filter(|before| has_bytes(before, chain.sealed_end(), &seals)) else {
        let path = committed.view().path_of(ino).unwrap_or_default();
        let path = String::from_utf8_lossy(&path).into_owned();
        let what = "its bytes left for the remote, of which no batch has them any more; nothing is carried, so that \
                    what is there stays: remove the file, if they cannot be had";
        return Err(Error::Refused(format!("{path}: {what}")));
    };
    let state = if settled { State::Whole } else { State::Open };
    Ok(Content { state, size: chain.size(), segment, version, parts: before.parts.clone(), tail: 0, seals })
}

/// What older batches say of files that have left, where the newest tree has not what they have: for each the newest of
/// those that have the bytes that it was sealed with, and whose objects are there yet.
pub fn in_older(repository: &Repository, committed: &Committed, tree: &Tree) -> Result<HashMap<u64, Content>> {
    let wanted = |ino: Ino, object: &Object| {
        let segment = object.attributes.segment?;
        let chain = object.chain().filter(|_| is_away(committed, segment))?;
        let (end, seals) = (chain.sealed_end(), Sealed::of(chain));
        let before = tree.entry(ino.0).and_then(|entry| entry.file.as_ref());
        let is_known = before.is_some_and(|before| has_bytes(before, end, &seals));
        (!is_known).then_some((ino.0, (end, seals)))
    };
    let wanted: HashMap<u64, (u64, Vec<Sealed>)> =
        committed.view().objects().filter_map(|(ino, object)| wanted(ino, object)).collect();
    let mut found: HashMap<u64, Vec<Content>> = HashMap::new();
    if wanted.is_empty() {
        return Ok(HashMap::new());
    }
    repository.each_change(|line| {
        if let Line::Object(entry) = line
            && let Some((end, seals)) = wanted.get(&entry.ino)
            && let Some(content) = entry.file.filter(|content| content.state == State::Whole)
            && has_bytes(&content, *end, seals)
        {
            found.entry(entry.ino).or_default().push(content);
        }
    })?;
    let mut there = HashMap::new();
    for (ino, mut contents) in found {
        while let Some(content) = contents.pop() {
            let objects = content.parts.iter().filter_map(Part::object).map(|(object, _)| object_name(object));
            let objects: Vec<String> = objects.collect();
            if repository.place().sizes(&objects)?.iter().all(Option::is_some) {
                there.insert(ino, content);
                break;
            }
        }
    }
    Ok(there)
}

/// True if it is not known of a file that has left what it has.
pub fn is_without(committed: &Committed, ino: Ino, before: Option<&Content>) -> bool {
    let Some(object) = committed.view().object(ino) else { return false };
    let is_away = object.attributes.segment.is_some_and(|segment| is_away(committed, segment));
    let Some(chain) = object.chain().filter(|_| is_away) else { return false };
    before.is_none_or(|before| !has_bytes(before, chain.sealed_end(), &Sealed::of(chain)))
}

/// True of what has so many bytes, and those that were sealed so, as far as that is known.
fn has_bytes(content: &Content, end: u64, seals: &[Sealed]) -> bool {
    let len = content.parts.iter().try_fold(0, |sum, part| part.len().checked_add(sum));
    let sums = |seals: &[Sealed]| seals.iter().map(|sealed| (sealed.0, sealed.1)).collect::<Vec<_>>();
    let are_same = content.state != State::Whole || seals.is_empty() || sums(&content.seals) == sums(seals);
    len == Some(end) && are_same && content.tail == 0
}
