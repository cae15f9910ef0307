//! `outside`: does for a carrier what that may not do itself, as it is locked in.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::Output;

use crate::commands::cli;
use crate::error::{Error, Result};
use crate::fetching::Begun;
use crate::outside::{Answer, Errand, serve};
use crate::{heal, relief};

pub fn run(arguments: &cli::Outside) -> Result<()> {
    let pool = &*arguments.pool;
    let begun = Begun::default();
    let served = serve(pool, |errand, at| match errand {
        Errand::Bring => begun.start(pool, at).map(|()| Answer::Done),
        Errand::Known => heal::known(pool).map(said),
        Errand::Mend { path, ino } => {
            let path = PathBuf::from(OsString::from_vec(path.clone()));
            check_on(&path, at)?;
            heal::mend(&path, *ino).map(said)
        }
        Errand::Uses => Ok(Answer::Used(relief::uses(at).into_iter().collect())),
    });
    served.map_err(|source| Error::Host { path: "what is to be done outside".into(), what: "hear", source })
}

/// Nothing but files of the mount are mended.
fn check_on(path: &Path, at: &Path) -> io::Result<()> {
    let is_plain = path
        .strip_prefix(at)
        .is_ok_and(|way| way.components().all(|part| matches!(part, std::path::Component::Normal(_))));
    if is_plain { Ok(()) } else { Err(io::Error::other("it is not on the mount")) }
}

fn said(output: Output) -> Answer {
    Answer::Said { is_well: output.status.success(), output: output.stdout, error: output.stderr }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_on_the_mount_is_not_mended() {
        let is_on = |path: &str| check_on(Path::new(path), Path::new("/mnt")).is_ok();
        assert!(is_on("/mnt/a/b") && is_on("/mnt"));
        assert!(!is_on("/mnt/../etc/passwd") && !is_on("/etc/passwd") && !is_on("/mntx") && !is_on("a"));
    }
}
