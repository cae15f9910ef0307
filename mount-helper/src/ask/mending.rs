//! Mending a damaged file with its second copy: what the remote has of it is fetched into a file without a name beside
//! it, and the server makes the bytes its own if they have its checksums.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::Stdio;

use tensorfs_fs::Request;
use tensorfs_layout::Ino;

use crate::ask::question::directory;
use crate::ask::{carrier, giving};
use crate::mounting::foreign;
use crate::show::failure::{At, Failure, reason};
use crate::tensors::attribute;

/// What only files of a mount of ours have.
const STATE: &str = "user.tensorfs.state";
/// So many names of the file beside it are tried.
const NAMES: u32 = 100;

/// True if a regular file of a mount cannot be opened because its bytes are not to be had.
pub fn is_gone(file: &Path) -> bool {
    let is_file = fs::symlink_metadata(file).is_ok_and(|found| found.is_file());
    let is_ours = || matches!(attribute::get(file, STATE), Ok(Some(_)));
    let gone = [Some(libc::EIO), Some(libc::ENOENT)];
    is_file && is_ours() && File::open(file).is_err_and(|error| gone.contains(&error.raw_os_error()))
}

/// Mends the file of this number, which has this path on a mount, or says why that could not be. The server sees to it
/// that no other file is, and none that is whole.
pub fn mend(file: &Path, ino: Ino) -> Result<(), Failure> {
    let not = |why: &str| Failure::at(file, format!("not mended: {why}"));
    foreign::check(file)?;
    let found = fs::symlink_metadata(file).at(file)?;
    if !found.is_file() || found.ino() != ino.0 {
        return Err(not("the damaged file has another name by now"));
    }
    let donor = donor(file)?;
    let out = donor.try_clone().at(file)?;
    let mut command = carrier::command();
    command.arg("get").arg("--ino").arg(ino.0.to_string()).arg("--").arg(file);
    command.stdin(Stdio::null()).stdout(out).stderr(Stdio::piped());
    let fetched = command.spawn().and_then(|child| child.wait_with_output());
    let fetched = fetched.map_err(|error| carrier::reason(&error))?;
    let failed = (!fetched.status.success()).then(|| {
        let said = String::from_utf8_lossy(&fetched.stderr);
        let last = said.lines().last().unwrap_or("tensorfs-carrier failed");
        last.trim_start_matches("tensorfs remote: ").to_owned()
    });
    let about = donor.metadata().at(file)?;
    if let Some(why) = failed.as_ref().filter(|_| about.size() == 0) {
        return Err(not(why));
    }
    // What there is of a file that was damaged when it was carried may be enough, which its checksums say.
    let with = Ino(about.ino());
    let given = giving::wait(file, |begin| Request::Mend { ino, with, begin }, |_| {})?;
    given.map_err(|why| not(&failed.unwrap_or(why)))
}

/// A file in the same directory, which is gone when it is closed.
fn donor(file: &Path) -> Result<File, Failure> {
    let (dir, mut number) = (directory(file), 0);
    loop {
        let path = dir.join(format!(".tensorfs-mend.{}.{number}", std::process::id()));
        match File::options().read(true).write(true).create_new(true).mode(0o600).open(&path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists && number < NAMES => number += 1,
            Err(error) => {
                return Err(Failure::at(file, format!("not mended: cannot make a file beside it: {}", reason(&error))));
            }
            Ok(made) => return fs::remove_file(&path).at(&path).map(|()| made),
        }
    }
}
