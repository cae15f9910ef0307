//! For tests: what a reader says, and what is made of what a reader might say that was taken over.

use std::fs::File;
use std::io::{self, Read, Write};
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::thread;

use tensorfs_formats::ocdbt::Asked;
use tensorfs_formats::{self as formats, Block, Metadata, Recognised, Source, Tensor, is_stored_as_read};

use super::hear::{converse, head, of_bytes, of_others, of_tensors, taking_nodes, taking_pieces, taking_told};
use super::protocol::{Answer, Order, Wanted, Wire};
use super::serve::serve;

/// What is asked about a file.
#[derive(Clone, Copy, Debug)]
pub enum Question {
    /// Which tensors are in it.
    Tensors,
    /// Which is the first one.
    First,
    /// Which are in an event file, from a place on.
    From(u64),
    /// Which files the index of a checkpoint in parts names.
    Shards,
    /// All that a plan says.
    Pieces,
    /// What the metadata of a hierarchy of arrays says.
    Nodes(Metadata),
    /// What is at a place of a file of a database.
    Tree(Asked),
    /// How large a block of n5's is.
    Block(Block),
    /// The first bytes of the first tensor that has to be decoded.
    Decoded,
}

/// What somebody hears who asked.
#[derive(Debug, Default)]
pub struct Heard {
    /// What came of it, but for a question about bytes.
    pub found: Option<Recognised>,
    /// Tensors, without what is given to a sink.
    pub tensors: Vec<Tensor>,
    /// Pieces of plans, and directories.
    pub others: u64,
    /// The bytes that were decoded.
    pub bytes: Vec<u8>,
}

/// More is not wanted.
const ENOUGH: usize = 1000;

/// Asks a reader of which there is nothing but this stream.
fn ask<S: Read + Write>(file: &File, question: Question, wire: &mut Wire<S>) -> io::Result<Heard> {
    let (source, size): (&dyn Source, u64) = (file, Source::size(file)?);
    let mut heard = Heard::default();
    let wanted = match question {
        Question::Tensors | Question::Decoded => Wanted::All,
        Question::First => Wanted::First,
        Question::From(at) => Wanted::From { at, limit: ENOUGH as u64 },
        Question::Shards => Wanted::Shards,
        Question::Pieces => Wanted::Pieces,
        Question::Nodes(metadata) => Wanted::Nodes(metadata),
        Question::Tree(asked) => Wanted::Tree(asked),
        Question::Block(asked) => Wanted::Block(asked),
    };
    let order = (Order::Recognise { size, wanted }, head(source, wanted.start(), size));
    let mut unreadable = None;
    let others = &mut heard.others;
    let mut more = || {
        *others += 1;
        if *others < ENOUGH as u64 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    let found = match question {
        Question::Tensors | Question::First | Question::From(_) | Question::Shards | Question::Block(_) => {
            let (tensors, mut count) = (&mut heard.tensors, 0);
            let mut sink = |tensor| {
                tensors.push(tensor);
                if tensors.len() < ENOUGH { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            };
            converse(source, wire, order, &mut of_tensors(size, wanted, &mut count, &mut sink), &mut unreadable)?
        }
        Question::Pieces => {
            let mut sink = |_| more();
            converse(source, wire, order, &mut of_others(size, &mut taking_pieces(&mut sink)), &mut unreadable)?
        }
        Question::Nodes(_) => {
            let mut sink = |_| more();
            converse(source, wire, order, &mut of_others(size, &mut taking_nodes(&mut sink)), &mut unreadable)?
        }
        Question::Tree(_) => {
            let mut sink = |_| more();
            converse(source, wire, order, &mut of_others(size, &mut taking_told(&mut sink)), &mut unreadable)?
        }
        Question::Decoded => {
            let mut bytes = vec![0; 4096];
            let tensor = encoded(file).map(Box::new);
            let order = (Order::Decode { size, tensor, offset: 0, len: bytes.len() as u32 }, Vec::new());
            let count = converse(source, wire, order, &mut of_bytes(&mut bytes), &mut unreadable)??;
            bytes.truncate(count);
            heard.bytes = bytes;
            return Ok(heard);
        }
    };
    heard.found = Some(found);
    Ok(heard)
}

/// The first tensor that a reader would have to decode.
fn encoded(file: &File) -> Option<Tensor> {
    let mut first = None;
    let _ = formats::recognise(file, &mut |tensor| {
        if is_stored_as_read(&tensor) {
            return ControlFlow::Continue(());
        }
        first = Some(tensor);
        ControlFlow::Break(())
    });
    first
}

/// All that a reader says that is asked about a file, as it goes over its socket.
pub fn said_of(file: &File, question: Question) -> io::Result<Vec<u8>> {
    struct Recorded {
        socket: UnixStream,
        said: Vec<u8>,
    }
    impl Read for Recorded {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let count = self.socket.read(buffer)?;
            self.said.extend(&buffer[..count]);
            Ok(count)
        }
    }
    impl Write for Recorded {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.socket.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let (socket, other) = UnixStream::pair()?;
    let reader = thread::spawn(move || serve(File::from(OwnedFd::from(other)), Vec::new()));
    let mut recorded = Recorded { socket, said: Vec::new() };
    let mut wire = Wire::new(&mut recorded);
    drop(wire.receive::<Answer>()?);
    let begun = wire.stream().said.len();
    let heard = ask(file, question, &mut wire);
    let said = recorded.said.split_off(begun);
    drop(recorded);
    // It ends as nobody speaks with it any more.
    let _ = reader.join();
    heard.map(|_| said)
}

/// What whoever asks about a file makes of it if a reader says this.
///
/// # Errors
/// It is not believed, or says too little.
///
/// # Panics
/// If what the reader is told is more than it may ask for.
pub fn heard(file: &File, question: Question, said: &[u8]) -> io::Result<Heard> {
    struct Saying<'a>(&'a [u8]);
    impl Read for Saying<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.0.read(buffer)
        }
    }
    impl Write for Saying<'_> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            assert!(bytes.len() < 512 << 10, "{} bytes for one question", bytes.len());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    ask(file, question, &mut Wire::new(Saying(said)))
}
