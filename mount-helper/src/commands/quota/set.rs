//! `tensorfs quota set`.

use crate::cli::QuotaSet;
use crate::show::failure::Failure;
use crate::show::{output, size};

use super::hosts::{TOO_MUCH, is_ours};
use super::place::Place;

/// Runs the command. One that was interrupted goes on when it is run again: the limit comes last.
pub fn run(arguments: &QuotaSet) -> Result<(), Failure> {
    let place = Place::of(&arguments.directory)?;
    let (directory, hosts) = (&place.directory, &place.hosts);
    if arguments.size == 0 {
        return Err(Failure::at(directory.path(), "a quota is more than nothing; `tensorfs quota clear` removes it"));
    }
    if arguments.size >= TOO_MUCH {
        return Err(Failure::at(directory.path(), "a quota is less than 1 EiB"));
    }
    hosts.check()?;
    let (own, around) = (directory.project()?, place.around()?);
    let has_own = own != around && is_ours(own);
    if !has_own || !hosts.are_limited(own)? {
        let number = if has_own { own } else { hosts.take_free()? };
        directory.set_project(number)?;
        place.give_below(&[0, own, around], number)?;
    }
    let number = directory.project()?;
    hosts.limit(number, arguments.size)?;
    let mut used = 0;
    for host in hosts.iter() {
        used += host.get(number)?.used;
    }
    let (path, limit) = (directory.path().display(), size::humane(arguments.size));
    output::print(&format!("{path}: {} of {limit}\n", size::humane(used)))
}
