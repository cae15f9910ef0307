//! The plan of a distributed checkpoint, which torch writes beside its parts: which files there are, and how long each
//! is at least; and in full, which tensors there are, and where the parts of each are.

use std::collections::BTreeMap;
use std::io;
use std::ops::ControlFlow;

use serde::{Deserialize, Serialize};

use crate::arrays::{self, Array, Metadata, What};
use crate::cursor::Cursor;
use crate::dtype::Dtype;
use crate::fault::{Fault, Result, malformed};
use crate::found::Out;
use crate::limits::{self, DIMENSIONS_MAX, TENSORS_MAX};
use crate::names::is_below;
use crate::ocdbt::MANIFEST;
use crate::pickle::{self, Place, Said};
use crate::shards::read_with;
use crate::source::{Source, read_up_to};
use crate::tensor::elements;

/// The longest plan that is read.
const PLAN_MAX: u64 = 256 << 20;
/// The most files.
const FILES_MAX: usize = 65_536;
/// The longest name of one, and what all names take together.
const NAME_MAX: usize = 255;
const NAMES_MAX: usize = 1 << 20;
/// What all that a plan says may take together, in bytes.
const TAKEN_MAX: usize = 256 << 20;
/// What a pickle begins with.
const PICKLE: u8 = 0x80;

/// How torch calls its plans, and how the indexes of checkpoints in parts end.
const CALLED: &[u8] = b".metadata";
/// What says of a directory that it is an array, each chunk of which is a file; and the longest that is read for it.
const OF_ARRAYS: [Metadata; 3] = [Metadata::Zarr2Array, Metadata::Zarr3, Metadata::N5];
const OF_ARRAY_MAX: u64 = 1 << 20;
/// The name of such an array in its own directory.
const ARRAY: &[u8] = b"array";
const INDEXES: [&[u8]; 2] = [b".safetensors.index.json", b".bin.index.json"];

/// True if a file of that name may be the plan of a distributed checkpoint, the index of one in parts, the metadata of
/// an array in chunks, or the manifest of a database.
pub fn is_called_as_plan(name: &[u8]) -> bool {
    name == CALLED
        || name == Metadata::Ocdbt.name().as_bytes()
        || OF_ARRAYS.iter().any(|one| one.name().as_bytes() == name)
        || INDEXES.iter().any(|end| name.ends_with(end))
}

fn beyond<T>(what: String) -> Result<T> {
    Err(Fault::Io(io::Error::other(what)))
}

pub(crate) fn read(source: &dyn Source, out: &mut Out<'_, '_>) -> Result<()> {
    let size = source.size()?;
    if size > PLAN_MAX {
        return beyond(format!("a plan of {size} bytes"));
    }
    let mut cursor = Cursor::new(source, 0, size)?;
    let mut ends: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
    let mut names = 0;
    let planned = pickle::plan(&mut cursor, false, &mut |said| {
        let Said::Place(place) = said else { return Ok(()) };
        let Some(end) = place.offset.checked_add(place.len) else { return malformed("a place that cannot be") };
        if let Some(known) = ends.get_mut(place.file) {
            *known = end.max(*known);
            return Ok(());
        }
        if !is_name(place.file) {
            return malformed("a part that cannot be the name of a file");
        }
        names += place.file.len();
        if ends.len() == FILES_MAX || names > NAMES_MAX {
            return beyond("a plan of too many files".to_owned());
        }
        ends.insert(place.file.to_owned(), end);
        Ok(())
    });
    out.found.cut = matches!(planned, Err(Fault::Short(_)));
    planned?;
    out.found.end = cursor.at();
    let text = |name: Vec<u8>| String::from_utf8(name).unwrap_or_default();
    out.found.metadata = ends.into_iter().map(|(name, end)| (text(name), end.to_string())).collect();
    Ok(())
}

/// Gives all that a plan says, or the index of a checkpoint in parts, to `sink`.
pub(crate) fn read_in_full(
    source: &dyn Source,
    out: &mut Out<'_, '_>,
    sink: &mut dyn FnMut(Planned) -> ControlFlow<()>,
) -> Result<()> {
    let size = source.size()?;
    if size > PLAN_MAX {
        return beyond(format!("a plan of {size} bytes"));
    }
    let (mut pieces, mut taken) = (0, 0);
    let mut give = |piece: Planned| {
        pieces += 1;
        taken += piece.taken();
        if pieces > TENSORS_MAX || taken > TAKEN_MAX {
            return beyond("a plan of too many parts".to_owned());
        }
        if let Some(fault) = piece.fault() {
            return malformed(fault);
        }
        if sink(piece).is_continue() { Ok(()) } else { Err(Fault::Stopped) }
    };
    let mut first = [0; 4];
    let count = read_up_to(source, 0, &mut first)?;
    if first == MANIFEST {
        out.found.end = size;
        return give(Planned::Database);
    }
    if count > 0 && first[0] != PICKLE {
        if size <= OF_ARRAY_MAX
            && let Some(what) = arrays::alone(source)
        {
            out.found.end = size;
            return match what {
                What::Array(array) if array.is_put_together() => {
                    give(Planned::Array { name: ARRAY.to_vec(), array: Box::new(array) })
                }
                _ => Ok(()),
            };
        }
        return read_with(source, out, &mut |name, file| {
            let (name, file) = (name.as_bytes().to_vec(), file.to_owned());
            give(Planned::Place { name, offsets: None, chunk: None, file, offset: 0, len: 0 })
        });
    }
    let mut cursor = Cursor::new(source, 0, size)?;
    let planned = pickle::plan(&mut cursor, true, &mut |said| {
        give(match said {
            Said::Chunk { offsets, sizes } => Planned::Chunk { offsets, sizes },
            Said::Tensor { name, dtype, shape } => Planned::Tensor { name: name.to_vec(), dtype, shape },
            Said::Place(Place { of, file, offset, len }) => {
                let Some((name, index)) = of else { return malformed("a plan with a place of nothing") };
                let Some(file) = String::from_utf8(file.to_vec()).ok().filter(|file| is_name(file.as_bytes())) else {
                    return malformed("a part that cannot be the name of a file");
                };
                let (offsets, chunk) = (index.offsets.clone(), index.number);
                Planned::Place { name: name.to_vec(), offsets, chunk, file, offset, len }
            }
        })
    });
    out.found.cut = matches!(planned, Err(Fault::Short(_)));
    planned?;
    out.found.end = cursor.at();
    Ok(())
}

/// What a plan says, piece by piece: that of a distributed checkpoint, the index of one in parts, or what else says
/// which parts there are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Planned {
    /// A part of the tensor that is named next.
    Chunk {
        /// Its first element, in each dimension.
        offsets: Vec<u64>,
        /// Elements in each dimension.
        sizes: Vec<u64>,
    },
    /// A tensor, the parts of which were named before it.
    Tensor {
        /// Its name, as the program has it.
        name: Vec<u8>,
        /// The type of its elements, if it is one that is known.
        dtype: Option<Dtype>,
        /// Its dimensions.
        shape: Vec<u64>,
    },
    /// Where a part of a tensor is, or something that is no tensor.
    Place {
        /// The name of the tensor, or of what it is.
        name: Vec<u8>,
        /// The first element of the part, in each dimension, if that is said.
        offsets: Option<Vec<u64>>,
        /// Which of the parts it is, in the order in which they were named, if that is said.
        chunk: Option<u64>,
        /// The name of the file that it is in, which is beside the plan. An index may have a path that leads below.
        file: String,
        /// Its first byte in the file. An index says no more than the file.
        offset: u64,
        /// How many bytes it takes there, which have a format of their own. 0 in an index: the file has more.
        len: u64,
    },
    /// An array in chunks, each a file beside the plan that has its elements and nothing else.
    Array {
        /// Its name.
        name: Vec<u8>,
        /// What it is.
        array: Box<Array>,
    },
    /// The file begins as the manifest of a database does, which is gone through to know what is in that.
    Database,
}

impl Planned {
    /// What cannot be true of it, if anything. What reads plans finds none with a fault; this is for whoever does not
    /// trust it.
    pub fn fault(&self) -> Option<&'static str> {
        let (name, numbers): (&[u8], [&[u64]; 2]) = match self {
            Planned::Chunk { offsets, sizes } if offsets.len() != sizes.len() => {
                return Some("a part of a tensor of other dimensions");
            }
            Planned::Chunk { offsets, sizes } => (b"", [offsets, sizes]),
            Planned::Tensor { name, shape, .. } => (name, [shape, &[]]),
            Planned::Place { file, .. } if !is_below(file) => {
                return Some("a part that cannot be the name of a file");
            }
            Planned::Place { offset, len, .. } if offset.checked_add(*len).is_none() => {
                return Some("a place that cannot be");
            }
            Planned::Place { name, offsets, .. } => (name, [offsets.as_deref().unwrap_or_default(), &[]]),
            Planned::Array { array, .. } if array.fault().is_some() || !array.is_put_together() => {
                return Some("an array that cannot be");
            }
            Planned::Array { name, array } => (name, [&array.shape, &[]]),
            Planned::Database => (b"", [&[], &[]]),
        };
        let bytes = |dtype: &Option<Dtype>| dtype.and_then(Dtype::size).unwrap_or(1).max(1);
        match self {
            _ if name.len() > limits::NAME_MAX => Some("a tensor whose name is too long"),
            _ if numbers.iter().any(|numbers| numbers.len() > DIMENSIONS_MAX) => {
                Some("a tensor of too many dimensions")
            }
            Planned::Tensor { dtype, shape, .. }
                if elements(shape).and_then(|count| count.checked_mul(bytes(dtype))).is_none() =>
            {
                Some("a tensor of too many bytes")
            }
            Planned::Chunk { offsets, sizes }
                if elements(sizes).is_none()
                    || offsets.iter().zip(sizes).any(|(offset, size)| offset.checked_add(*size).is_none()) =>
            {
                Some("a part of a tensor that is too large")
            }
            _ => None,
        }
    }

    /// About how many bytes of memory it takes.
    fn taken(&self) -> usize {
        size_of::<Planned>()
            + match self {
                Planned::Chunk { offsets, sizes } => (offsets.len() + sizes.len()) * 8,
                Planned::Tensor { name, shape, .. } => name.len() + shape.len() * 8,
                Planned::Place { name, offsets, file, .. } => {
                    name.len() + file.len() + offsets.as_ref().map_or(0, Vec::len) * 8
                }
                Planned::Array { name, array } => name.len() + size_of::<Array>() + array.shape.len() * 16,
                Planned::Database => 0,
            }
    }
}

/// A name in the directory of the plan itself, as torch gives.
fn is_name(name: &[u8]) -> bool {
    let is_odd = matches!(name, b"" | b"." | b"..") || name.len() > NAME_MAX;
    !is_odd && !name.contains(&b'/') && !name.contains(&0) && std::str::from_utf8(name).is_ok()
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use super::Planned;
    use crate::dtype::Dtype;
    use crate::found::Recognised;
    use crate::recognise::{pieces, planned};

    fn text(text: &str) -> Vec<u8> {
        [b"\x8c", &[text.len() as u8][..], text.as_bytes()].concat()
    }

    fn class(module: &str, name: &str) -> Vec<u8> {
        [&text(module)[..], &text(name), b"\x93)\x81"].concat()
    }

    /// An object with attributes.
    fn object(module: &str, name: &str, attributes: &[(&str, Vec<u8>)]) -> Vec<u8> {
        let items: Vec<u8> = attributes.iter().flat_map(|(name, value)| [text(name), value.clone()].concat()).collect();
        [&class(module, name)[..], b"}(", &items, b"ub"].concat()
    }

    fn place(file: &[u8], offset: i64, len: i64) -> Vec<u8> {
        let number = |number: i64| [&b"\x8a\x08"[..], &number.to_le_bytes()].concat();
        let attributes = [("relative_path", file.to_vec()), ("offset", number(offset)), ("length", number(len))];
        object("torch.distributed.checkpoint.filesystem", "_StorageInfo", &attributes)
    }

    fn plan(places: &[Vec<u8>]) -> Vec<u8> {
        let index = object("torch.distributed.checkpoint.metadata", "MetadataIndex", &[("fqn", text("w"))]);
        let item = |place: &Vec<u8>| [&index[..], place].concat();
        let lots =
            places.chunks(1000).map(|lot| [&b"("[..], &lot.iter().flat_map(item).collect::<Vec<_>>(), b"u"].concat());
        let places = [b"}".to_vec(), lots.collect::<Vec<_>>().concat()].concat();
        let attributes = [("state_dict_metadata", b"}".to_vec()), ("storage_data", places)];
        let all = object("torch.distributed.checkpoint.metadata", "Metadata", &attributes);
        [b"\x80\x04", &all[..], b"."].concat()
    }

    fn said(found: &Recognised) -> Vec<(&str, &str)> {
        found.metadata.iter().map(|(name, end)| (name.as_str(), end.as_str())).collect()
    }

    #[test]
    fn files_are_named_with_their_ends() {
        let places = [("a", 0, 5), ("b", 7, 1), ("a", 9, 2), ("a", 5, 4)];
        let plan = plan(&places.map(|(file, offset, len)| place(&text(file), offset, len)));
        assert_eq!(said(&planned(&&plan[..])), [("a", "11"), ("b", "8")]);
        for end in 0..plan.len() {
            let found = planned(&&plan[..end]);
            assert!(found.cut && found.reason.is_some() && found.metadata.is_empty(), "{end}");
        }
        assert!(planned(&&vec![0; plan.len()][..]).reason.is_some());
    }

    fn in_full(bytes: &[u8]) -> (Vec<Planned>, Recognised) {
        let mut all = Vec::new();
        let found = pieces(&bytes, &mut |piece| {
            all.push(piece);
            ControlFlow::Continue(())
        });
        (all, found)
    }

    fn numbers(numbers: &[u8]) -> Vec<u8> {
        let tuple: Vec<u8> = numbers.iter().flat_map(|number| [b'K', *number]).collect();
        [&text("torch")[..], &text("Size"), b"\x93(", &tuple, b"t\x85R"].concat()
    }

    /// A plan of one tensor in two parts, of which the second is told with its number alone.
    fn of_two(size: &[u8], sizes: &[u8], second: &[u8]) -> Vec<u8> {
        let metadata = "torch.distributed.checkpoint.metadata";
        let chunk = |offsets: &[u8]| {
            object(metadata, "ChunkStorageMetadata", &[("offsets", numbers(offsets)), ("sizes", numbers(sizes))])
        };
        let properties =
            [&class(metadata, "TensorProperties")[..], b"(", &text("torch"), &text("float16"), b"\x93\x89tb"].concat();
        let chunks = [&b"]("[..], &chunk(&[0, 0]), &chunk(second), b"e"].concat();
        let attributes = [("properties", properties), ("size", numbers(size)), ("chunks", chunks)];
        let tensor = object(metadata, "TensorStorageMetadata", &attributes);
        let tensors =
            [&b"}("[..], &text("a.w"), &tensor, &text("step"), &class(metadata, "BytesStorageMetadata"), b"u"];
        let index = |more: (&str, Vec<u8>)| object(metadata, "MetadataIndex", &[("fqn", text("a.w")), more]);
        let of_object = object(metadata, "MetadataIndex", &[("fqn", text("step"))]);
        let places = [
            &b"}("[..],
            &index(("offset", numbers(&[0, 0]))),
            &place(&text("a"), 0, 9),
            &index(("index", b"K\x01".to_vec())),
            &place(&text("b"), 4, 5),
            &of_object,
            &place(&text("b"), 0, 4),
            b"u",
        ];
        let attributes = [("state_dict_metadata", tensors.concat()), ("storage_data", places.concat())];
        [&b"\x80\x04"[..], &object(metadata, "Metadata", &attributes), b"."].concat()
    }

    #[test]
    fn tensors_are_told_with_their_parts() {
        let plan = of_two(&[4, 3], &[2, 3], &[2, 0]);
        let (all, found) = in_full(&plan);
        assert_eq!((found.reason, found.end), (None, plan.len() as u64));
        let place = |name: &[u8], offsets, chunk, file: &str, offset, len| Planned::Place {
            name: name.to_vec(),
            offsets,
            chunk,
            file: file.to_owned(),
            offset,
            len,
        };
        let expected = [
            Planned::Chunk { offsets: vec![0, 0], sizes: vec![2, 3] },
            Planned::Chunk { offsets: vec![2, 0], sizes: vec![2, 3] },
            Planned::Tensor { name: b"a.w".to_vec(), dtype: Some(Dtype::F16), shape: vec![4, 3] },
            place(b"a.w", Some(vec![0, 0]), None, "a", 0, 9),
            place(b"a.w", None, Some(1), "b", 4, 5),
            place(b"step", None, None, "b", 0, 4),
        ];
        assert_eq!(all, expected);
        assert_eq!(said(&planned(&&plan[..])), [("a", "9"), ("b", "9")]);
        for end in 0..plan.len() {
            assert!(in_full(&plan[..end]).1.reason.is_some(), "{end}");
        }
        // As soon as nobody wants more, that is all.
        let mut count = 0;
        // Of a manifest of a database it is told that it is one, whatever it leads to.
        let (said, found) = in_full(b"\x0c\xdb\x3a\x2a and more");
        assert_eq!((said, found.reason), (vec![Planned::Database], None));
        let found = pieces(&&plan[..], &mut |_| {
            count += 1;
            ControlFlow::Break(())
        });
        assert!(found.stopped && count == 1);
    }

    #[test]
    fn parts_that_cannot_be_are_refused() {
        for (size, sizes, second) in
            [(&[4, 3][..], &[2, 3][..], &[2][..]), (&[1; 65], &[1, 1], &[1, 1]), (&[4, 3], &[2], &[2, 0])]
        {
            let (_, found) = in_full(&of_two(size, sizes, second));
            assert!(found.reason.is_some() && found.error.is_none(), "{size:?} {sizes:?} {second:?}");
        }
        let chunk = |offset, size| Planned::Chunk { offsets: vec![offset], sizes: vec![size] };
        assert!(chunk(u64::MAX, 1).fault().is_some() && chunk(0, u64::MAX).fault().is_some());
        assert!(chunk(5, 1).fault().is_none());
        let large = Planned::Tensor { name: Vec::new(), dtype: Some(Dtype::F64), shape: vec![1 << 62] };
        assert!(large.fault().is_some());
    }

    #[test]
    fn indexes_are_told_tensor_by_tensor() {
        let (all, found) = in_full(br#" {"metadata": {}, "weight_map": {"a.w": "x", "b": "y", "c": "x"}}"#);
        assert!(found.reason.is_none());
        let place = |name: &str, file: &str| {
            let (name, file) = (name.as_bytes().to_vec(), file.to_owned());
            Planned::Place { name, offsets: None, chunk: None, file, offset: 0, len: 0 }
        };
        assert_eq!(all, [place("a.w", "x"), place("b", "y"), place("c", "x")]);
        for bad in [&br#"{"weight_map": {"a": "../x"}}"#[..], br#"{"weight_map": {"a": ".."}}"#, b"{", b"", b"\x80"] {
            assert!(in_full(bad).1.reason.is_some());
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let long = "x".repeat(255);
        let one = |place: Vec<u8>| planned(&&plan(&[place])[..]);
        assert_eq!(said(&one(place(&text(&long), 0, 1))), [(long.as_str(), "1")]);
        for name in ["", ".", "..", "../x", "/x", "x/y", "x\0"] {
            let found = one(place(&text(name), 0, 1));
            assert!(found.reason.is_some() && found.metadata.is_empty() && found.error.is_none(), "{name:?}");
        }
        for refused in [
            place(&text("a"), -1, 5),
            place(&text("a"), i64::MAX, -1),
            place(b"N", 0, 5),
            place(b"K\x05", 0, 5),
            place(b"X\x01\0\0\0\xff", 0, 5),
            place(&[&b"X\x00\x01\0\0"[..], &[b'x'; 256]].concat(), 0, 5),
            object("torch.distributed.checkpoint.filesystem", "_StorageInfo", &[("offset", b"K\x05".to_vec())]),
        ] {
            assert!(one(refused).reason.is_some());
        }
        for refused in [&b"\x80\x02}."[..], b"N.", b".", b"\x80\x04", &plan(&[])[..40]] {
            assert!(planned(&refused).reason.is_some());
        }
        // Where it is not known what they say.
        for unknown in [object("mine", "Place", &[]), text("a")] {
            assert!(one(unknown).error.is_some());
        }
        let many: Vec<_> = (0..65_537).map(|n| place(&text(&n.to_string()), 0, 1)).collect();
        assert!(planned(&&plan(&many)[..]).error.is_some());
        assert_eq!(planned(&&plan(&many[1..])[..]).metadata.len(), 65_536);
    }
}
