//! Data sets: the type, the shape, and where the elements are.
//!
//! <https://support.hdfgroup.org/documentation/hdf5/latest/_f_m_t3.html>, IV.A.2

use crate::dtype::Dtype;
use crate::fault::{Result, malformed, too_much};
use crate::hdf5::datatype::{self, Type};
use crate::hdf5::file::File;
use crate::hdf5::header::{Message, kind, messages};
use crate::limits::DIMENSIONS_MAX;
use crate::tensor::{Location, Tensor, elements};

/// The messages of an object, and where its header is.
pub(crate) struct Object<'m> {
    pub messages: &'m [Message],
    pub at: u64,
    /// Bytes of the header, or of its first part.
    pub len: u64,
}

impl Object<'_> {
    pub fn message(&self, kind: u16) -> Option<&Message> {
        self.messages.iter().find(|message| message.kind == kind)
    }
}

/// The tensor that a data set is. None if the object is none: a group, or a type with a name.
pub(crate) fn read(file: &mut File<'_>, object: &Object<'_>, name: &[u8], size: u64) -> Result<Option<Tensor>> {
    let (Some(layout), Some(of), Some(space)) =
        (object.message(kind::LAYOUT), object.message(kind::DATATYPE), object.message(kind::DATASPACE))
    else {
        return Ok(None);
    };
    let of = element(file, of)?;
    let mut shape = match space.is_shared {
        true => return malformed("a shape that is kept elsewhere"),
        false => dimensions(file, space)?,
    };
    shape.extend(&of.dimensions);
    if shape.len() > DIMENSIONS_MAX {
        return too_much(format!("more than {DIMENSIONS_MAX} dimensions"));
    }
    let Some(len) = elements(&shape).and_then(|count| count.checked_mul(of.size)) else {
        return malformed("more elements than there can be");
    };
    let is_elsewhere = [kind::FILTERS, kind::EXTERNAL_FILES].iter().any(|kind| object.message(*kind).is_some());
    // What is not to be read is where it is described.
    let described = Location::Encoded { offset: object.at, len: object.len };
    let location = match place(file, layout)? {
        Place::At(_, room) if of.is_plain && room < len => return malformed("more elements than their place takes"),
        Place::At(offset, _) if of.is_plain && !is_elsewhere && len > 0 => Location::Raw { offset, len },
        Place::At(..) | Place::Nowhere if of.is_plain && len == 0 => Location::Raw { offset: object.at, len: 0 },
        _ => described,
    };
    let (offset, len) = match location {
        Location::Raw { offset, len } | Location::Encoded { offset, len } => (offset, len),
        _ => (0, 0),
    };
    if offset.checked_add(len).is_none_or(|end| end > size) {
        return malformed("elements beyond the end of the file");
    }
    Ok(Some(tensor(name, of, shape, location)))
}

fn tensor(name: &[u8], of: Type, shape: Vec<u64>, location: Location) -> Tensor {
    let Type { dtype, size, is_big, descr, .. } = of;
    let item_size = dtype.size().unwrap_or(size);
    Tensor { item_size, descr, big_endian: is_big, ..Tensor::new(name.to_vec(), dtype, shape, location) }
}

/// The type of the elements, which may be an object of its own.
fn element(file: &mut File<'_>, message: &Message) -> Result<Type> {
    file.seek(message.at);
    if !message.is_shared {
        let of = datatype::read(file, 0)?;
        return if file.at() <= message.end { Ok(of) } else { malformed("a type that is longer than its message") };
    }
    let (version, place) = (file.u8()?, file.u8()?);
    match (version, place) {
        // And where its name is, which is of no use.
        (1, _) => file.skip(6 + file.widths().1 as u64)?,
        (2, _) | (3, 2) => {}
        _ => return Ok(unknown("a type that is kept elsewhere")),
    }
    let Some(at) = file.address()? else { return malformed("a type that is nowhere") };
    let (all, _) = messages(file, at)?;
    match all.iter().find(|message| message.kind == kind::DATATYPE && !message.is_shared) {
        Some(message) => element(file, message),
        None => malformed("a type that is not where it should be"),
    }
}

fn unknown(what: &str) -> Type {
    let descr = Some(what.to_owned());
    Type { dtype: Dtype::Other, size: 0, is_big: false, descr, is_plain: false, dimensions: Vec::new() }
}

/// The sizes of the dimensions; one of 0 where there is nothing at all.
fn dimensions(file: &mut File<'_>, message: &Message) -> Result<Vec<u64>> {
    file.seek(message.at);
    let (version, rank, _flags) = (file.u8()?, file.u8()?, file.u8()?);
    let is_nothing = match version {
        1 => file.skip(5).map(|()| false)?,
        2 => file.u8()? == 2,
        _ => return malformed(format!("a shape of the unknown version {version}")),
    };
    if is_nothing {
        return Ok(vec![0]);
    }
    (0..rank).map(|_| file.length()).collect()
}

/// Where elements are.
enum Place {
    /// One behind the other, in so many bytes, if that is said.
    At(u64, u64),
    /// They were never written, or there are none.
    Nowhere,
    /// In chunks, or in other data sets.
    InParts,
}

fn place(file: &mut File<'_>, message: &Message) -> Result<Place> {
    file.seek(message.at);
    let version = file.u8()?;
    let (class, rank) = match version {
        1 | 2 => {
            let (rank, class) = (file.u8()?, file.u8()?);
            file.skip(5)?;
            (class, u64::from(rank))
        }
        3..=5 => (file.u8()?, 0),
        _ => return malformed(format!("elements laid out in the unknown version {version}")),
    };
    match class {
        0 => {
            file.skip(4 * rank)?;
            let len = if version < 3 { u64::from(file.u32()?) } else { u64::from(file.u16()?) };
            match file.at() + len <= message.end {
                true => Ok(Place::At(file.at(), len)),
                false => malformed("elements that are longer than their message"),
            }
        }
        1 => {
            let at = file.address()?;
            // Earlier versions say it by dimension, as the data space does.
            let len = if version < 3 { u64::MAX } else { file.length()? };
            Ok(at.map_or(Place::Nowhere, |at| Place::At(at, len)))
        }
        2 | 3 => Ok(Place::InParts),
        _ => malformed(format!("elements laid out in the unknown way {class}")),
    }
}
