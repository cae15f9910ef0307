//! `tensorfs tier move`: files move to another tier, those that nothing has open.

use std::cell::Cell;
use std::path::Path;
use std::process::ExitCode;

use serde_json::json;
use tensorfs_fs::{LEAVES, NO_TIER, Request};
use tensorfs_layout::log::REMOTE_NAME;

use crate::ask::evicting::{Evicted, Evicting};
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
        let mut tally = |path: &Path, result: Result<(), String>| {
            match &result {
                Ok(()) => moved += 1,
                Err(_) => not += 1,
            }
            if arguments.json {
                let mut printed = Ok(());
                bar.aside(|| printed = output::print(&line(path, &arguments.tier, &result)));
                printed.unwrap_or_else(trouble);
            } else if let Err(why) = result {
                bar.aside(|| output::complain(Failure::at(path, format!("not moved: {why}"))));
            }
        };
        let mut evicting = None;
        let done = Place::of(path).and_then(|place| {
            if place.is_in_pool() {
                tally(path, in_pool(path, &place, &arguments.tier)?);
                return Ok(true);
            }
            place.files(
                &mut |place, about| {
                    let asked = on_mount(place, &arguments.tier, about.size(), &bar);
                    let asked = match asked {
                        Ok(Err(why)) if leaves(&arguments.tier, &why) => {
                            match evict(place, &mut evicting, arguments.check_data) {
                                // Nothing is to be done for it.
                                Ok(Evicted::Empty) => return Ok(true),
                                Ok(Evicted::Gone) => Ok(Ok(())),
                                Ok(Evicted::Stays(why)) => Ok(Err(why)),
                                // Nor will there be for others.
                                Err(failure) if !place.is_gone() => {
                                    trouble(failure);
                                    return Ok(false);
                                }
                                Err(failure) => Err(failure),
                            }
                        }
                        asked => asked,
                    };
                    match asked {
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
    if !arguments.json && (moved + not > 0 || !failed.get()) {
        let files = text::count(moved, "file is", "files are");
        let not_moved = if not > 0 { format!(", {not} not") } else { String::new() };
        output::print(&format!("{files} in tier {}{not_moved}\n", arguments.tier))?;
    }
    Ok(if not > 0 || failed.get() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// A line of JSON.
fn line(path: &Path, tier: &str, result: &Result<(), String>) -> String {
    let mut line = json!({ "tier": tier, "moved": result.is_ok() });
    if let Err(why) = result {
        line["why"] = why.as_str().into();
    }
    format!("{}\n", text::with_path(line, path))
}

fn on_mount(place: &Place, tier: &str, size: u64, bar: &Bar) -> Result<Result<(), String>, Failure> {
    let ino = place.ino()?;
    let request = |begin| Request::Move { ino, tier: tier.to_owned(), begin };
    giving::wait(place.path(), request, |done| bar.show("moving", done, size))
}

/// True if a server says that a file leaves for the remote otherwise than as it is moved to a tier.
fn leaves(tier: &str, why: &str) -> bool {
    tier == REMOTE_NAME && (why == LEAVES || why.starts_with(NO_TIER))
}

/// Has a file leave for the remote.
fn evict(place: &Place, evicting: &mut Option<Evicting>, check_data: bool) -> Result<Evicted, Failure> {
    let ino = place.ino()?;
    let evicting = match evicting {
        Some(evicting) => evicting,
        None => evicting.insert(Evicting::start(place.path(), check_data)?),
    };
    evicting.evict(ino)
}

/// Moves one file of a pool that is not mounted: opens the pool, as a mount would.
fn in_pool(path: &Path, place: &Place, name: &str) -> Result<Result<(), String>, Failure> {
    if name == REMOTE_NAME {
        return Ok(Err("files leave for the remote, and come back, where the pool is mounted".to_owned()));
    }
    let (pool, _) = place.in_which_pool().ok_or_else(|| Failure::at(path, "no pool"))?;
    Ok(tensorfs_fs::move_in_pool(pool::open_unmounted(&pool)?, place.ino()?, name)?)
}
