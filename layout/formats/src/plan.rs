//! The plan of a distributed checkpoint, which torch writes beside its parts: of interest is which files there are, and
//! how long each is at least.

use std::collections::BTreeMap;
use std::io;

use crate::cursor::Cursor;
use crate::fault::{Fault, Result, malformed};
use crate::found::Out;
use crate::pickle;
use crate::source::Source;

/// The longest plan that is read.
const PLAN_MAX: u64 = 256 << 20;
/// The most files.
const FILES_MAX: usize = 65_536;
/// The longest name of one, and what all names take together.
const NAME_MAX: usize = 255;
const NAMES_MAX: usize = 1 << 20;

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
    let planned = pickle::plan(&mut cursor, &mut |place| {
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

/// A name in the directory of the plan itself, as torch gives.
fn is_name(name: &[u8]) -> bool {
    let is_odd = matches!(name, b"" | b"." | b"..") || name.len() > NAME_MAX;
    !is_odd && !name.contains(&b'/') && !name.contains(&0) && std::str::from_utf8(name).is_ok()
}

#[cfg(test)]
mod tests {
    use crate::found::Recognised;
    use crate::recognise::planned;

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
