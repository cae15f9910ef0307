//! `restore`: a pool from a remote.

use serde::Serialize;

use crate::commands::cli;
use crate::commands::place::repository;
use crate::commands::show;
use crate::crypt::{Cipher, Id};
use crate::error::Result;
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
    let repository = repository(&arguments.url, &arguments.reach)?;
    let newest = repository.tree_at(arguments.at)?;
    let bar = show::Bar::new("restored", show::Unit::Bytes);
    let restored = restore::restore(&repository, &newest, &arguments.pool, &|done, total| bar.show(done, total))?;
    drop(bar);
    let transaction = newest.head.as_ref().map_or(0, |head| head.transaction);
    let pool = newest.head.as_ref().map(|head| head.pool.clone()).unwrap_or_default();
    let id = repository.place().cipher().map(Cipher::id);
    let restore::Restored { files, bytes, incomplete } = restored;
    let told = Told { pool, id, batch: newest.number(), transaction, files, bytes, incomplete };
    let whole = told.incomplete.is_empty();
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
