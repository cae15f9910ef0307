//! What a pool is made from: a repository, or several that are the places of a job's pools below one URL. And what it
//! notes of that, by which the bytes of its files are found later.

use serde::{Deserialize, Serialize};

use crate::carry::Settings;
use crate::crypt::{Cipher, Id, Key};
use crate::error::{Error, Result};
use crate::place::Place;
use crate::repository::{Hash, Newest, Repository, unlocked};

/// So many trees are noted that were here before.
const BEFORE: usize = 24;
/// So many places below one URL are looked into.
const MOST: usize = 4096;
/// Digits of a batch's BLAKE3 that are noted where there are several: each note has a bound.
const DIGITS: usize = 32;

/// What a pool notes of the remote that its files come from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct From {
    /// Where it is, and how it is reached.
    pub settings: Settings,
    /// The batch whose tree the pool was made from.
    pub number: u64,
    /// Its BLAKE3.
    pub hash: Option<Hash>,
}

/// What a pool notes of several.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FromSeveral {
    /// The place above all of them, and how they are reached.
    pub settings: Settings,
    /// Each of them.
    pub pools: Vec<OfPool>,
}

/// One of several: the name of its place, the batch whose tree is meant, the beginning of that batch's BLAKE3, behind
/// which number its objects are in the pool's, and which remote it is if it is encrypted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfPool(pub String, pub u64, pub String, pub u64, pub Option<Id>);

/// What a pool notes that goes on to newer trees. It begins as [`tensorfs_layout::log::Tier::is_followed`] says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Followed {
    /// Which tree is here.
    pub follows: Follows,
    /// Where it is, and how it is reached.
    pub settings: Settings,
}

/// The batch whose tree is here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Follows {
    /// Its number.
    pub number: u64,
    /// Its BLAKE3.
    pub hash: Option<Hash>,
    /// When it was made, in seconds since 1970.
    pub time: i64,
    /// The pool that it is of: another one has other objects under the same numbers.
    pub pool: String,
    /// A later one, of which some is here already: what is not comes next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partly: Option<(u64, Option<Hash>)>,
    /// The numbers of those whose trees were here before, the newest one first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub before: Vec<u64>,
}

impl Follows {
    /// The tree of a batch, which comes behind another one.
    pub fn of(newest: &Newest, before: Option<&Self>) -> Self {
        let (time, pool) = newest.head.as_ref().map(|head| (head.time, head.pool.clone())).unwrap_or_default();
        let earlier = before.map(|before| std::iter::once(before.number).chain(before.before.iter().copied()));
        let before = earlier.map(|earlier| earlier.take(BEFORE).collect()).unwrap_or_default();
        Self { number: newest.number(), hash: newest.hash, time, pool, partly: None, before }
    }
}

/// What a pool notes. A program that knows nothing of several finds no number in it, and fails.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Noted {
    /// Of one.
    One(From),
    /// Of several.
    Several(FromSeveral),
    /// Of one whose newer trees come.
    Followed(Followed),
}

impl Noted {
    /// How many repositories these are.
    pub fn count(&self) -> usize {
        match self {
            Self::One(_) | Self::Followed(_) => 1,
            Self::Several(several) => several.pools.len(),
        }
    }

    /// Which repository an object is of, by its number in the pool's note, and its number there.
    pub fn find(&self, number: u64) -> Option<(usize, u64)> {
        let Self::Several(several) = self else { return Some((0, number)) };
        let found = several.pools.iter().rposition(|pool| pool.3 < number)?;
        Some((found, number - several.pools[found].3))
    }

    /// Opens one of them, with the tree that the pool was made from.
    pub fn open(&self, which: usize) -> Result<(Repository, Newest)> {
        let (place, number, hash) = match self {
            Self::One(from) => (from.settings.open()?, from.number, from.hash.map(|hash| hash.to_string())),
            Self::Followed(Followed { follows, settings }) => {
                (settings.open()?, follows.number, follows.hash.map(|hash| hash.to_string()))
            }
            Self::Several(several) => {
                let none = || Error::Refused(format!("{}: no such pool is noted", several.settings.url));
                let OfPool(name, number, hash, _, id) = several.pools.get(which).ok_or_else(none)?;
                let above = Place::open(&several.settings.url, &several.settings.access)?;
                let place = unlocked(above.below(name)?, key_of(&several.settings)?.as_ref(), *id)?;
                (place, *number, Some(hash.clone()))
            }
        };
        let repository = Repository::new(place);
        let newest = repository.tree_at(Some(number))?;
        let is_it = match (&hash, newest.hash) {
            (Some(hash), Some(found)) => hash.len() >= DIGITS && found.to_string().starts_with(hash),
            (hash, found) => hash.is_none() && found.is_none(),
        };
        if newest.head.as_ref().map(|head| head.number) != Some(number) || !is_it {
            let what = format!("batch {number} is not the one that the pool was made from");
            return Err(Error::damaged(repository.place().shown(), what));
        }
        Ok((repository, newest))
    }
}

impl OfPool {
    /// One of several, whose objects are behind this number.
    pub fn new(name: &str, repository: &Repository, newest: &Newest, first: u64) -> Self {
        let id = repository.place().cipher().map(Cipher::id);
        Self(name.to_owned(), newest.number(), newest.hash.map(start).unwrap_or_default(), first, id)
    }
}

fn start(hash: Hash) -> String {
    let mut text = hash.to_string();
    text.truncate(DIGITS);
    text
}

fn key_of(settings: &Settings) -> Result<Option<Key>> {
    settings.key_file.as_deref().map(Key::read).transpose()
}

/// What is at a URL.
#[derive(Debug)]
pub enum Origin {
    /// A repository, or a place where one can be; and its own settings.
    One(Settings, Repository),
    /// Several in the places below, by their names.
    Several(Settings, Vec<(String, Repository)>),
}

/// Opens what is at a URL: a repository, else those directly below it.
pub fn open(settings: Settings) -> Result<Origin> {
    let above = Place::open(&settings.url, &settings.access)?;
    let names = if Repository::is_there(&above)? { Vec::new() } else { above.names_below()? };
    if names.len() > MOST {
        let what = format!("there are {} places below it, and no more than {MOST} are looked into", names.len());
        return Err(Error::Refused(format!("{}: {what}", settings.url)));
    }
    let mut places = Vec::new();
    for name in names {
        let place = above.below(&name)?;
        if Repository::is_there(&place)? {
            places.push((name, place));
        }
    }
    if places.len() < 2 {
        let url = places.first().map_or_else(|| settings.url.clone(), |(_, place)| place.shown().to_owned());
        let settings = Settings { url, ..settings };
        let repository = Repository::new(settings.open()?);
        return Ok(Origin::One(settings, repository));
    }
    if settings.id.is_some() {
        return Err(several(&settings.url, places.iter().map(|(name, _)| name), "--id is of one remote"));
    }
    let key = key_of(&settings)?;
    let (mut members, mut wrong) = (Vec::new(), Vec::new());
    for (name, place) in places {
        match unlocked(place, key.as_ref(), None) {
            Ok(place) => members.push((name, Repository::new(place))),
            Err(Error::Refused(why)) => wrong.push((name, why)),
            Err(error) => return Err(error),
        }
    }
    if wrong.is_empty() {
        return Ok(Origin::Several(settings, members));
    }
    let why: Vec<&str> = wrong.iter().map(|(_, why)| why.as_str()).collect();
    let others = match &members[..] {
        [] => String::new(),
        others => {
            let names: Vec<&str> = others.iter().map(|(name, _)| name.as_str()).collect();
            let how = if key.is_some() { "that key fits" } else { "no key is needed for" };
            format!("; {how} {}, and one pool alone is named with {}#POOL", names.join(", "), settings.url)
        }
    };
    Err(Error::Refused(format!("{}{others}", why.join("; "))))
}

/// That one of several has to be named.
pub fn several<'a>(url: &str, names: impl Iterator<Item = &'a String>, what: &str) -> Error {
    let names: Vec<&str> = names.map(String::as_str).collect();
    Error::Refused(format!("{url}: {what}, and several pools are below it: {}; name one with #POOL", names.join(", ")))
}
