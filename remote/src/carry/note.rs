//! What the carrier keeps in the pool's directory: where the remote is, and how far it has come.

use std::path::{Path, PathBuf};

use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};
use tensorfs_layout::pool::{Carried, Carrying, NOTE_MOST, carried};
use tensorfs_layout::tree::View;

use crate::carry::behind::Pace;
use crate::crypt::{Id, Key};
use crate::error::{Error, Result};
use crate::locked_in::Needs;
use crate::place::{Access, Place};
use crate::repository::{Hash, unlocked};

/// What was asked for with `remote set`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Where the remote is.
    pub url: String,
    /// How it is reached.
    #[serde(flatten)]
    pub access: Access,
    /// Globs of what is left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<String>,
    /// The file of the key that the remote is encrypted with, if it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_file: Option<PathBuf>,
    /// Which remote it is, if it is encrypted and that is known: of one key there may be many.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<Id>,
}

impl Settings {
    /// What a carrier needs that is locked in.
    pub fn needs(&self, pool: &Path, view: &View) -> Needs {
        Needs::of(pool, view, (&self.url, self.key_file.as_deref()))
    }

    /// The remote, as it is used.
    pub fn open(&self) -> Result<Place> {
        let key = self.key_file.as_deref().map(Key::read).transpose()?;
        if key.is_none() && self.id.is_some() {
            let what = "--id is that of an encrypted remote; name the file of its key with --key-file";
            return Err(Error::Refused(format!("{}: {what}", self.url)));
        }
        unlocked(Place::open(&self.url, &self.access)?, key.as_ref(), self.id)
    }
}

/// A batch that is being put: it may have got there though nobody heard of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Intended {
    /// Its number.
    pub number: u64,
    /// Its BLAKE3.
    pub hash: Hash,
}

/// What came of mending the pool's files, by itself, with the second copy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Healing {
    /// Files that were mended since the remote was set.
    pub mended: u64,
    /// The last one.
    pub last: Option<Mended>,
    /// Damaged files that could not be mended.
    pub unmended_files: u64,
    /// Some of them.
    pub unmended: Vec<Unmended>,
}

/// A file that was mended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mended {
    /// Its path on the mount.
    pub path: String,
    /// When, in seconds since 1970.
    pub time: i64,
    /// The newest batch of the remote then.
    pub batch: u64,
}

/// A file that could not be mended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unmended {
    /// Its path on the mount.
    pub path: String,
    /// Why.
    pub why: String,
    /// How often that was tried.
    pub tries: u32,
}

/// What came of removing by itself what the retention does not need.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Collection {
    /// When that was, in seconds since 1970.
    pub collected: Option<i64>,
    /// Why it failed last, if it did.
    pub collect_error: Option<String>,
}

/// What the remote has of the pool, and what not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Coverage {
    /// Files of its tree whose parts are not all of them.
    pub incomplete: u64,
    /// Files that were left out, and their bytes.
    pub left_out: (u64, u64),
    /// Where it has come to, for whoever serves the pool; nothing if that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arrived: Option<Arrived>,
}

/// Where a remote has come to: it has all of the pool as it was after a transaction, but for what is told here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arrived {
    /// Which log that is a transaction of, of all that may have the place of the pool's.
    pub log: String,
    /// The transaction.
    pub transaction: u64,
    /// Nothing was left out.
    pub all: bool,
    /// The numbers of the files whose bytes it may have otherwise, or not all of; none if these are too many.
    pub unsettled: Option<Vec<u64>>,
}

/// The note.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// What was asked for.
    pub settings: Settings,
    /// The pool's uuid: the note of a pool that was here before says nothing.
    pub pool: String,
    /// The newest batch that this pool has put, or that it has taken over.
    pub number: u64,
    /// Its BLAKE3.
    pub hash: Option<Hash>,
    /// The batch that it was going to put.
    pub intended: Option<Intended>,
    /// The transaction that the remote's tree is of.
    pub transaction: u64,
    /// When that was carried, in seconds since 1970.
    pub carried: Option<i64>,
    /// What it has, and what not.
    #[serde(flatten)]
    pub coverage: Coverage,
    /// How far behind that is, and how it comes on.
    #[serde(flatten)]
    pub pace: Pace,
    /// Why the last pass failed, if it did.
    pub error: Option<String>,
    /// A batch was not put yet for which much was: the next carrier looks for that.
    #[serde(default)]
    pub unfinished: bool,
    /// What came of removing by itself what the retention does not need.
    #[serde(flatten)]
    pub collection: Collection,
    /// What came of mending.
    #[serde(default)]
    pub healing: Healing,
}

impl Note {
    /// The note of a pool, if it has a remote.
    pub fn of(pool: &Path, uuid: &str) -> Result<Option<Self>> {
        Self::read(pool, carried(pool)?, uuid)
    }

    /// As [`Note::of`], of the pool that this is the carrier of.
    pub fn kept(carrying: &Carrying, uuid: &str) -> Result<Option<Self>> {
        Self::read(carrying.pool(), carrying.note()?, uuid)
    }

    fn read(pool: &Path, carried: Option<Carried>, uuid: &str) -> Result<Option<Self>> {
        let Some(Carried { note, owner, .. }) = carried else { return Ok(None) };
        is_believed(pool, owner)?;
        let note: Self = serde_json::from_slice(&note).map_err(|error| {
            let pool = pool.display();
            Error::Refused(format!("{pool}: its file \"remote\" cannot be read ({error}); set the remote again"))
        })?;
        Ok(Some(note).filter(|note| note.pool == uuid))
    }

    /// Keeps it.
    pub fn keep(&self, carrying: &Carrying) -> Result<()> {
        let written = |note: &Self| serde_json::to_vec(note).map_err(|error| Error::Refused(error.to_string()));
        let mut bytes = written(self)?;
        if bytes.len() as u64 > NOTE_MOST {
            // It is to be read again.
            let coverage = Coverage { arrived: None, ..self.coverage.clone() };
            bytes = written(&Self { coverage, ..self.clone() })?;
        }
        Ok(carrying.write(&bytes)?)
    }
}

/// Where a pool's second copy is, its owner says. Root, who may write everywhere and has keys of its own, does not take
/// another user's word for that.
fn is_believed(pool: &Path, owner: u32) -> Result<()> {
    if !geteuid().is_root() || owner == 0 {
        return Ok(());
    }
    let pool = pool.display();
    Err(Error::Refused(format!(
        "{pool}: it belongs to user {owner}, who says where its second copy is; run this as him"
    )))
}
