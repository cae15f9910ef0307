//! `tensorfs tier add`.

use crate::cli::TierAdd;
use crate::mounting::{paths, pool};
use crate::show::failure::Failure;
use crate::show::output;

/// Runs the command.
pub fn run(arguments: &TierAdd) -> Result<(), Failure> {
    let directory = paths::future(&arguments.directory)?;
    let name = &arguments.name;
    let is_volatile = pool::with_unmounted(&arguments.pool, |pool| {
        pool.add_tier(name, &directory)?;
        let view = pool.view();
        let added = view.tiers().find(|(_, tier)| *tier.name == **name);
        Ok(added.is_some_and(|(_, tier)| tier.volatile))
    })?;
    let volatile = if is_volatile { ", volatile: its files are lost when the machine is started anew" } else { "" };
    output::print(&format!("added tier {name}: {}{volatile}\n", directory.display()))
}
