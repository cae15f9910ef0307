//! What is a tensor in these bytes.
//!
//! This crate knows nothing of pools and depends on no other crate of tensorfs. docs/TENSORS.md describes the formats.
//!
//! [`recognise()`] looks at any file and says which tensors it holds, where their bytes are and how to read them. It
//! knows some formats and calls everything else opaque.
//!
//! The bytes are not trusted. A recogniser never fails and never panics: what is malformed is opaque, with a reason
//! for a person. It believes no length before it has checked it against the file, executes nothing, takes at most
//! [`MEMORY`] bytes whatever the file says, and its time is linear in the bytes it reads, which are not more than a
//! constant times the file's. A file is recognised whole or not at all, except for event files, which grow: they are
//! recognised up to their first bad frame.

mod arrays;
mod arrow;
mod bare;
mod checksum;
mod claims;
mod cursor;
mod dtype;
mod ends;
mod event;
mod exported;
mod fault;
mod flatbuffer;
mod format;
mod found;
mod front;
mod gguf;
mod hdf5;
mod keras;
mod limits;
mod names;
mod npy;
mod npz;
pub mod ocdbt;
mod orbax;
mod pages;
mod pickle;
mod plan;
mod protobuf;
mod pyliteral;
mod read;
mod recognise;
mod safetensors;
mod shards;
mod source;
mod tensor;
mod tfrecord;
mod torch;
mod within;
mod zip;

pub use arrays::{Array, Block, Keys, Metadata, Node, What};
pub use checksum::{crc32c_join, crc32c_zeroes};
pub use crc32c::{crc32c, crc32c_append};
pub use dtype::Dtype;
pub use format::Format;
pub use found::{Recognised, Sink};
pub use front::Front;
pub use limits::{DIMENSIONS_MAX, MEMORY, NAME_MAX, TENSORS_MAX};
pub use plan::{Planned, is_called_as_plan};
pub use read::{Reader, TensorReader, copy_stored, is_stored_as_read, npy_header, npy_len, read_tensor, tensor_len};
pub use recognise::{block, nodes, part, pieces, planned, recognise, resume, resume_behind, resume_some, shards, tree};
pub use source::{Source, hole_of, read_exact};
pub use tensor::{Kind, Location, Mode, Order, Storage, Tensor};
