//! What a process was started with. Whoever calls this program may have anything open, and what serves a mount outlives
//! the call: it would keep locks, pipes and mounts of others in use, let a server that has given up its rights have
//! files that it could not open, and wait for itself if one of them is a file of the mount that it serves.

use std::fs;
use std::io;
use std::os::fd::RawFd;
use std::path::{Component, Path};

use crate::show::failure::{Failure, reason};

/// The number of the descriptor that a path leads to, or through.
pub fn number_in(path: &Path) -> Option<RawFd> {
    let below = ["/dev/fd", "/proc/self/fd"].into_iter().find_map(|directory| path.strip_prefix(directory).ok())?;
    match below.components().next()? {
        Component::Normal(name) => name.to_str()?.parse().ok(),
        _ => None,
    }
}

/// Closes everything but the standard descriptors and what was `handed` over on purpose. Nothing that this program has
/// opened itself may be open yet.
pub fn close_all_but(handed: impl IntoIterator<Item = RawFd>) -> Result<(), Failure> {
    let mut handed: Vec<u32> = handed.into_iter().filter_map(|number| number.try_into().ok()).collect();
    handed.sort_unstable();
    let mut from = 3;
    for number in handed.into_iter().filter(|number| *number >= 3).chain([u32::MAX]) {
        if from < number {
            close(from, number - 1)
                .map_err(|error| Failure::new(format!("cannot close what it was started with: {}", reason(&error))))?;
        }
        from = number.saturating_add(1);
    }
    Ok(())
}

fn close(first: u32, last: u32) -> io::Result<()> {
    // SAFETY: the call takes integers, and nothing in this process has any of the descriptors.
    if unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) } == 0 {
        return Ok(());
    }
    // A kernel before Linux 5.9 has no such call, and some containers refuse what they do not know.
    let open = fs::read_dir("/proc/self/fd")?.flatten();
    let open: Vec<u32> = open.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    for number in open.into_iter().filter(|number| (first..=last).contains(number)) {
        // SAFETY: as above. The one that the directory was read by is closed already, which the call says.
        unsafe { libc::close(number as RawFd) };
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_may_lead_to_a_descriptor() {
        for path in ["/dev/fd/7", "/proc/self/fd/7", "/dev/fd/7/pool"] {
            assert_eq!(number_in(Path::new(path)), Some(7), "{path}");
        }
        for other in ["/dev/fd", "/dev/fd/x", "/dev/fd/../7", "dev/fd/7", "/proc/7/fd/7"] {
            assert_eq!(number_in(Path::new(other)), None, "{other}");
        }
    }
}
