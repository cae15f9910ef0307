//! The file that a server logs to, which may be given another name while it runs.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::show::failure::reason;

/// The file.
#[derive(Clone, Debug)]
pub struct LogFile(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    /// Whoever writes to it holds no lock meanwhile.
    file: Mutex<Arc<File>>,
}

/// The owner writes it, and a group may be let read it.
const MODE: u32 = 0o640;

/// Opens a file to log to; it is made if it is not there. Waits for nobody: if the name is a FIFO's, that fails while
/// nobody reads from it.
pub fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.append(true).custom_flags(libc::O_NONBLOCK);
    match options.open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        opened => return opened,
    }
    let file = options.create(true).mode(MODE).open(path)?;
    // What the server makes is its own (umask), but for this one.
    file.set_permissions(Permissions::from_mode(MODE))?;
    Ok(file)
}

impl LogFile {
    /// Opens it to append to it; it is made if it is not there.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self(Arc::new(Inner { path: path.into(), file: Mutex::new(Arc::new(open(path)?)) })))
    }

    /// Opens what has the name now. If that fails, it goes on with the file that it has.
    pub fn open_again(&self) -> Result<(), String> {
        let opened = open(&self.0.path).map_err(|error| format!("{}: {}", self.0.path.display(), reason(&error)));
        opened.map(|file| self.go_on_with(file))
    }

    /// Goes on with a file that somebody else has opened.
    pub fn go_on_with(&self, file: File) {
        let before =
            std::mem::replace(&mut *self.0.file.lock().unwrap_or_else(PoisonError::into_inner), Arc::new(file));
        drop(before);
    }

    /// Writes a line at its end. Where that fails there is nobody to be told of it.
    pub fn append(&self, line: &[u8]) {
        let file = self.0.file.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let _ = (&*file).write_all(line);
    }
}
