//! `tensorfs create`.

use nix::sys::statvfs::statvfs;

use crate::cli::Create;
use crate::mounting::{paths, pool};
use crate::show::failure::Failure;
use crate::show::{output, size};

/// Runs the command.
pub fn run(arguments: &Create) -> Result<(), Failure> {
    let path = paths::future(&arguments.pool)?;
    pool::create(&path, arguments.size, arguments.layout.clone(), arguments.force)?;
    let limit = match arguments.size {
        Some(bytes) => format!("limit {}", size::humane(bytes)),
        None => "no size limit".to_owned(),
    };
    let host = statvfs(&path).map_or(u64::MAX, |host| host.blocks() * host.fragment_size());
    if arguments.size.is_some_and(|size| size > host) {
        output::complain(format!("{}: the filesystem it is on has only {}", path.display(), size::humane(host)));
    }
    let inspection = tensorfs_layout::check::inspect(&path)?;
    output::print(&format!(
        "created {}: layout \"{}\", {limit}, domain {}\n",
        path.display(),
        inspection.superblock.layout,
        inspection.domain,
    ))
}
