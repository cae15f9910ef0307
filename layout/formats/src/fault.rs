//! Why a recogniser ends early.

use std::borrow::Cow;
use std::io;

/// Why a recogniser ends early.
#[derive(Debug)]
pub(crate) enum Fault {
    Io(io::Error),
    Malformed(Cow<'static, str>),
    /// What was looked at ends before what it promises. As malformed, but where that is the end of the file.
    Short(Cow<'static, str>),
    /// There is more of something than is looked at, which says nothing of the bytes.
    TooMuch(Cow<'static, str>),
    Stopped,
}

impl Fault {
    /// What is wrong with the bytes, or why not all of them are looked at.
    pub fn why(self) -> Option<String> {
        match self {
            Fault::Malformed(why) | Fault::Short(why) | Fault::TooMuch(why) => Some(why.into_owned()),
            Fault::Io(_) | Fault::Stopped => None,
        }
    }
}

pub(crate) type Result<T, E = Fault> = std::result::Result<T, E>;

impl From<io::Error> for Fault {
    /// Readers below `io::Read` say with an error what is wrong with the bytes; that is not a fault of the disk.
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Fault::Short("cut short".into()),
            io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput if error.raw_os_error().is_none() => {
                Fault::Malformed(error.to_string().into())
            }
            io::ErrorKind::FileTooLarge if error.raw_os_error().is_none() => Fault::TooMuch(error.to_string().into()),
            _ => Fault::Io(error),
        }
    }
}

pub(crate) fn malformed<T>(why: impl Into<Cow<'static, str>>) -> Result<T> {
    Err(Fault::Malformed(why.into()))
}

pub(crate) fn too_much<T>(what: impl Into<Cow<'static, str>>) -> Result<T> {
    Err(Fault::TooMuch(what.into()))
}

pub(crate) fn short<T>(why: impl Into<Cow<'static, str>>) -> Result<T> {
    Err(Fault::Short(why.into()))
}
