//! OCDBT: a B+tree of keys and values in a few files, which TensorStore writes, and Orbax keeps arrays in.
//!
//! The format is described at <https://google.github.io/tensorstore/kvstore/ocdbt/index.html#storage-format>; what
//! that leaves open is as in `tensorstore/kvstore/ocdbt/format` of <https://github.com/google/tensorstore>. A manifest
//! names the root of each version of the tree; nodes of the tree are in data files, and say of their children and
//! values in which file those are, and where. Manifests and nodes have a CRC-32C, and are compressed as a rule.
//!
//! No node is followed here: whoever has the files opens them, and asks of one place in one file at a time ([`Asked`]).
//! What he hears ([`Told`]) he gives to a [`Tree`], which says what to ask for next, and holds all of it to its bounds.

mod body;
mod columns;
mod manifest;
mod node;
mod told;
mod tree;

use std::ops::ControlFlow;

use crate::arrays::{self, Node, What};
use crate::fault::{Fault, Result, too_much};
use crate::format::Format;
use crate::found::{Out, Recognised};
use crate::source::{Source, Window};

use body::Body;
pub use told::{Asked, At, Tail, Told, Value};
pub use tree::{Entry, Place, Step, Tree, Wrong};

/// What a manifest begins with, and nodes of its two trees.
pub(crate) const MANIFEST: [u8; 4] = [0x0c, 0xdb, 0x3a, 0x2a];
const VERSIONS: [u8; 4] = [0x0c, 0xdb, 0x12, 0x34];
const NODE: [u8; 4] = [0x0c, 0xdb, 0x20, 0xde];

/// The longest value that is read as the metadata of an array.
const METADATA_MAX: u64 = 4 << 20;

/// Whether a file is a manifest that is whole, of whatever version.
pub(crate) fn check(source: &dyn Source) -> Result<()> {
    Body::open(source, (0, source.size()?), MANIFEST, "a manifest of OCDBT").map(drop)
}

/// Gives what is told at a place of a file to `sink`.
pub(crate) fn read(
    source: &dyn Source,
    asked: Asked,
    out: &mut Out<'_, '_>,
    sink: &mut dyn FnMut(Told) -> ControlFlow<()>,
) -> Result<()> {
    let mut give = |told: Told| if sink(told).is_continue() { Ok(()) } else { Err(Fault::Stopped) };
    let read = match asked {
        Asked::Manifest => {
            let body = Body::open(source, (0, source.size()?), MANIFEST, "a manifest of OCDBT");
            body.and_then(|body| body.told(&mut give, manifest::read))
        }
        Asked::Versions { at, len, height } => {
            let body = Body::open(source, (at, len), VERSIONS, "a node of versions");
            body.and_then(|body| body.told(&mut give, |columns, give| manifest::versions(columns, height, give)))
        }
        Asked::Node { at, len, height, tail, with_values } => {
            let body = Body::open(source, (at, len), NODE, "a node");
            let mut what = |name: &[u8], value: &[u8]| what_of(&tail.joined(name), value);
            let give = &mut give;
            body.and_then(|body| {
                body.told(give, |columns, give| node::read(columns, height, with_values, &mut what, give))
            })
        }
        Asked::Array { at, len, metadata } => {
            let size = source.size()?;
            match at.checked_add(len) {
                _ if len > METADATA_MAX => too_much(format!("metadata of {len} bytes")),
                Some(end) if end <= size => {
                    let window = Window { source, at, len };
                    give(Told::Array(what_is_said(&window, metadata).unwrap_or_else(What::Unknown)))
                }
                _ => Err(Fault::Short(format!("it has {size} bytes, and the metadata of an array behind").into())),
            }
        }
    };
    out.found.cut = matches!(read, Err(Fault::Short(_)));
    read
}

/// What a key's value says that a directory is, if the key is called as its metadata is.
fn what_of(key: &[u8], value: &[u8]) -> Option<What> {
    let metadata = told::metadata_of(key)?;
    Some(what_is_said(&value, metadata).unwrap_or_else(What::Unknown))
}

fn what_is_said(source: &dyn Source, metadata: arrays::Metadata) -> Result<What, String> {
    let mut out = Out { found: Recognised::new(Format::Opaque), sink: &mut |_| ControlFlow::Continue(()) };
    let mut own = None;
    let read = arrays::read(source, metadata, &mut out, &mut |node: Node| {
        if node.path.is_empty() {
            own = Some(node.what);
        }
        ControlFlow::Continue(())
    });
    match read {
        Ok(()) | Err(Fault::Stopped) => Ok(own.unwrap_or(What::Group)),
        Err(Fault::Io(error)) => Err(error.to_string()),
        Err(fault) => Err(fault.why().unwrap_or_default()),
    }
}
