//! Readers: processes that look into the bytes of users' files, so that the server need not.
//!
//! What is in a file is said by whoever wrote it, and what takes it apart may have a fault. So it is taken apart in a
//! process that was locked in ([`jail`]) before it hears of any file: it may open nothing, send nothing, start nothing
//! and signal nobody; all that it has is memory, a clock, and a socket to the server. It has no descriptor of the file
//! either: the server reads for it (`protocol.rs`), so that no lease is in the way and nothing is open longer than the
//! server has it open.
//!
//! The server believes none of its answers: each is checked again against the file's size (`check.rs`), and at worst
//! says something wrong about that one file. What a request may take of the processor, and how long it may say nothing,
//! is bounded; whoever asks may be gone, and the file with him. Then the process is killed, which is always safe.
//!
//! Commands have files looked into in the same way (`inspector.rs`): what is said here of the server is true of them.

mod ask;
mod check;
mod hear;
mod inspector;
mod jail;
mod process;
mod protocol;
mod readers;
mod said;
mod serve;

pub(crate) use ask::{Ask, Mark};
pub use inspector::{Inspector, TensorBytes};
pub(crate) use jail::lock_in;
pub(crate) use protocol::Wanted;
pub use readers::ReaderInfo;
pub(crate) use readers::{Broken, Decoder, Readers};
pub use said::{Heard, Question, heard, said_of};
pub use serve::{READER, serve_reader};
