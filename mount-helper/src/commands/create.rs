//! `tensorfs create`.

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
    pool::tell_of_host(&path);
    let inspection = tensorfs_layout::check::inspect(&path)?;
    output::print(&format!(
        "created {}: layout \"{}\", {limit}, domain {}\n",
        path.display(),
        inspection.superblock.layout,
        inspection.domain,
    ))
}
