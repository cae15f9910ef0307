//! Readers for a command, which has the files open itself.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use tensorfs_formats::ocdbt::{Asked, Told};
use tensorfs_formats::{Metadata, Node, Planned, Recognised, Sink, Tensor, copy_stored, is_stored_as_read, tensor_len};

use super::ask::Ask;
use super::protocol::Wanted;
use super::readers::{Broken, Decoder, Readers};

/// Has files looked into that this program has open: in a process that is locked in, never in this one. The program
/// has to be one that is a reader when it is called by that name ([`super::READER`]).
#[derive(Clone)]
pub struct Inspector(Readers);

impl Default for Inspector {
    fn default() -> Self {
        Self(Readers::of_a_command())
    }
}

impl Inspector {
    /// Says what a file is, and gives each of its tensors to `sink`.
    pub fn recognise(&self, file: &File, sink: &mut Sink<'_>) -> Recognised {
        summed_up(file, |ask| Ok(self.0.recognise(ask, Wanted::All, sink)))
    }

    /// Reads the plan of a distributed checkpoint, or the index of one in parts, and gives all that it says to `sink`.
    pub fn pieces(&self, file: &File, sink: &mut dyn FnMut(Planned) -> ControlFlow<()>) -> Recognised {
        summed_up(file, |ask| self.0.pieces(ask, sink))
    }

    /// Reads the metadata of a hierarchy of arrays, and gives each directory that it tells of to `sink`.
    pub fn nodes(&self, file: &File, metadata: Metadata, sink: &mut dyn FnMut(Node) -> ControlFlow<()>) -> Recognised {
        summed_up(file, |ask| self.0.nodes(ask, metadata, sink))
    }

    /// Reads what is at a place of a file of a database, and gives all that it says to `sink`.
    pub fn tree(&self, file: &File, asked: Asked, sink: &mut dyn FnMut(Told) -> ControlFlow<()>) -> Recognised {
        summed_up(file, |ask| self.0.tree(ask, asked, sink))
    }

    /// A tensor of a file, to be read.
    ///
    /// # Errors
    /// [`io::ErrorKind::Unsupported`] if its elements are no plain bytes.
    pub fn bytes(&self, file: &Arc<File>, tensor: &Tensor) -> io::Result<TensorBytes> {
        let len = tensor_len(tensor)
            .ok_or_else(|| io::Error::new(io::ErrorKind::Unsupported, "its elements are not stored as plain bytes"))?;
        let tensor = Arc::new(tensor.clone());
        let decoder = (!is_stored_as_read(&tensor)).then(|| self.0.decoder(tensor.clone()));
        Ok(TensorBytes { file: file.clone(), tensor, len, decoder })
    }
}

/// The bytes of a tensor in the order of its `.npy` header. Those that stand in the file as they are to be read are
/// copied; others come from a reader.
pub struct TensorBytes {
    file: Arc<File>,
    tensor: Arc<Tensor>,
    len: u64,
    decoder: Option<Decoder>,
}

impl TensorBytes {
    /// Bytes of the whole tensor.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Fills `buffer` with the bytes from `offset` on, as far as there are any. What lies compressed is fast to read
    /// only from front to back.
    pub fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(decoder) = &mut self.decoder else { return copy_stored(&*self.file, &self.tensor, offset, buffer) };
        let want = usize::try_from(self.len.saturating_sub(offset)).unwrap_or(usize::MAX).min(buffer.len());
        let mut done = 0;
        while done < want {
            let told = RefCell::default();
            let rest = &mut buffer[done..want];
            let read = asking(&self.file, &told, |ask| decoder.read_at(ask, offset + done as u64, rest));
            match read.map_err(|error| said(error, told))? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => done += count,
            }
        }
        Ok(done)
    }
}

/// Asks readers about a file. `told` is what became of one that failed.
fn asking<T>(
    file: &File,
    told: &RefCell<Option<String>>,
    question: impl FnOnce(&Ask<'_>) -> io::Result<T>,
) -> io::Result<T> {
    let about = file.metadata()?;
    question(&Ask {
        source: file,
        version: (about.ino(), about.len(), about.mtime(), about.mtime_nsec() as u32),
        owner: about.uid(),
        allocated: about.blocks().saturating_mul(512),
        tell: &|what| *told.borrow_mut() = Some(what.to_owned()),
        at_leisure: true,
        took: &|_| (),
        pause: &|| (),
        wanted: &|| Ok(()),
    })
}

/// What came of a question, with what became of the reader if it failed.
fn summed_up(file: &File, question: impl FnOnce(&Ask<'_>) -> io::Result<Recognised>) -> Recognised {
    let told = RefCell::default();
    let mut found = match asking(file, &told, question) {
        Ok(found) => found,
        Err(error) => Recognised::unread(error),
    };
    found.error = found.error.map(|error| said(error, told));
    found
}

/// The error that says what became of the reader.
fn said(error: io::Error, told: RefCell<Option<String>>) -> io::Error {
    match (Broken::of(&error), told.into_inner()) {
        (Some(_), Some(told)) => io::Error::other(told),
        _ => error,
    }
}
