//! `tensorfs quota clear`.

use crate::cli::QuotaClear;
use crate::show::failure::Failure;
use crate::show::output;

use super::hosts::is_ours;
use super::place::Place;

/// Runs the command. The directory itself comes last, so that one that was interrupted can be run again; and then what
/// was made in it meanwhile.
pub fn run(arguments: &QuotaClear) -> Result<(), Failure> {
    let place = Place::of(&arguments.directory)?;
    let directory = &place.directory;
    let (own, around) = (directory.project()?, place.around()?);
    if own == 0 || own == around {
        return Err(Failure::at(directory.path(), "has no quota of its own"));
    }
    place.give_below(&[own], around)?;
    directory.set_project(around)?;
    place.give_below(&[own], around)?;
    // A pool may have come to a host that has none, or on which the number is another's.
    if is_ours(own) && place.hosts.check().is_ok() {
        place.hosts.limit(own, 0)?;
    }
    output::print(&format!("{}: no quota\n", directory.path().display()))
}
