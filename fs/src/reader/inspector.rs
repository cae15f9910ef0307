//! Readers for a command, which has the files open itself.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tensorfs_formats::ocdbt::{Asked, Told};
use tensorfs_formats::{
    Block, Metadata, Node, Planned, Recognised, Sink, Tensor, copy_stored, is_stored_as_read, tensor_len,
};

use crate::budget::Allowance;

use super::ask::Ask;
use super::protocol::Wanted;
use super::readers::{Broken, Decoder, Readers};

/// Has files looked into that this program has open: in a process that is locked in, never in this one. The program
/// has to be one that is a reader when it is called by that name ([`super::READER`]).
#[derive(Clone)]
pub struct Inspector {
    readers: Readers,
    /// Of all that is asked together.
    allowance: Option<Rc<RefCell<Allowance>>>,
}

impl Default for Inspector {
    fn default() -> Self {
        Self { readers: Readers::of_a_command(), allowance: None }
    }
}

impl Inspector {
    /// One of which all questions together may take what one may: those about the files that are one thing.
    pub fn for_one(&self) -> Self {
        Self { readers: self.readers.clone(), allowance: Some(Rc::default()) }
    }

    /// Says what a file is, and gives each of its tensors to `sink`.
    pub fn recognise(&self, file: &File, sink: &mut Sink<'_>) -> Recognised {
        self.summed_up(file, u64::MAX, |ask| Ok(self.readers.recognise(ask, Wanted::All, sink)))
    }

    /// Reads the plan of a distributed checkpoint, or the index of one in parts, and gives all that it says to `sink`.
    pub fn pieces(&self, file: &File, sink: &mut dyn FnMut(Planned) -> ControlFlow<()>) -> Recognised {
        self.summed_up(file, u64::MAX, |ask| self.readers.pieces(ask, sink))
    }

    /// Reads the metadata of a hierarchy of arrays, and gives each directory that it tells of to `sink`.
    pub fn nodes(&self, file: &File, metadata: Metadata, sink: &mut dyn FnMut(Node) -> ControlFlow<()>) -> Recognised {
        self.summed_up(file, u64::MAX, |ask| self.readers.nodes(ask, metadata, sink))
    }

    /// Reads what is at a place of a file of a database, and gives all that it says to `sink`.
    pub fn tree(&self, file: &File, asked: Asked, sink: &mut dyn FnMut(Told) -> ControlFlow<()>) -> Recognised {
        self.summed_up(file, asked.bytes(), |ask| self.readers.tree(ask, asked, sink))
    }

    /// Says where the elements of a block of n5's are, and gives them to `sink` as one tensor of bytes.
    pub fn block(&self, file: &File, asked: Block, sink: &mut Sink<'_>) -> Recognised {
        self.summed_up(file, u64::MAX, |ask| Ok(self.readers.recognise(ask, Wanted::Block(asked), sink)))
    }

    /// What came of a question about so many bytes of a file, with what became of the reader if it failed.
    fn summed_up(
        &self,
        file: &File,
        asked: u64,
        question: impl FnOnce(&Ask<'_>) -> io::Result<Recognised>,
    ) -> Recognised {
        let told = RefCell::default();
        let allowance = self.allowance.clone().unwrap_or_default();
        let found = asking((file, asked), (&allowance, self.readers.budget()), &told, question);
        let mut found = found.unwrap_or_else(Recognised::unread);
        found.error = found.error.map(|error| said(error, told));
        found
    }

    /// A tensor of a file, to be read.
    ///
    /// # Errors
    /// [`io::ErrorKind::Unsupported`] if its elements are no plain bytes.
    pub fn bytes(&self, file: &Arc<File>, tensor: &Tensor) -> io::Result<TensorBytes> {
        let len = tensor_len(tensor)
            .ok_or_else(|| io::Error::new(io::ErrorKind::Unsupported, "its elements are not stored as plain bytes"))?;
        let tensor = Arc::new(tensor.clone());
        let decoder = (!is_stored_as_read(&tensor)).then(|| self.readers.decoder(tensor.clone()));
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
    /// The file that they are in.
    pub fn file(&self) -> &File {
        &self.file
    }

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
            let allowance = (&RefCell::default(), Duration::MAX);
            let read = asking((&self.file, u64::MAX), allowance, &told, |ask| {
                decoder.read_at(ask, offset + done as u64, rest)
            });
            match read.map_err(|error| said(error, told))? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => done += count,
            }
        }
        Ok(done)
    }
}

/// Asks readers about a file, within what is allowed for. `told` is what became of one that failed.
fn asking<T>(
    (file, asked): (&File, u64),
    (allowance, most): (&RefCell<Allowance>, Duration),
    told: &RefCell<Option<String>>,
    question: impl FnOnce(&Ask<'_>) -> io::Result<T>,
) -> io::Result<T> {
    let about = file.metadata()?;
    let allocated = about.blocks().saturating_mul(512);
    let for_bytes = allowance.borrow().for_bytes(about.ino(), asked, allocated);
    question(&Ask {
        source: file,
        version: (about.ino(), about.len(), about.mtime(), about.mtime_nsec() as u32),
        owner: about.uid(),
        for_bytes,
        tell: &|what| *told.borrow_mut() = Some(what.to_owned()),
        at_leisure: true,
        took: &|time| allowance.borrow_mut().spend(about.ino(), for_bytes, time),
        pause: &|| (),
        wanted: &|| match allowance.borrow().spent() > most {
            true => Err(io::Error::other("looking into it took more than it may")),
            false => Ok(()),
        },
    })
}

/// The error that says what became of the reader.
fn said(error: io::Error, told: RefCell<Option<String>>) -> io::Error {
    match (Broken::of(&error), told.into_inner()) {
        (Some(_), Some(told)) => io::Error::other(told),
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::super::protocol::{Answer, Summary};
    use tensorfs_layout::segment::start_apart;

    /// Proves T11.
    #[test]
    fn what_is_one_thing_may_take_what_one_question_may() {
        // A reader that takes a while for each answer.
        let dir = tempfile::tempdir().unwrap();
        let message = |answer: &Answer| {
            let encoded = postcard::to_stdvec(answer).unwrap();
            [&(encoded.len() as u32).to_le_bytes()[..], &[0; 4], &encoded].concat()
        };
        let found = Recognised { format: tensorfs_formats::Format::Opaque, ..Recognised::unread(io::Error::other("")) };
        let end = Summary::from(Recognised { error: None, reason: None, ..found });
        let (ready, said) = (dir.path().join("ready"), dir.path().join("said"));
        fs::write(&ready, message(&Answer::Ready(Vec::new()))).unwrap();
        fs::write(&said, message(&Answer::Recognised(end))).unwrap();
        let [ready, said] = [&ready, &said].map(|path| path.display());
        let burn = "n=0; while [ $n -lt 30000 ]; do n=$((n+1)); done";
        let each = format!("{burn}\ncat '{said}' >&0");
        let script = format!("#!/bin/sh\ncat '{ready}' >&0\nwhile :; do\n{each}\ndone\n");
        let program = dir.path().join("program");
        start_apart(|| fs::write(&program, script)).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
        let budget = Duration::from_millis(100);
        // A file that may take long for its bytes, of which each question is about few.
        let file = dir.path().join("file");
        fs::write(&file, vec![7; 32 << 20]).unwrap();
        let file = File::open(&file).unwrap();
        let asks = |inspector: &Inspector| {
            let node = Asked::Array { at: 0, len: 1000, metadata: Metadata::Zarr3 };
            (0..300).find_map(|n| Some((n, inspector.tree(&file, node, &mut |_| ControlFlow::Continue(())).error?)))
        };
        let inspector = Inspector { readers: Readers::of(program, budget), allowance: None };
        let (asked, why) = asks(&inspector.for_one()).unwrap();
        assert!(asked > 0 && why.to_string().contains("took more than it may"), "{asked}: {why}");
        // Another thing has as much.
        let again = inspector.for_one();
        assert!(again.tree(&file, Asked::Manifest, &mut |_| ControlFlow::Continue(())).error.is_none());
        assert!(again.allowance.unwrap().borrow().spent().is_zero(), "what all bytes may take is more");
    }
}
