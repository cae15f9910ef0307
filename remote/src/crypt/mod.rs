//! Encryption of what is put, with a key that the store never sees. docs/REMOTE.md has it byte by byte.
//!
//! * `key`: the key, and the file that it is in;
//! * `cipher`: what is made of it for one remote, and the bytes of an object.

mod cipher;
mod key;

pub use cipher::{Cipher, Id, OVERHEAD};
pub use key::Key;

use rustix::rand::{GetRandomFlags, getrandom};

use crate::error::{Error, Result};

/// Bytes that nobody can guess.
fn random<const LEN: usize>() -> Result<[u8; LEN]> {
    let mut bytes = [0; LEN];
    let mut filled = 0;
    while filled < LEN {
        match getrandom(&mut bytes[filled..], GetRandomFlags::empty()) {
            Ok(more) => filled += more,
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => {
                return Err(Error::Host { path: "random numbers".into(), what: "get", source: errno.into() });
            }
        }
    }
    Ok(bytes)
}
