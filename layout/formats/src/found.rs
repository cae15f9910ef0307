//! What a recogniser finds, and where it goes: tensors to the sink of whoever asked, the rest into a summary.

use std::io;
use std::ops::ControlFlow;

use crate::fault::{Fault, Result};
use crate::format::Format;
use crate::tensor::Tensor;

/// What a file turned out to be. Its tensors went to the sink.
#[derive(Debug)]
pub struct Recognised {
    /// The file's format.
    pub format: Format,
    /// Tensors given to the sink.
    pub tensors: u64,
    /// Event files: complete frames looked at. Arrow: batches.
    pub frames: u64,
    /// Those whose checksum or content is wrong; tensors of event files' are left out, and Arrow files end there.
    pub bad_frames: u64,
    /// Up to here the file is understood. For event files the end of the last complete frame, from where
    /// [`resume`](crate::resume) goes on.
    pub end: u64,
    /// True if the file ends before what it promises itself: inside a frame, an array or a header, in bytes behind
    /// frames that are none, or without the directory that is written last.
    pub cut: bool,
    /// Why the file is opaque, or what in it is wrong.
    pub reason: Option<String>,
    /// There is more of something in it than is looked at, as [`Recognised::reason`] says: nothing is wrong for that.
    pub beyond: bool,
    /// What the file says about itself (safetensors), as far as it fits in 1 MiB.
    pub metadata: Vec<(String, String)>,
    /// Torch: what a program that unpickles the file would import and call, beyond what tensors need. The first 32.
    pub calls: Vec<String>,
    /// The sink wanted no more.
    pub stopped: bool,
    /// The file could not be read.
    pub error: Option<io::Error>,
}

impl Recognised {
    /// Of a file that could not be read.
    pub fn unread(error: io::Error) -> Self {
        Recognised { reason: Some(error.to_string()), error: Some(error), ..Self::new(Format::Opaque) }
    }

    pub(crate) fn new(format: Format) -> Self {
        Recognised {
            format,
            tensors: 0,
            frames: 0,
            bad_frames: 0,
            end: 0,
            cut: false,
            reason: None,
            beyond: false,
            metadata: Vec::new(),
            calls: Vec::new(),
            stopped: false,
            error: None,
        }
    }
}

/// Where tensors go, one by one, in the file's own order. [`ControlFlow::Break`] ends the recognition.
pub type Sink<'a> = dyn FnMut(Tensor) -> ControlFlow<()> + 'a;

/// What a recogniser finds, on its way out.
pub(crate) struct Out<'a, 'b> {
    pub found: Recognised,
    pub sink: &'a mut Sink<'b>,
}

impl Out<'_, '_> {
    pub fn tensor(&mut self, tensor: Tensor) -> Result<()> {
        self.found.tensors += 1;
        match (self.sink)(tensor) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(Fault::Stopped),
        }
    }
}
