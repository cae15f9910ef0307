//! `tensorfs tier move`: files move to another tier, those that nothing has open.

use std::cell::Cell;
use std::path::Path;
use std::process::ExitCode;

use tensorfs_fs::Request;

use crate::ask::giving;
use crate::cli::TierMove;
use crate::mounting::pool;
use crate::show::failure::Failure;
use crate::show::progress::Bar;
use crate::show::{output, text};
use crate::tensors::place::Place;

/// Runs the command. Status 1: something was not moved.
pub fn run(arguments: &TierMove) -> Result<ExitCode, Failure> {
    let bar = Bar::new(false);
    let (mut moved, mut not) = (0, 0);
    let failed = Cell::new(false);
    let trouble = |failure| {
        bar.aside(|| output::complain(failure));
        failed.set(true);
    };
    for path in &arguments.paths {
        let mut tally = |path: &Path, result: Result<(), String>| match result {
            Ok(()) => moved += 1,
            Err(why) => {
                not += 1;
                bar.aside(|| output::complain(Failure::at(path, format!("not moved: {why}"))));
            }
        };
        let done = Place::of(path).and_then(|place| {
            if place.is_in_pool() {
                tally(path, in_pool(path, &place, &arguments.tier)?);
                return Ok(true);
            }
            place.files(
                &mut |place, about| {
                    match on_mount(place, &arguments.tier, about.size(), &bar) {
                        Ok(Err(_)) | Err(_) if place.is_gone() => {}
                        Ok(done) => tally(place.path(), done),
                        Err(failure) => trouble(failure),
                    }
                    Ok(true)
                },
                &mut { trouble },
            )
        });
        // Others are moved all the same.
        done.map_or_else(trouble, drop);
    }
    bar.clear();
    // Where nothing was found there is nothing to count.
    if moved + not > 0 || !failed.get() {
        let files = text::count(moved, "file is", "files are");
        let not_moved = if not > 0 { format!(", {not} not") } else { String::new() };
        output::print(&format!("{files} in tier {}{not_moved}\n", arguments.tier))?;
    }
    Ok(if not > 0 || failed.get() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn on_mount(place: &Place, tier: &str, size: u64, bar: &Bar) -> Result<Result<(), String>, Failure> {
    let ino = place.ino()?;
    let request = |begin| Request::Move { ino, tier: tier.to_owned(), begin };
    giving::wait(place.path(), request, |done| bar.show("moving", done, size))
}

/// Moves one file of a pool that is not mounted: opens the pool, as a mount would.
fn in_pool(path: &Path, place: &Place, name: &str) -> Result<Result<(), String>, Failure> {
    let (pool, _) = place.in_which_pool().ok_or_else(|| Failure::at(path, "no pool"))?;
    Ok(tensorfs_fs::move_in_pool(pool::open_unmounted(&pool)?, place.ino()?, name)?)
}
