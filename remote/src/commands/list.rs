//! `list`: what a remote holds.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

use crate::commands::cli;
use crate::commands::place::{named, repository};
use crate::commands::{show, when};
use crate::error::{Error, Result};
use crate::origin::{self, Origin};
use crate::repository::{Entry, Newest, Repository, State};

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

/// One of several pools below a URL.
#[derive(Serialize)]
struct Pool<'a> {
    name: &'a str,
    url: &'a str,
    #[serde(flatten)]
    newest: Option<Batch<'a>>,
}

pub fn run(arguments: &cli::List) -> Result<()> {
    if let Some(members) = several(arguments)? {
        return members.into_iter().try_for_each(|(name, repository)| pool(&name, repository, arguments.json));
    }
    let (repository, at) = repository(&arguments.remote, &arguments.reach, arguments.at)?;
    let (repository, bar) = heard(repository);
    if arguments.batches {
        return repository.each_tree(|tree| bar.beside(|| batch(tree, arguments.json)));
    }
    let newest = when::tree(&repository, at)?;
    bar.end();
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

/// Tells how much of the remote was read.
fn heard(repository: Repository) -> (Repository, Arc<show::Bar>) {
    let bar = Arc::new(show::Bar::new("read", show::Unit::BytesOfMany));
    let (own, read) = (bar.clone(), AtomicU64::new(0));
    let hears = move |bytes| own.show(read.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes), 0);
    (repository.heard_by(hears), bar)
}

/// The pools below a URL, if that is all that is asked for.
fn several(arguments: &cli::List) -> Result<Option<Vec<(String, Repository)>>> {
    if arguments.batches || arguments.at.is_some() || arguments.path != "/" || !arguments.remote.contains("://") {
        return Ok(None);
    }
    let (settings, at) = named(&arguments.remote, &arguments.reach, None)?;
    match origin::open(settings)? {
        Origin::Several(_, members) if at.is_none() => Ok(Some(members)),
        _ => Ok(None),
    }
}

fn pool(name: &str, repository: Repository, json: bool) -> Result<()> {
    let (repository, bar) = heard(repository);
    let newest = repository.newest()?;
    bar.end();
    let url = repository.place().shown();
    let batch = batch_of(&newest);
    if json {
        show::json(&Pool { name, url, newest: batch });
        return Ok(());
    }
    let what = batch.map_or_else(
        || "nothing was carried yet".to_owned(),
        |one| {
            let (time, bytes) = (show::time(one.time), show::bytes(one.bytes));
            format!("{} files with {bytes}, batch {} of {time}", one.files, one.batch)
        },
    );
    show::line(&format!("#{name}  {what}"));
    Ok(())
}

fn batch_of(tree: &Newest) -> Option<Batch<'_>> {
    let head = tree.head.as_ref()?;
    let sizes = tree.tree.entries().filter_map(|entry| entry.file.as_ref()).map(|file| file.size);
    let (files, bytes) = sizes.fold((0, 0_u64), |(files, bytes), size| (files + 1, bytes.saturating_add(size)));
    let (pool, time) = (head.pool.as_str(), head.time);
    Some(Batch { batch: head.number, time, pool, transaction: head.transaction, files, bytes })
}

fn batch(tree: &Newest, json: bool) {
    let Some(one) = batch_of(tree) else { return };
    match json {
        true => show::json(&one),
        false => {
            let (time, bytes) = (show::time(one.time), show::bytes(one.bytes));
            show::line(&format!("{:>8}  {time}  {} files with {bytes}", one.batch, one.files));
        }
    }
}
