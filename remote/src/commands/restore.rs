//! `restore`: a pool from a remote, or from several of which each has a place below one URL.

use serde::Serialize;

use crate::carry::Settings;
use crate::commands::cli;
use crate::commands::place::named;
use crate::commands::{show, when};
use crate::crypt::{Cipher, Id};
use crate::error::{Error, Result};
use crate::origin::{self, Followed, Follows, From, FromSeveral, Noted, OfPool, Origin};
use crate::repository::{Hash, Newest, Repository};
use crate::restore::{self, How, Restored, Source};
use crate::union::{self, Member};

/// So many lines are printed of what is not the same in several.
const LINES: usize = 20;
/// The layout of a pool that is made of several which have not the same.
const LAYOUT: &str = "tensorfs";

#[derive(Serialize)]
struct Told {
    /// The pool that was carried.
    pool: String,
    /// Which remote it was, if that is encrypted.
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<Id>,
    batch: u64,
    transaction: u64,
    files: u64,
    bytes: u64,
    incomplete: Vec<String>,
}

/// Of several.
#[derive(Serialize)]
struct ToldOfAll {
    pools: Vec<OfOne>,
    files: u64,
    bytes: u64,
    incomplete: Vec<String>,
    /// Names that several pools have, and not with the same bytes.
    differing: Vec<String>,
}

/// One of several.
#[derive(Serialize)]
struct OfOne {
    name: String,
    #[serde(flatten)]
    told: Batch,
}

/// A batch.
#[derive(Serialize)]
struct Batch {
    pool: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<Id>,
    batch: u64,
    transaction: u64,
}

impl Batch {
    fn of(repository: &Repository, newest: &Newest) -> Self {
        let transaction = newest.head.as_ref().map_or(0, |head| head.transaction);
        let pool = newest.head.as_ref().map(|head| head.pool.clone()).unwrap_or_default();
        let id = repository.place().cipher().map(Cipher::id);
        Self { pool, id, batch: newest.number(), transaction }
    }
}

/// False if some file is not whole.
pub fn run(arguments: &cli::Restore) -> Result<bool> {
    let (settings, at) = named(&arguments.url, &arguments.reach, arguments.at)?;
    match origin::open(settings)? {
        Origin::One(settings, repository) => one(arguments, settings, &repository, at),
        Origin::Several(settings, members) => several(arguments, settings, members, at),
    }
}

/// One repository.
fn one(arguments: &cli::Restore, settings: Settings, repository: &Repository, at: Option<when::At>) -> Result<bool> {
    let mut newest = when::tree(repository, at)?;
    if arguments.follow {
        newest.tree.forget_tails();
    }
    let source = Source::one(repository, &newest)?;
    let Batch { pool, id, batch, transaction } = Batch::of(repository, &newest);
    let noted = |settings: Settings| {
        let (url, settings) = (settings.url.clone(), Settings { id, ..settings });
        let noted = match arguments.follow {
            true => Noted::Followed(Followed { follows: Follows::of(&newest, None), settings }),
            false => Noted::One(From { settings, number: batch, hash: newest.hash }),
        };
        (url, noted)
    };
    let Restored { files, bytes, incomplete, away: _ } = make(arguments, &source, || Ok(noted(absolute(settings)?)))?;
    let told = Told { pool, id, batch, transaction, files, bytes, incomplete };
    let whole = told.incomplete.is_empty();
    if arguments.later {
        // Whoever mounts it says nothing if all is well.
        told.incomplete.iter().for_each(|line| complain(line));
        return Ok(whole);
    }
    if arguments.json {
        show::json(&told);
        return Ok(whole);
    }
    told.incomplete.iter().for_each(|line| show::line(line));
    let (files, bytes) = (told.files, show::bytes(told.bytes));
    let of = told.id.map_or_else(String::new, |id| format!(", in the remote {}", id.text()));
    let to = arguments.pool.display();
    show::line(&format!("{to}: batch {batch} of pool {}{of}, {files} files with {bytes}", told.pool));
    Ok(whole)
}

/// Several, as one tree.
fn several(
    arguments: &cli::Restore,
    settings: Settings,
    repositories: Vec<(String, Repository)>,
    at: Option<when::At>,
) -> Result<bool> {
    let url = settings.url.clone();
    if arguments.follow {
        let names = repositories.iter().map(|(name, _)| name);
        return Err(origin::several(&url, names, "one pool alone can be followed"));
    }
    let mut members = members(&url, repositories, at)?;
    let newest = members.iter().filter_map(|member| member.newest.head.as_ref()).map(|head| head.time).max();
    let mut layouts = members.iter().filter_map(|member| member.newest.head.as_ref()).map(|head| &head.layout);
    let first = layouts.next().cloned().unwrap_or_else(|| LAYOUT.into());
    let layout = if layouts.all(|layout| *layout == first) { first } else { LAYOUT.into() };
    let union = union::merged(&mut members)?;
    let of = members.iter().zip(&union.firsts);
    let pools: Vec<OfPool> =
        of.map(|(member, first)| OfPool::new(&member.name, &member.repository, &member.newest, *first)).collect();
    let identity = serde_json::to_vec(&pools).map_err(|error| Error::Refused(error.to_string()))?;
    let source = Source {
        tree: &union.tree,
        shown: &url,
        layout,
        batch: (0, Some(Hash::of(&identity))),
        at: show::rfc3339(newest.unwrap_or(0)),
        repositories: union.firsts.iter().copied().zip(members.iter().map(|member| &member.repository)).collect(),
    };
    let differ = match union.differing.len() {
        0 => String::new(),
        1 => ", 1 name with different bytes".into(),
        more => format!(", {more} names with different bytes"),
    };
    let shown = format!("{url}: {} pools{differ}", members.len());
    let noted = || Ok((shown.clone(), Noted::Several(FromSeveral { settings: absolute(settings)?, pools })));
    let Restored { files, bytes, incomplete, away: _ } = make(arguments, &source, noted)?;
    let whole = incomplete.is_empty();
    let of = members.iter();
    let pools =
        of.map(|member| OfOne { name: member.name.clone(), told: Batch::of(&member.repository, &member.newest) });
    let told = ToldOfAll { pools: pools.collect(), files, bytes, incomplete, differing: union.differing };
    if arguments.json && !arguments.later {
        show::json(&told);
        return Ok(whole);
    }
    let say = if arguments.later { complain } else { |line: &str| show::line(line) };
    told.incomplete.iter().chain(told.differing.iter().take(LINES)).for_each(|line| say(line));
    if told.differing.len() > LINES {
        say(&format!("and {} more names are not the same in several pools", told.differing.len() - LINES));
    }
    if !arguments.later {
        let (files, bytes, to) = (told.files, show::bytes(told.bytes), arguments.pool.display());
        let pools: Vec<String> =
            told.pools.iter().map(|of| format!("batch {} of {}", of.told.batch, of.name)).collect();
        show::line(&format!("{to}: {}, {files} files with {bytes}", pools.join(", ")));
    }
    Ok(whole)
}

/// Those that have a tree of that time.
fn members(url: &str, repositories: Vec<(String, Repository)>, at: Option<when::At>) -> Result<Vec<Member>> {
    if let Some(when::At::Batch(_)) = at {
        let names = repositories.iter().map(|(name, _)| name);
        return Err(origin::several(url, names, "a batch's number is one pool's, which a time is not"));
    }
    let (mut members, mut without, mut why) = (Vec::new(), Vec::new(), None);
    for (name, repository) in repositories {
        match when::tree(&repository, at) {
            Ok(newest) if newest.head.is_none() => {
                why.get_or_insert(format!("{url}: none of its pools holds anything"));
                without.push(format!("{url}: nothing was carried from {name} yet, and nothing of it is there"));
            }
            Ok(newest) => members.push(Member { name, repository, newest }),
            Err(Error::Refused(what)) if at.is_some() => {
                without.push(format!("{what}; nothing of {name} is there"));
                why = Some(what);
            }
            Err(error) => return Err(error),
        }
    }
    match why {
        Some(why) if members.is_empty() => Err(Error::Refused(why)),
        _ => {
            without.iter().for_each(|line| complain(line));
            Ok(members)
        }
    }
}

/// Makes the pool; `noted` is asked where its files come from later, if they do.
fn make(
    arguments: &cli::Restore,
    source: &Source<'_>,
    noted: impl FnOnce() -> Result<(String, Noted)>,
) -> Result<Restored> {
    let bar = match arguments.later {
        true => show::Bar::new("tree", show::Unit::BytesOfTree),
        false => show::Bar::new("restored", show::Unit::Bytes),
    };
    let later = if arguments.later { Some(noted()?) } else { None };
    let how = How { later, limit: arguments.size };
    restore::restore_so(source, (&arguments.pool, &how), &|done, total| bar.show(done, total))
}

/// With the path that the key's file has from wherever it is looked for.
fn absolute(settings: Settings) -> Result<Settings> {
    let key_file = settings.key_file.as_deref().map(std::path::absolute).transpose();
    let failed = |source| Error::Host { path: "the key's file".into(), what: "resolve", source };
    Ok(Settings { key_file: key_file.map_err(failed)?, ..settings })
}

fn complain(line: &str) {
    eprintln!("tensorfs remote: {}", show::plain(line));
}
