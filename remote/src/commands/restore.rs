//! `restore`: a pool from a remote.

use serde::Serialize;

use crate::carry::Settings;
use crate::commands::cli;
use crate::commands::place::named;
use crate::commands::{show, when};
use crate::crypt::{Cipher, Id};
use crate::error::{Error, Result};
use crate::repository::Repository;
use crate::restore;

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

/// False if some file is not whole.
pub fn run(arguments: &cli::Restore) -> Result<bool> {
    let (settings, at) = named(&arguments.url, &arguments.reach, arguments.at)?;
    let repository = Repository::new(settings.open()?);
    let newest = when::tree(&repository, at)?;
    let bar = show::Bar::new("restored", show::Unit::Bytes);
    let id = repository.place().cipher().map(Cipher::id);
    let later = arguments.later.then_some(Settings { id, ..settings });
    let key_file = |later: Settings| {
        let key_file = later.key_file.as_deref().map(std::path::absolute).transpose();
        let failed = |source| Error::Host { path: "the key's file".into(), what: "resolve", source };
        Ok::<_, Error>(Settings { key_file: key_file.map_err(failed)?, ..later })
    };
    let how = restore::How { later: later.map(key_file).transpose()?, limit: arguments.size };
    let each = |done, total| bar.show(done, total);
    let restored = restore::restore_so(&repository, &newest, (&arguments.pool, &how), &each)?;
    drop(bar);
    let transaction = newest.head.as_ref().map_or(0, |head| head.transaction);
    let pool = newest.head.as_ref().map(|head| head.pool.clone()).unwrap_or_default();
    let restore::Restored { files, bytes, incomplete, away: _ } = restored;
    let told = Told { pool, id, batch: newest.number(), transaction, files, bytes, incomplete };
    let whole = told.incomplete.is_empty();
    if arguments.later {
        // Whoever mounts it says nothing if all is well.
        told.incomplete.iter().for_each(|line| eprintln!("tensorfs remote: {}", show::plain(line)));
        return Ok(whole);
    }
    if arguments.json {
        show::json(&told);
        return Ok(whole);
    }
    told.incomplete.iter().for_each(|line| show::line(line));
    let (batch, files, bytes) = (told.batch, told.files, show::bytes(told.bytes));
    let of = told.id.map_or_else(String::new, |id| format!(", in the remote {}", id.text()));
    let to = arguments.pool.display();
    show::line(&format!("{to}: batch {batch} of pool {}{of}, {files} files with {bytes}", told.pool));
    Ok(whole)
}
