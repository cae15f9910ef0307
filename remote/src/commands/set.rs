//! `set`, `key` and `off`: whether a pool has a remote, and where, and what it is encrypted with.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use tensorfs_layout::check::Committed;
use tensorfs_layout::pool::{Carrying, Turn, lock_of};

use crate::carry::left_out;
use crate::carry::{Coverage, Note, Settings};
use crate::commands::cli::{self, Pool, Set};
use crate::commands::show;
use crate::crypt::{Cipher, Key};
use crate::error::{Error, Result};
use crate::place::{Access, Place};
use crate::repository::{BASES, Hash, LOG, MARK, Marking, Newest, OBJECTS, Repository, object_name};

/// So many places below the one that is set are looked at.
const LOOKED_INTO: usize = 256;
/// An object that is put to see whether a store takes one.
const TRIED: &[u8] = b"An object of a tensorfs remote was put here to see whether that can be done.\n";

pub fn set(arguments: Set) -> Result<()> {
    let (url, take_over) = (arguments.url.clone(), arguments.take_over);
    let carrying = take(&arguments.pool)?;
    let committed = Committed::read(&arguments.pool)?;
    let uuid = committed.superblock().uuid_text();
    check_away(&arguments.pool, &committed, Some((&arguments.url, arguments.take_over)))?;
    drop(committed);
    let access = Access {
        bandwidth: arguments.bandwidth.map(|mib| mib.saturating_mul(1 << 20)),
        sse: arguments.sse,
        sse_kms_key: arguments.sse_kms_key,
        storage_class: arguments.storage_class,
        ..arguments.reach.access()
    };
    left_out::compiled(&arguments.exclude)?;
    let before = Note::kept(&carrying, &uuid)?;
    let key_before = before.as_ref().and_then(|note| note.settings.key_file.as_ref());
    if let Some(file) = key_before.filter(|_| arguments.reach.key_file.is_none()) {
        // Nobody is to lose it by not saying it again.
        return Err(Error::Refused(format!(
            "{}: it is encrypted; name the file of its key with --key-file ({}), or say `tensorfs remote off` before",
            arguments.pool.display(),
            file.display()
        )));
    }
    let before = before.filter(|note| note.settings.url == arguments.url);
    let id = arguments.reach.id.or(before.as_ref().and_then(|before| before.settings.id));
    let (key, key_file) = arguments.reach.key_file.as_deref().map(key_in).transpose()?.unzip();
    let settings = Settings { url: arguments.url, access, exclude: arguments.exclude, key_file, id };
    let place = Place::make(&settings.url, &settings.access)?;
    if arguments.reach.id.is_some() {
        // Whoever says which remote it is, makes none.
        settings.open()?;
    }
    if before.is_none() {
        check_below(&place)?;
    }
    let (place, marking) = Marking::of(place, key.as_ref(), id)?;
    let settings = Settings { id: place.cipher().map(Cipher::id), ..settings };
    let repository = Repository::new(place);
    let newest = repository.newest()?;
    let is_taken = arguments.take_over || before.is_none();
    let is_what_was_put = before.as_ref().is_none_or(|before| is_last(before, &newest));
    let dropped = before.as_ref().map(|before| dropped(&before.settings, &settings)).unwrap_or_default();
    let note = match (before, &newest.head) {
        // Something else may be left out from now on.
        (Some(before), _) => {
            let coverage = Coverage { arrived: None, ..before.coverage.clone() };
            Note { settings, coverage, ..before }
        }
        (None, Some(head)) if !arguments.take_over && head.pool != uuid => {
            return Err(Error::Refused(format!(
                "{}: there is a copy of pool {} already; choose another place, or --take-over if that pool is gone",
                settings.url, head.pool
            )));
        }
        (None, _) => Note { settings, pool: uuid, ..Note::default() },
    };
    let shown = arguments.pool.display();
    if !is_what_was_put && is_any_away(&Committed::read(&arguments.pool)?) {
        let what = "files of this pool are there and not here, and what is there is not what it has put last";
        return Err(Error::Refused(format!("{shown}: {url}: {what}; name the place with all that it was set with")));
    }
    // Up to here, nothing was put.
    marking.put(repository.place())?;
    if note.settings.access.sse.is_some() || note.settings.access.storage_class.is_some() {
        try_object(repository.place())?;
    }
    if !dropped.is_empty() {
        let dropped = dropped.join(", ");
        eprintln!("{}", show::plain(&format!("no more, as it was not said again: {dropped}")));
    }
    // What was carried before another pool had the place is not what is there.
    let ours = newest.head.as_ref().filter(|head| head.pool == note.pool);
    let (transaction, carried) = (ours.map_or(0, |head| head.transaction), ours.map(|head| head.time));
    let (number, hash) = (newest.number(), newest.hash);
    let taken = Note { number, hash, intended: None, transaction, carried, ..note.clone() };
    let kept = if is_taken { &taken } else { &note };
    let own_time = own_time(&arguments.pool, &carrying)?;
    // Some may have left meanwhile.
    check_away(&arguments.pool, &Committed::read(&arguments.pool)?, Some((&url, take_over)))?;
    kept.keep(&carrying)?;
    drop(own_time);
    if let Some(id) = note.settings.id {
        show::line(&format!("{}: encrypted, as the remote {}", note.settings.url, id.text()));
    }
    Ok(())
}

/// Whoever mounts from a place sees what is in it, and the remotes below it only if it is none itself.
fn check_below(place: &Place) -> Result<()> {
    let names = place.names_below()?;
    let others = names.iter().filter(|name| ![BASES, LOG, OBJECTS].contains(&name.as_str()));
    // A place with more has been looked into far enough. What cannot be looked into may be anything.
    let is_remote =
        |name: &&String| place.below(name).and_then(|below| below.get_as_put(MARK)).is_ok_and(|mark| mark.is_some());
    let Some(name) = others.take(LOOKED_INTO).find(is_remote) else { return Ok(()) };
    if Repository::is_there(place)? {
        return Ok(());
    }
    let url = place.shown().trim_end_matches('/');
    let what = format!("there is a remote at {url}/{name}; choose a place beside it, such as {url}/NAME");
    Err(Error::Refused(format!("{url}: {what}")))
}

/// The key in a file, and the path that it has from wherever it is looked for.
fn key_in(path: &Path) -> Result<(Key, PathBuf)> {
    let key = Key::read(path)?;
    let host = |source| Error::Host { path: path.display().to_string(), what: "find", source };
    let path = std::path::absolute(path).map_err(host)?;
    match path.to_str() {
        Some(_) => Ok((key, path)),
        None => Err(Error::Refused(format!("{}: the pool's settings take names in UTF-8 only", path.display()))),
    }
}

pub fn key(arguments: &cli::Key) -> Result<()> {
    Key::make(&arguments.file)?;
    let file = arguments.file.display();
    show::line(&format!(
        "{file}: a key; keep a copy elsewhere, as nobody can read what is encrypted with it without it"
    ));
    Ok(())
}

pub fn off(arguments: &Pool) -> Result<()> {
    if lock_of(&arguments.pool).is_none() {
        let (pool, reason) = (arguments.pool.clone(), "it has no file \"lock\"".into());
        return Err(tensorfs_layout::Error::NotAPool { pool, reason }.into());
    }
    let carrying = take(&arguments.pool)?;
    // What cannot be read now may have files there as well as any.
    if carrying.note()?.is_some() {
        let _own_time = own_time(&arguments.pool, &carrying)?;
        check_away(&arguments.pool, &Committed::read(&arguments.pool)?, None)?;
        return Ok(carrying.forget()?);
    }
    Ok(carrying.forget()?)
}

/// A time in which no file leaves for the remote that is there now.
fn own_time<'a>(pool: &Path, carrying: &'a Carrying) -> Result<Turn<'a>> {
    let busy = || Error::Refused(format!("{}: files leave it for its remote; end that first", pool.display()));
    carrying.own_time()?.ok_or_else(busy)
}

/// True of the batch that a pool has put last, as far as anybody heard.
fn is_last(before: &Note, newest: &Newest) -> bool {
    let found = (newest.number(), newest.hash);
    let intended = before.intended.as_ref().map(|intended| (intended.number, Some(intended.hash)));
    found == (before.number, before.hash) || intended == Some(found)
}

/// True if files of a pool are in its own remote and not here.
fn is_any_away(committed: &Committed) -> bool {
    let own = committed.view().remote().filter(|(_, tier)| tier.is_own_remote());
    own.is_some_and(|(number, _)| committed.view().tier_totals(number).files > 0)
}

/// Where files of a pool are, and nowhere else, it goes on carrying: so they are in the newest tree there.
fn check_away(pool: &Path, committed: &Committed, set: Option<(&str, bool)>) -> Result<()> {
    let Some((number, tier)) = committed.view().remote() else { return Ok(()) };
    let (files, place) = (committed.view().tier_totals(number).files, tier.path());
    let is_there = set.is_some_and(|(url, _)| Path::new(url) == place);
    let is_kept = match tier.is_own_remote() {
        true => is_there && set.is_some_and(|(_, take_over)| !take_over),
        // What the pool was made from has another pool's tree, which it would take the place of.
        false => !is_there,
    };
    if files == 0 || is_kept {
        return Ok(());
    }
    let (pool, place) = (pool.display(), place.display());
    let how = match tier.is_own_remote() {
        true => "bring them back before, with `tensorfs tier move PATH pm`",
        false => "wait until they have come",
    };
    Err(Error::Refused(format!("{pool}: {files} of its files are in {place} and not here; {how}")))
}

fn take(pool: &Path) -> Result<Carrying> {
    let busy = || Error::Refused(format!("{}: its carrier is at work; end that first", pool.display()));
    Carrying::take(pool)?.ok_or_else(busy)
}

/// What was asked for before, and is not now: all that is to be said is said each time.
fn dropped(before: &Settings, now: &Settings) -> Vec<String> {
    let mut dropped: Vec<String> = Vec::new();
    let gone = before.exclude.iter().filter(|glob| !now.exclude.contains(glob));
    dropped.extend(gone.map(|glob| format!("--exclude {glob:?}")));
    let (was, is) = (&before.access, &now.access);
    let limits = [was.bandwidth, is.bandwidth].map(|limit| limit.map(|limit| (limit >> 20).to_string()));
    let [had, have] = limits;
    for (name, had, have) in [
        ("--bandwidth", &had, &have),
        ("--sse", &was.sse, &is.sse),
        ("--sse-kms-key", &was.sse_kms_key, &is.sse_kms_key),
        ("--storage-class", &was.storage_class, &is.storage_class),
        ("--endpoint", &was.endpoint, &is.endpoint),
        ("--region", &was.region, &is.region),
    ] {
        dropped.extend(had.as_ref().filter(|_| have.is_none()).map(|had| format!("{name} {had}")));
    }
    dropped
}

/// An object is put as it is asked for, and read back: a store that does not know how would refuse the first one of a
/// carrier. Nothing names it, so that it goes with garbage.
fn try_object(place: &Place) -> Result<()> {
    let bytes = Bytes::from_static(TRIED);
    let name = object_name(Hash::named(place.names(), &bytes));
    let mut puts = place.puts();
    puts.put(name.clone(), bytes.clone())?;
    puts.finish()?;
    match place.get(&name)? {
        Some(there) if there == bytes => Ok(()),
        _ => Err(Error::Refused(format!("{}: what was put there is not there", place.shown()))),
    }
}
