//! `tensorfs cat`: one tensor as a `.npy` file.

use std::io::{self, IsTerminal, Write};
use std::ops::ControlFlow;

use tensorfs_formats::npy_header;

use crate::cli::Cat;
use crate::show::failure::{At, Failure};
use crate::show::output::unless_closed;
use crate::tensors::choice;

/// Runs the command.
pub fn run(arguments: &Cat) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    if out.is_terminal() {
        return Err(Failure::new("not onto a terminal: redirect it, as in `tensorfs cat PATH TENSOR > x.npy`"));
    }
    let path = &arguments.path;
    let (file, listed) = choice::one(path, &arguments.tensor)?;
    let Some(header) = npy_header(&listed.tensor) else {
        return Err(Failure::at(path, "its elements are not stored as plain bytes, and are not unpickled"));
    };
    let mut written = out.write_all(&header);
    if written.is_ok() {
        let mut sink = |bytes: &[u8]| {
            written = out.write_all(bytes);
            if written.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        file.bytes(&listed).and_then(|mut bytes| bytes.each(&mut sink)).at(path)?;
    }
    unless_closed(written.and_then(|()| out.flush())).map_err(|error| Failure::new(format!("cannot write: {error}")))
}
