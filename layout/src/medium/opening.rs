//! Which medium a log file lies on.

use std::fs::File;
use std::io;

use crate::medium::dax::{DaxMedium, Mapped};
use crate::medium::domain::{Domain, Medium, is_volatile};
use crate::medium::file::FileMedium;

/// Opens the medium of a log file: `dax` if it can be mapped synchronously, else `cached`, or `volatile` on tmpfs.
pub(crate) fn open(log: File) -> io::Result<Box<dyn Medium>> {
    Ok(match domain_of(&log)? {
        Domain::Dax => Box::new(DaxMedium::new(Mapped::new(log)?)),
        domain => Box::new(FileMedium::new(log, domain)),
    })
}

/// Opens the medium of a log file that was opened to be read only. Its domain is the one that stores would have.
pub(crate) fn open_to_read(log: File) -> io::Result<Box<dyn Medium>> {
    let domain = domain_of(&log)?;
    Ok(Box::new(FileMedium::new(log, domain)))
}

/// How stores to a file become durable; the file need not be open for writing.
fn domain_of(log: &File) -> io::Result<Domain> {
    if is_volatile(nix::sys::statfs::fstatfs(log)?.filesystem_type()) {
        return Ok(Domain::Volatile);
    }
    Ok(if Mapped::probe(log) { Domain::Dax } else { Domain::Cached })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ordinary_file_is_cached_and_tmpfs_is_volatile() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let file = File::options().read(true).write(true).create_new(true).open(dir.path().join("log")).unwrap();
        file.set_len(8192).unwrap();
        let domain = open(file).unwrap().domain();
        assert!(matches!(domain, Domain::Cached | Domain::Dax), "{domain}");
        if let Ok(dir) = tempfile::tempdir_in("/dev/shm") {
            let file = File::options().read(true).write(true).create_new(true).open(dir.path().join("log")).unwrap();
            assert_eq!(open(file).unwrap().domain(), Domain::Volatile);
        }
    }
}
