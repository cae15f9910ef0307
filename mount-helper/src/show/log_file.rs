//! The file that a server logs to, which may be given another name while it runs.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// The file.
#[derive(Clone, Debug)]
pub struct LogFile(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    file: Mutex<File>,
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o640).open(path)
}

impl LogFile {
    /// Opens it to append to it; it is made if it is not there.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self(Arc::new(Inner { path: path.into(), file: Mutex::new(open(path)?) })))
    }

    /// Opens what has the name now. If that fails, it goes on with the file that it has.
    pub fn open_again(&self) -> Result<(), String> {
        let file = open(&self.0.path).map_err(|error| format!("{}: {error}", self.0.path.display()))?;
        let before = std::mem::replace(&mut *self.0.file.lock().unwrap_or_else(PoisonError::into_inner), file);
        drop(before);
        Ok(())
    }
}

impl Write for LogFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.file.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
