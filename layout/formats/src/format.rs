//! The formats that are told apart.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How a file is laid out. The log holds its number: new ones go behind the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Format {
    /// Nothing that is recognised.
    Opaque,
    /// TFRecord frames: event files of smdebug and TensorBoard, and data sets.
    TfRecord,
    /// A safetensors file.
    Safetensors,
    /// A NumPy array.
    Npy,
    /// A zip of NumPy arrays.
    Npz,
    /// What `torch.save` writes: a zip of a pickle and of storages.
    Torch,
    /// HDF5: what h5py and Keras write.
    Hdf5,
    /// GGUF, the format of llama.cpp.
    Gguf,
    /// Arrow's file format, which is Feather's, too.
    Arrow,
    /// Protocol buffers without frames: a TensorProto, or Events.
    Protobuf,
}

impl Format {
    /// The format's name in print.
    pub fn name(self) -> &'static str {
        match self {
            Format::Opaque => "opaque",
            Format::TfRecord => "tfrecord",
            Format::Safetensors => "safetensors",
            Format::Npy => "npy",
            Format::Npz => "npz",
            Format::Torch => "torch",
            Format::Hdf5 => "hdf5",
            Format::Gguf => "gguf",
            Format::Arrow => "arrow",
            Format::Protobuf => "protobuf",
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
