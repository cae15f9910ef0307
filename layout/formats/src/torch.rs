//! What `torch.save` writes since 1.6: a zip of `data.pkl`, which says what there is, and of a member for each storage.
//! And what it wrote before: pickles, one behind the other, and behind them the storages.

use crate::cursor::Cursor;
use crate::dtype::Dtype;
use crate::fault::{Fault, Result, malformed, too_much};
use crate::format::Format;
use crate::found::Out;
use crate::limits::{TENSORS_MAX, excerpt};
use crate::pickle::{self, CALLS_MAX, Meaning, Pickle, View};
use crate::source::{Source, read_exact, read_up_to};
use crate::tensor::{Location, Storage, Tensor, elements, numbered, order_of, span};
use crate::zip::{self, ARCHIVES_MAX, Directory, Method};

use std::hash::{BuildHasher, RandomState};

const PICKLE: &[u8] = b"data.pkl";
/// The longest pickle that is read.
const PICKLE_MAX: u64 = 256 << 20;
/// The most storages that a pickle of the format before 1.6 names: as many as a zip has members.
const STORAGES_MAX: usize = 1 << 17;
/// What the objects of a checkpoint behind others may take, and how many places in it are looked at, beside what it may
/// by its length.
const OBJECTS_MIN: usize = 256 << 10;
const OBJECTS_PER_BYTE: usize = 64;
const PLACES_MIN: u64 = 4096;

/// The directory in front of all names, if there is a `data.pkl` in one.
pub(crate) fn prefix(source: &dyn Source, directory: &Directory) -> Result<Option<Vec<u8>>> {
    let mut found = None;
    directory.each(source, &mut |member| {
        if let Some(prefix) = member.name.strip_suffix(PICKLE)
            && prefix.iter().position(|&byte| byte == b'/') == prefix.len().checked_sub(1)
            && !prefix.is_empty()
            && found.is_none()
        {
            found = Some(prefix.to_vec());
        }
        Ok(())
    })?;
    Ok(found)
}

/// The members that hold storages, by the hashes of their keys.
struct Members {
    hasher: RandomState,
    /// Hash of the key, first byte, length.
    list: Vec<(u64, u64, u64)>,
}

impl Members {
    fn find(&self, key: &[u8]) -> Option<(u64, u64)> {
        let hash = self.hasher.hash_one(key);
        let at = self.list.binary_search_by_key(&hash, |&(hash, ..)| hash).ok()?;
        self.list.get(at).map(|&(_, offset, len)| (offset, len))
    }
}

/// The checkpoints of the file: one, or as many as were saved to it while it was open.
pub(crate) fn recognise(source: &dyn Source, archives: &[Directory], out: &mut Out<'_, '_>) -> Result<()> {
    checkpoints(source, archives, (0, 0), out)
}

/// Those from a place on, in front of which there are so many tensors in others. The last of these tensors is at
/// `last`, and its name ends with this number. What can be said only of the whole file is not said.
pub(crate) fn resume(
    source: &dyn Source,
    from: u64,
    (tensors, last, number): (u64, u64, Option<u32>),
    out: &mut Out<'_, '_>,
) -> Result<()> {
    out.found.end = from;
    // Behind one of the legacy format nothing is looked into: its last bytes may be those of a zip that is none of it.
    let mut head = [0; 4];
    if read_up_to(source, 0, &mut head)? < head.len() || head != zip::LOCAL_MAGIC {
        return Err(Fault::Stopped);
    }
    let Some((before, archives)) = Directory::find_behind(source, from)? else { return Err(Fault::Stopped) };
    // Names have the number of their checkpoint, but in the first one.
    let number = match number {
        _ if before == 0 => Some(0),
        number => number.filter(|_| (before..from).contains(&last)),
    };
    let part = number.and_then(|number| usize::try_from(number).ok()?.checked_add(1));
    let Some(part) = part.filter(|part| archives.len() <= ARCHIVES_MAX.saturating_sub(*part)) else {
        return Err(Fault::Stopped);
    };
    if tensors == 0 {
        return Err(Fault::Stopped);
    }
    checkpoints(source, &archives, (part, usize::try_from(tensors).unwrap_or(usize::MAX)), out)
}

/// What the objects of a checkpoint's pickle may take, and how many places in it are looked at. Of one behind others
/// that goes by its length, so that a file of many takes no more time than it has bytes, and each of them can be looked
/// at for itself.
fn allowance(part: usize, directory: &Directory) -> (usize, u64) {
    if part == 0 {
        return (pickle::BUDGET, pickle::PLACES_MAX);
    }
    let len = directory.len();
    let objects =
        OBJECTS_MIN.saturating_add(usize::try_from(len).unwrap_or(usize::MAX).saturating_mul(OBJECTS_PER_BYTE));
    (objects.min(pickle::BUDGET), PLACES_MIN.saturating_add(len).min(pickle::PLACES_MAX))
}

/// Checkpoints behind others: so many are in front of them, and so many tensors.
fn checkpoints(
    source: &dyn Source,
    archives: &[Directory],
    (first, before): (usize, usize),
    out: &mut Out<'_, '_>,
) -> Result<()> {
    // First everything is checked, then given out.
    let (mut count, mut kept) = (before, None);
    let mut calls = Vec::new();
    for (part, directory) in (first..).zip(archives) {
        let checkpoint = Checkpoint::open(source, directory)?;
        let (mut budget, most) = allowance(part, directory);
        checkpoint.pickle.spend(&mut budget)?;
        checkpoint.tensors(&mut (pickle::PLACES_MAX - most), &mut |tensor| {
            count += 1;
            if part > 0 {
                numbered(&tensor.name, part)?;
            }
            if count > TENSORS_MAX { too_much(format!("more than {TENSORS_MAX} tensors")) } else { Ok(()) }
        })?;
        for call in &checkpoint.pickle.calls {
            if calls.len() < CALLS_MAX && !calls.contains(call) {
                calls.push(call.clone());
            }
        }
        // One is kept, and not read again. Of many, which may be large together, each is.
        kept = (archives.len() == 1).then_some(checkpoint);
    }
    // Those of a file that is sound.
    out.found.calls = calls;
    if count == 0 && !out.found.calls.is_empty() {
        let calls = out.found.calls.join(", ");
        return malformed(format!("a pickle without tensors, which would call {}", excerpt(&calls)));
    }
    out.found.format = Format::Torch;
    out.found.end = source.size()?;
    for (part, directory) in (first..).zip(archives) {
        let checkpoint = match kept.take() {
            Some(checkpoint) => checkpoint,
            None => Checkpoint::open(source, directory)?,
        };
        let (_, most) = allowance(part, directory);
        checkpoint.tensors(&mut (pickle::PLACES_MAX - most), &mut |mut tensor| {
            if part > 0 {
                tensor.name = numbered(&tensor.name, part)?;
            }
            out.tensor(tensor)
        })?;
    }
    Ok(())
}

/// The first pickle of the format before 1.6: protocol 2, its magic number as a long.
const LEGACY: &[u8] = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.";

/// What is enough of it to tell the format, as long as that of others.
pub(crate) const LEGACY_START: &[u8] = LEGACY.first_chunk::<12>().unwrap().as_slice();

/// A checkpoint in the format before 1.6: a magic number, a version, what the machine was, what there is, the keys of
/// the storages, then for each a number of elements and the elements, always little-endian.
pub(crate) fn recognise_legacy(source: &dyn Source, out: &mut Out<'_, '_>) -> Result<()> {
    let result = legacy(source, out);
    out.found.cut = matches!(result, Err(Fault::Short(_)));
    result
}

fn legacy(source: &dyn Source, out: &mut Out<'_, '_>) -> Result<()> {
    let size = source.size()?;
    let mut cursor = Cursor::new(source, 0, size)?;
    if cursor.take(LEGACY.len())? != LEGACY {
        return malformed("no format that is recognised");
    }
    let mut budget = pickle::BUDGET;
    // `torch.load` looks at neither.
    for _ in 0..2 {
        pickle::read(&mut cursor)?.spend(&mut budget)?;
    }
    let pickle = pickle::read(&mut cursor)?;
    pickle.spend(&mut budget)?;
    let members = legacy_storages(&mut cursor, &pickle)?;
    let end = cursor.at();
    let checkpoint = Checkpoint { members, pickle, big_endian: false };
    let (mut count, mut places) = (0, 0);
    checkpoint.tensors(&mut places, &mut |_| {
        count += 1;
        if count > TENSORS_MAX { too_much(format!("more than {TENSORS_MAX} tensors")) } else { Ok(()) }
    })?;
    out.found.calls.clone_from(&checkpoint.pickle.calls);
    if count == 0 && !out.found.calls.is_empty() {
        let calls = out.found.calls.join(", ");
        return malformed(format!("a pickle without tensors, which would call {}", excerpt(&calls)));
    }
    out.found.format = Format::Torch;
    out.found.end = end;
    if end < size {
        out.found.reason = Some(format!("{} bytes follow the checkpoint and are not looked into", size - end));
    }
    let mut places = 0;
    checkpoint.tensors(&mut places, &mut |tensor| out.tensor(tensor))
}

/// The storages behind the pickles, of which the cursor stands in front of the list of keys.
fn legacy_storages(cursor: &mut Cursor<'_>, pickle: &Pickle) -> Result<Members> {
    let number = pickle.storages().count();
    if number > STORAGES_MAX {
        return too_much(format!("a pickle of {number} storages"));
    }
    let hasher = RandomState::new();
    // Hash of the key, elements, bytes of each; later as in `Members`. A storage is named by each tensor in it.
    let mut list = Vec::with_capacity(number);
    for (key, count, size) in pickle.storages() {
        let Some(size) = size else { return malformed("a storage of an unknown type") };
        list.push((hasher.hash_one(key), count, size));
    }
    list.sort_unstable();
    list.dedup();
    if list.windows(2).any(|pair| pair[0].0 == pair[1].0) {
        return malformed("a storage of two types or lengths");
    }
    let mut order = Vec::with_capacity(list.len());
    pickle::texts(cursor, &mut |key| {
        let hash = hasher.hash_one(key);
        match list.binary_search_by_key(&hash, |&(hash, ..)| hash) {
            Ok(at) if order.len() < list.len() => order.push(at as u32),
            _ => return malformed("a storage that nothing needs, or twice"),
        }
        Ok(())
    })?;
    let mut seen = order.clone();
    seen.sort_unstable();
    if seen.len() != list.len() || seen.windows(2).any(|pair| pair[0] == pair[1]) {
        return malformed("a storage that is not there");
    }
    for at in order {
        let (_, count, size) = &mut list[at as usize];
        if cursor.u64()? != *count {
            return malformed("a storage of another length than the pickle says");
        }
        let Some(len) = count.checked_mul(*size) else { return malformed("more elements than can be") };
        (*count, *size) = (cursor.at(), len);
        cursor.skip(len)?;
    }
    Ok(Members { hasher, list })
}

/// One archive of the file, read but for its storages.
struct Checkpoint {
    members: Members,
    pickle: Pickle,
    big_endian: bool,
}

impl Checkpoint {
    fn open(source: &dyn Source, directory: &Directory) -> Result<Checkpoint> {
        let Some(prefix) = prefix(source, directory)? else {
            return malformed("a zip that is no torch checkpoint in front of one that is");
        };
        let mut members = Members { hasher: RandomState::new(), list: Vec::new() };
        members.list.reserve_exact(directory.members as usize);
        let (mut program, mut order) = (None, None);
        directory.each(source, &mut |member| {
            let Some(name) = member.name.strip_prefix(&prefix[..]) else { return Ok(()) };
            let plain = member.method == Method::Stored && !member.encrypted;
            let place = (member.header, member.stored);
            match name {
                PICKLE if plain => program = Some(place),
                b"byteorder" if plain => order = Some(place),
                _ => {}
            }
            if let Some(key) = name.strip_prefix(b"data/")
                && plain
            {
                let hash = members.hasher.hash_one(key);
                members.list.push((hash, directory.data(source, member.header, member.stored)?, member.stored));
            }
            Ok(())
        })?;
        members.list.sort_unstable();
        let Some((header, len)) = program else { return malformed("a torch checkpoint that is compressed") };
        if len > PICKLE_MAX {
            return too_much(format!("a pickle of {len} bytes"));
        }
        let big_endian = match order {
            Some((header, len)) => is_big(source, directory.data(source, header, len)?, len)?,
            None => false,
        };
        let start = directory.data(source, header, len)?;
        let pickle = pickle::read(&mut Cursor::new(source, start, start + len)?)?;
        Ok(Checkpoint { members, pickle, big_endian })
    }

    fn tensors(&self, places: &mut u64, visit: &mut dyn FnMut(Tensor) -> Result<()>) -> Result<()> {
        self.pickle.tensors(places, &mut |name, view| {
            let Some((offset, len)) = self.members.find(view.storage.as_bytes()) else {
                return malformed("a tensor whose storage is not there");
            };
            let storage = Storage { key: view.storage.clone(), offset, len };
            visit(place(name, view, storage, self.big_endian)?)
        })
    }
}

fn is_big(source: &dyn Source, at: u64, len: u64) -> Result<bool> {
    let mut text = [0; 8];
    let text = &mut text[..len.min(8) as usize];
    read_exact(source, at, text)?;
    match &*text {
        b"little" => Ok(false),
        b"big" => Ok(true),
        _ => malformed("an unknown byte order"),
    }
}

/// Where the view's bytes are, which must lie inside of its storage.
pub(crate) fn place(name: &[u8], view: &View, storage: Storage, big_endian: bool) -> Result<Tensor> {
    if storage.len != view.storage_len {
        return malformed("a storage of another length than the pickle says");
    }
    let Some(size) = view.dtype.size() else { return malformed("a tensor of an unknown type") };
    if elements(&view.shape).and_then(|count| count.checked_mul(size)).is_none_or(|len| len > i64::MAX as u64) {
        return malformed("more elements than can be");
    }
    let inside = view.offset.checked_mul(size);
    let len = span(&view.shape, &view.strides).and_then(|span| span.checked_mul(size));
    let (inside, len) = match (inside, len) {
        (Some(inside), Some(len)) if inside.checked_add(len).is_some_and(|end| end <= storage.len) => (inside, len),
        // Nothing may begin anywhere.
        (_, Some(0)) => (0, 0),
        _ => return malformed("a tensor that is larger than its storage"),
    };
    let offset = storage.offset + inside;
    let location = match view.meaning {
        Meaning::AsStored => Location::Raw { offset, len },
        Meaning::Negated(parts) => Location::Negated { offset, len, parts },
        Meaning::Unknown => Location::Encoded { offset, len },
    };
    let mut tensor = Tensor::new(name.to_vec(), view.dtype, view.shape.clone(), location);
    if view.meaning == Meaning::Unknown {
        tensor.descr = Some(format!("{}, with metadata that is not known", view.dtype.name()));
    }
    tensor.order = order_of(&view.shape, &view.strides);
    tensor.big_endian = big_endian && (size > 1 || view.dtype == Dtype::C32);
    tensor.storage = Some(storage);
    Ok(tensor)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placed(shape: &[u64], strides: &[u64], offset: u64) -> Result<Tensor> {
        let storage = Storage { key: "0".into(), offset: 1000, len: 40 };
        let view = View {
            dtype: Dtype::F32,
            storage: "0".into(),
            storage_len: 40,
            offset,
            shape: shape.to_vec(),
            strides: strides.to_vec(),
            meaning: Meaning::AsStored,
        };
        place(b"t", &view, storage, false)
    }

    #[test]
    fn keeps_views_inside_their_storages() {
        assert_eq!(placed(&[2, 5], &[5, 1], 0).unwrap().location, Location::Raw { offset: 1000, len: 40 });
        assert_eq!(placed(&[2, 2], &[4, 2], 3).unwrap().location, Location::Raw { offset: 1012, len: 28 });
        assert_eq!(placed(&[0], &[1], 99).unwrap().location, Location::Raw { offset: 1000, len: 0 });
        assert!(placed(&[2, 5], &[5, 1], 1).is_err());
        assert!(placed(&[11], &[1], 0).is_err());
        assert!(placed(&[2], &[u64::MAX], 0).is_err());
        assert!(placed(&[1], &[1], u64::MAX).is_err());
        assert!(placed(&[1 << 40, 1 << 40], &[0, 0], 0).is_err());
    }
}
