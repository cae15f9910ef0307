//! `list`: what a remote holds.

use serde::Serialize;

use crate::commands::cli;
use crate::commands::place::repository;
use crate::commands::show;
use crate::error::{Error, Result};
use crate::repository::{Entry, State};

#[derive(Serialize)]
struct Listed<'a> {
    path: &'a str,
    #[serde(flatten)]
    entry: &'a Entry,
}

pub fn run(arguments: &cli::List) -> Result<()> {
    let repository = repository(&arguments.remote, &arguments.reach)?;
    let newest = repository.tree_at(arguments.at)?;
    let top = newest.tree.resolve(&arguments.path).ok_or_else(|| {
        Error::Refused(format!("{}: not in the remote's tree after batch {}", arguments.path, newest.number()))
    })?;
    let prefix = arguments.path.trim_end_matches('/');
    for (path, entry) in newest.tree.below(top) {
        let path = match format!("{prefix}{path}") {
            path if path.is_empty() => "/".to_owned(),
            path => path,
        };
        if arguments.json {
            show::json(&Listed { path: &path, entry });
            continue;
        }
        let size = entry.file.as_ref().map_or(0, |file| file.size);
        let state = match entry.file.as_ref().map(|file| file.state) {
            Some(State::Open) => " (was open to write: in part)",
            Some(State::Damaged) => " (was damaged)",
            Some(State::Whole) | None => "",
        };
        let slash = if entry.is_dir() && path != "/" { "/" } else { "" };
        show::line(&format!("{size:>14}  {path}{slash}{state}"));
    }
    Ok(())
}
