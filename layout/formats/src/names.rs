//! Names of files that a file says: those that lead nowhere else than below its directory.

/// The longest name of a file, and of one that lies in a directory of the checkpoint's.
const NAME_MAX: usize = 255;
pub(crate) const PATH_MAX: usize = 1024;

/// Whether it is the name of a file, or leads to one below the directory.
pub(crate) fn is_below(name: &str) -> bool {
    let is_name = |part: &str| !matches!(part, "" | "." | "..") && part.len() <= NAME_MAX && !part.contains('\0');
    name.len() <= PATH_MAX && name.split('/').all(is_name)
}
