//! Hierarchies of arrays that are directories: zarr 2 and 3, and n5. What the metadata in a directory says of it
//! and of what is below. Chunks are files of their own, and nobody looks into them here.

mod block;
mod codecs;
mod fill;
pub(crate) mod json;
mod n5;
mod node;
mod zarr2;
mod zarr3;

use std::ops::ControlFlow;

use serde::de::DeserializeSeed;

use crate::fault::{Fault, Result, malformed, too_much};
use crate::found::Out;
use crate::shards::{json as json_of, judge};
use crate::source::Source;

pub use block::Block;
pub(crate) use block::read as block;
use json::{Document, Giving, Said, Wrapper};
pub use node::{Array, Keys, Metadata, Node, What};

/// The most directories that are told of, and the longest metadata that is read.
const NODES_MAX: usize = 1 << 17;
const METADATA_MAX: u64 = 64 << 20;

/// What a directory is, by metadata of zarr's or n5's that nothing else is known of. None if it is none, or cannot be
/// read.
pub(crate) fn alone(source: &dyn Source) -> Option<What> {
    let mut said = Said::default();
    let mut json = json_of(source, source.size().ok()?);
    Document { said: &mut said, below: None }.deserialize(&mut json).ok()?;
    json.end().ok()?;
    let what = match (said.get("zarr_format"), said.get("node_type")) {
        (None, _) => n5::node(&said)?,
        (Some(_), Some(_)) => zarr3::node(&said),
        (Some(_), None) => zarr2::array(&said),
    };
    match Node::of("", what).what {
        What::Unknown(_) => Some(What::Group),
        what => Some(what),
    }
}

/// Gives what a directory's metadata says of it and of what is below to `sink`: nothing, if it is no metadata of a
/// hierarchy, but a file of that name.
pub(crate) fn read(
    source: &dyn Source,
    metadata: Metadata,
    out: &mut Out<'_, '_>,
    sink: &mut dyn FnMut(Node) -> ControlFlow<()>,
) -> Result<()> {
    let size = source.size()?;
    if size > METADATA_MAX {
        return too_much(format!("metadata of {size} bytes"));
    }
    let mut count = 0;
    let mut give = |node: Node| {
        count += 1;
        if count > NODES_MAX {
            return too_much(format!("more than {NODES_MAX} arrays and groups"));
        }
        if let Some(fault) = node.fault() {
            return malformed(fault);
        }
        if sink(node).is_continue() { Ok(()) } else { Err(Fault::Stopped) }
    };
    let mut refused = None;
    let mut said = Said::default();
    let mut each = |name: &str, said: Said| match metadata {
        Metadata::Zarr2All => match zarr2::entry(name) {
            Some((path, Metadata::Zarr2Array)) => give(Node::of(path, zarr2::array(&said))),
            Some((path, _)) => give(Node::of(path, zarr2::group(&said))),
            None => Ok(()),
        },
        _ => give(Node::of(name, zarr3::node(&said))),
    };
    let mut giving = Giving { each: &mut each, refused: &mut refused };
    let mut json = json_of(source, size);
    let read = match metadata {
        Metadata::Zarr2All => Wrapper(&mut giving).deserialize(&mut json),
        Metadata::Zarr3 => Document { said: &mut said, below: Some(&mut giving) }.deserialize(&mut json),
        _ => Document { said: &mut said, below: None }.deserialize(&mut json),
    };
    let read = read.and_then(|()| json.end());
    if let Some(fault) = refused {
        return Err(fault);
    }
    judge(read, out)?;
    out.found.end = size;
    let what = match metadata {
        Metadata::Zarr3 => Some(zarr3::node(&said)),
        Metadata::Zarr2Array => Some(zarr2::array(&said)),
        Metadata::Zarr2Group => Some(zarr2::group(&said)),
        Metadata::N5 => n5::node(&said),
        Metadata::Zarr2All | Metadata::Ocdbt => None,
    };
    what.map_or(Ok(()), |what| give(Node::of("", what)))
}
