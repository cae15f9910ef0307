//! A disk with a volatile cache that can be made to fail: a FUSE filesystem of one file, for a loop device to stand on.
//!
//! `tensorfs-test-disk MOUNTPOINT IMAGE` says `ready` when `MOUNTPOINT/disk` holds what the image holds, and then
//! answers each line of its input with a line:
//!
//! ```text
//! fail KIND FROM TO TIMES [TEXT]   requests of that kind that touch these bytes fail, so many of them (0: all);
//!                                  of writes only those that hold the text
//! slow KIND MILLISECONDS           they are answered so much later
//! work                             nothing fails or is slow any more
//! failed KIND                      how many failed so far
//! cached                           how many bytes no flush has followed
//! lose SEED PATH                   writes an image of what is left if power is lost now: of the cache nothing (0), all
//!                                  of it (1), or a part that the seed chooses
//! ```
//!
//! KIND is `read`, `write` or `flush`. It ends with its input. It never touches what is mounted on the disk, and its
//! requests for memory wait for no disk (`PR_SET_IO_FLUSHER`): so nothing above can wait for itself.

mod faults;
mod sectors;
mod server;

use std::fs::File;
use std::io::{BufRead, stdin};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::faults::Kind;
use crate::server::Served;

/// `linux/prctl.h`
const PR_SET_IO_FLUSHER: libc::c_int = 57;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [mountpoint, image] = &arguments[..] else { panic!("tensorfs-test-disk MOUNTPOINT IMAGE") };
    // SAFETY: takes integers alone. Where it is not known the disk works all the same.
    unsafe { libc::prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) };
    // SAFETY: as above.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0) };
    let disk = Arc::new(Served::new(&File::open(image).expect("the image")).expect("read the image"));
    let _session = server::serve(disk.clone(), Path::new(mountpoint)).expect("mount the disk");
    println!("ready");
    for line in stdin().lock().lines() {
        match answer(&disk, &line.expect("a line")) {
            Ok(answer) => println!("{answer}"),
            Err(error) => println!("error: {error}"),
        }
    }
    // Not unmounted by name: another disk may be there by now. Whoever has the mount point unmounts it.
    std::process::exit(0);
}

fn answer(disk: &Served, line: &str) -> Result<String, String> {
    let words: Vec<&str> = line.split(' ').collect();
    let number = |word: &str| word.parse::<u64>().map_err(|error| format!("{word}: {error}"));
    match words[..] {
        ["fail", kind, from, to, times, ref text @ ..] => {
            let text = text.first().map(|text| text.as_bytes().to_vec());
            disk.faults().fail(Kind::of(kind)?, number(from)?..number(to)?, number(times)?, text);
            Ok("ok".to_owned())
        }
        ["slow", kind, milliseconds] => {
            disk.faults().slow(Kind::of(kind)?, Duration::from_millis(number(milliseconds)?));
            Ok("ok".to_owned())
        }
        ["work"] => {
            disk.faults().work();
            Ok("ok".to_owned())
        }
        ["failed", kind] => Ok(disk.faults().failed(Kind::of(kind)?).to_string()),
        ["cached"] => Ok(disk.sectors().cached().to_string()),
        ["lose", seed, path] => {
            let image = File::create(path).map_err(|error| error.to_string())?;
            disk.sectors().lose(number(seed)?, &image).map_err(|error| error.to_string())?;
            Ok("ok".to_owned())
        }
        _ => Err(format!("unknown: {line}")),
    }
}
