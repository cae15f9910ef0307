//! `list`: what a remote holds.

use serde::Serialize;

use crate::commands::cli;
use crate::commands::place::repository;
use crate::commands::{show, when};
use crate::error::{Error, Result};
use crate::repository::{Entry, Newest, State};

#[derive(Serialize)]
struct Listed<'a> {
    path: &'a str,
    #[serde(flatten)]
    entry: &'a Entry,
}

/// A batch.
#[derive(Serialize)]
struct Batch<'a> {
    batch: u64,
    time: i64,
    pool: &'a str,
    transaction: u64,
    files: u64,
    bytes: u64,
}

pub fn run(arguments: &cli::List) -> Result<()> {
    let (repository, at) = repository(&arguments.remote, &arguments.reach, arguments.at)?;
    if arguments.batches {
        return repository.each_tree(|tree| batch(tree, arguments.json));
    }
    let newest = when::tree(&repository, at)?;
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

fn batch(tree: &Newest, json: bool) {
    let Some(head) = &tree.head else { return };
    let sizes = tree.tree.entries().filter_map(|entry| entry.file.as_ref()).map(|file| file.size);
    let (files, bytes) = sizes.fold((0, 0_u64), |(files, bytes), size| (files + 1, bytes.saturating_add(size)));
    let (pool, time) = (head.pool.as_str(), head.time);
    let one = Batch { batch: head.number, time, pool, transaction: head.transaction, files, bytes };
    match json {
        true => show::json(&one),
        false => {
            let (time, bytes) = (show::time(time), show::bytes(bytes));
            show::line(&format!("{:>8}  {time}  {files} files with {bytes}", one.batch));
        }
    }
}
