//! The tensors of one file, from wherever they are known.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use tensorfs_formats::{Format, Recognised, Tensor};
use tensorfs_fs::{Inspector, TensorBytes};
use tensorfs_layout::log::TensorEntry;

use crate::show::failure::{self, Failure};
use crate::tensors::place::Place;
use crate::tensors::recorded::{Recorded, is_looked_into};

/// A file and what is known of its tensors: from the records of its pool if it is sealed, else a reader looks into it.
pub struct Single {
    file: Arc<File>,
    inspector: Inspector,
    recorded: Option<Recorded>,
}

impl Single {
    /// Opens a file to read it.
    pub fn open(place: &Place, inspector: &Inspector) -> Result<Single, Failure> {
        let file = place.open()?;
        let recorded = place.recorded(&file)?.filter(Recorded::has_all_tensors);
        Ok(Single { file: file.into(), inspector: inspector.clone(), recorded })
    }

    /// The file, open to read.
    pub fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// One of its tensors, to be read. Fails if its elements are no plain bytes.
    pub fn bytes(&self, tensor: &Tensor) -> io::Result<TensorBytes> {
        self.inspector.bytes(&self.file, tensor)
    }

    /// Gives each tensor to `sink`, in the file's own order, with its checksums as far as there are any.
    pub fn tensors(&self, sink: &mut dyn FnMut(Tensor, Vec<(u64, u32)>) -> ControlFlow<()>) -> Listing {
        match &self.recorded {
            Some(recorded) => {
                recorded.each(&mut |entry: TensorEntry| {
                    let checksums = recorded.checksums(&entry);
                    sink(entry.tensor, checksums)
                });
                Listing::of(recorded)
            }
            None => self.inspector.recognise(&self.file, &mut |tensor| sink(tensor, Vec::new())).into(),
        }
    }

    /// Gives each tensor to `sink`, with the checksum of its bytes if there is one. What a program that loads the file
    /// would call is always found out, which the records do not say.
    pub fn tensors_and_calls(&self, sink: &mut dyn FnMut(Tensor, Option<u32>) -> ControlFlow<()>) -> Listing {
        match &self.recorded {
            Some(recorded) if recorded.summary().is_some_and(|summary| summary.format != Format::Torch) => {
                recorded.each(&mut |entry| {
                    let crc = recorded.checksum(&entry);
                    sink(entry.tensor, crc)
                });
                Listing::of(recorded)
            }
            recorded => {
                let mut known = BTreeMap::new();
                if let Some(recorded) = recorded {
                    known.extend(recorded.entries().map(|entry| (entry.tensor.range(), recorded.checksum(&entry))));
                }
                let mut each = |tensor: Tensor| {
                    let crc = known.get(&tensor.range()).copied().flatten();
                    sink(tensor, crc)
                };
                self.inspector.recognise(&self.file, &mut each).into()
            }
        }
    }
}

/// What a file turned out to be.
pub struct Listing {
    format: Format,
    tensors: u64,
    bad_frames: u64,
    reason: Option<String>,
    calls: Vec<String>,
    error: Option<io::Error>,
}

impl Listing {
    /// The file's format.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Tensors in the file.
    pub fn tensors(&self) -> u64 {
        self.tensors
    }

    /// Frames of an event file that are damaged.
    pub fn bad_frames(&self) -> u64 {
        self.bad_frames
    }

    /// Why the file is opaque, or what in it is wrong.
    pub fn reason(&self) -> Option<&str> {
        self.reason.as_deref()
    }

    /// What a program that loads the file would call.
    pub fn calls(&self) -> &[String] {
        &self.calls
    }

    /// Whether the file could not be read to its end.
    pub fn is_cut_short(&self) -> bool {
        self.error.is_some()
    }

    /// What of the file was not understood, though the rest was. The end of an event file may still be written.
    pub fn left_out(&self) -> Option<&str> {
        let is_looked_into = is_looked_into(self.format) && self.format != Format::TfRecord;
        self.reason().filter(|_| is_looked_into)
    }

    /// Why the file has no tensors that can be listed, or why it could not be read.
    pub fn failure(&self, path: &Path) -> Option<Failure> {
        if let Some(error) = &self.error {
            return Some(Failure::at(path, failure::reason(error)));
        }
        let is_opaque = !is_looked_into(self.format) || (self.tensors == 0 && self.left_out().is_some());
        is_opaque.then(|| Failure::at(path, self.reason().unwrap_or("no tensors")))
    }

    /// Of a file with all its tensors in the records.
    fn of(recorded: &Recorded) -> Listing {
        let summary = recorded.summary();
        Listing {
            // It has one, or its tensors would not be there.
            format: summary.as_ref().map_or(Format::Opaque, |summary| summary.format),
            tensors: summary.as_ref().map_or(0, |summary| summary.tensors),
            bad_frames: summary.as_ref().map_or(0, |summary| summary.bad_frames),
            reason: summary.and_then(|summary| summary.reason),
            calls: Vec::new(),
            error: None,
        }
    }
}

impl From<Recognised> for Listing {
    fn from(found: Recognised) -> Self {
        let Recognised { format, tensors, bad_frames, reason, calls, error, .. } = found;
        Listing { format, tensors, bad_frames, reason, calls, error }
    }
}
