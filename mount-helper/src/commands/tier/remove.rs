//! `tensorfs tier remove`.

use tensorfs_fs::tiers_of_placement;

use crate::cli::TierRemove;
use crate::mounting::pool;
use crate::show::failure::Failure;
use crate::show::output;

/// Runs the command.
pub fn run(arguments: &TierRemove) -> Result<(), Failure> {
    let name = &arguments.name;
    pool::with_unmounted(&arguments.pool, |pool| {
        let named = tiers_of_placement(pool.view().placement()).unwrap_or_default();
        if named.contains(name) {
            return Err(Failure::at(
                &arguments.pool,
                format!("the placement map names tier {name}; change that first"),
            ));
        }
        Ok(pool.remove_tier(name)?)
    })?;
    output::print(&format!("removed tier {name}\n"))
}
