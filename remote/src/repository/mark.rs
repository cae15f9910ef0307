//! The file that says what a place is, and how it is encrypted.
//!
//! A remote can be read without it: each batch says of which remote it is, and whether it can be read with a key tells
//! whether that is the right one. So a store that loses or spoils this file keeps nobody from his own; and whoever
//! names a key is never given what is not encrypted with it, whatever the file says.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::crypt::{Cipher, Id, Key};
use crate::error::{Error, Result};
use crate::place::Place;
use crate::repository::batch::{FORMAT, open};
use crate::repository::names::{BASES, LOG, MARK, number_in};

/// How objects are encrypted.
const METHOD: &str = "XChaCha20-Poly1305";
/// So many bases, and so many batches, are looked at for what a mark does not say.
const LOOKED_AT: usize = 3;

/// What is in the file.
#[derive(Debug, Serialize, Deserialize)]
struct Mark {
    /// [`FORMAT`].
    tensorfs_remote: u32,
    /// Nothing if the remote is not encrypted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    encryption: Option<Encryption>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Encryption {
    method: String,
    /// Which remote it is, in base64.
    id: String,
    /// What tells whether a key is the right one, in base64.
    check: String,
}

/// The bytes of the file.
fn text(cipher: Option<&Cipher>) -> Bytes {
    let encryption =
        cipher.map(|cipher| Encryption { method: METHOD.into(), id: cipher.id().text(), check: cipher.check() });
    let mark = Mark { tensorfs_remote: FORMAT, encryption };
    let mut text = serde_json::to_vec(&mark).unwrap_or_default();
    text.push(b'\n');
    text.into()
}

/// What the file of a place says.
enum Says {
    /// There is none.
    Nothing,
    /// Objects are not encrypted.
    Plain,
    /// They are.
    Encrypted(Encryption),
    /// What cannot be read: it is damaged, or of a later version.
    Unknown,
}

fn says(there: Option<&Bytes>) -> Says {
    let Some(bytes) = there else { return Says::Nothing };
    match serde_json::from_slice::<Mark>(bytes) {
        Ok(Mark { tensorfs_remote: FORMAT, encryption: Some(encryption) }) => Says::Encrypted(encryption),
        Ok(Mark { tensorfs_remote: FORMAT, encryption: None }) => Says::Plain,
        _ => Says::Unknown,
    }
}

/// What encrypts, if the file says what fits this key: of which remote is for whoever asks to judge.
fn fitting(says: &Says, key: &Key) -> Option<Cipher> {
    let Says::Encrypted(encryption) = says else { return None };
    let cipher = Id::of(&encryption.id).map(|id| Cipher::new(key, id))?;
    (encryption.check == cipher.check() && encryption.method == METHOD).then_some(cipher)
}

/// Why a key is of no use at a place whose file says this.
fn misfit(says: &Says, key: &Key, known: Option<Id>) -> String {
    if let (Some(cipher), Some(known)) = (fitting(says, key), known) {
        let (is, meant) = (cipher.id().text(), known.text());
        return format!("it is the remote {is}, of the same key, and {meant} is the one that is meant");
    }
    let what = match says {
        Says::Encrypted(encryption) if encryption.method != METHOD => "it is encrypted as a later tensorfs may know",
        Says::Encrypted(_) => "it is encrypted with another key than this one",
        Says::Plain => "it is not encrypted, and stays so; leave the key out, or choose another place",
        Says::Nothing => "there is no remote that is encrypted with this key",
        Says::Unknown => "what is there is not for this version of tensorfs, or not encrypted with this key",
    };
    what.to_owned()
}

fn refused<T>(place: &Place, what: &str) -> Result<T> {
    Err(Error::Refused(format!("{}: {what}", place.shown())))
}

/// The place, whose objects are encrypted with the key from now on; or the place as it is, if no key is named and it is
/// not encrypted. If it is known which remote it is, it is that one. Fails if that does not fit together.
pub fn unlocked(place: Place, key: Option<&Key>, known: Option<Id>) -> Result<Place> {
    let there = place.get_as_put(MARK)?;
    let says = says(there.as_ref());
    let Some(key) = key else { return unlocked_without(place, &says) };
    if let Some(cipher) = fitting(&says, key)
        && known.is_none_or(|known| known == cipher.id())
    {
        return Ok(place.encrypted_with(cipher));
    }
    if let Some(cipher) = found(&place, (key, known), &newest_names(&place)?)? {
        log::warn!("{}/{MARK}: it is gone or damaged, and not needed; `tensorfs remote set` mends it", place.shown());
        return Ok(place.encrypted_with(cipher));
    }
    refused(&place, &misfit(&says, key, known))
}

/// The place, if it says this and can be read without a key.
fn unlocked_without(place: Place, says: &Says) -> Result<Place> {
    match says {
        Says::Encrypted(_) => refused(&place, "it is encrypted; name the file of its key with --key-file"),
        Says::Unknown => {
            let shown = place.shown();
            log::warn!("{shown}/{MARK}: it cannot be read; the remote is taken for one that is not encrypted");
            Ok(place)
        }
        Says::Plain | Says::Nothing => Ok(place),
    }
}

/// What the newest bases and batches are called, a few of each.
fn newest_names(place: &Place) -> Result<Vec<String>> {
    let mut all = Vec::new();
    for directory in [BASES, LOG] {
        let mut names = Vec::new();
        place.list(directory, |found| names.extend(number_in(&found.name).map(|number| (number, found.name))))?;
        names.sort_unstable();
        all.extend(names.into_iter().rev().take(LOOKED_AT).map(|(_, name)| name));
    }
    Ok(all)
}

/// What a key makes of the number that bases and batches have, if it opens one of these.
fn found(place: &Place, (key, known): (&Key, Option<Id>), names: &[String]) -> Result<Option<Cipher>> {
    for name in names {
        let Some(bytes) = place.get_as_put(name)? else { continue };
        let id = Id::in_object(&bytes).filter(|id| known.is_none_or(|known| known == *id));
        let cipher = id.map(|id| Cipher::new(key, id));
        if let Some(cipher) = cipher.filter(|cipher| cipher.open(name, bytes).is_ok()) {
            return Ok(Some(cipher));
        }
    }
    Ok(None)
}

/// What is to be put at a place so that it says that it is a remote.
#[derive(Debug)]
pub struct Marking {
    there: Option<Bytes>,
    /// The remote begins with it.
    is_new: bool,
}

impl Marking {
    /// That of a place, which is to be encrypted with this key if there is one, and to be this remote if it is known.
    /// Nothing is put yet.
    pub fn of(place: Place, key: Option<&Key>, known: Option<Id>) -> Result<(Place, Self)> {
        let there = place.get_as_put(MARK)?;
        let says = says(there.as_ref());
        let Some(key) = key else {
            let place = unlocked_without(place, &says)?;
            if fault(&place, there.as_ref()).is_some() {
                return refused(&place, "what is there is not for this version of tensorfs");
            }
            if there.is_none() && is_unreadable(&place)? {
                let what = "there are batches that cannot be read: they are damaged, or encrypted, and then it takes \
                            --key-file";
                return refused(&place, what);
            }
            return Ok((place, Self { there, is_new: false }));
        };
        let names = newest_names(&place)?;
        if let Some(cipher) = found(&place, (key, known), &names)? {
            return Ok((place.encrypted_with(cipher), Self { there, is_new: false }));
        }
        let fitting = fitting(&says, key);
        let is_known = |cipher: &Cipher| known.map_or(!names.is_empty(), |known| known == cipher.id());
        if let Some(cipher) = fitting.clone().filter(is_known) {
            // What is wrong with the batches, if there are any, says whoever reads them.
            return Ok((place.encrypted_with(cipher), Self { there, is_new: false }));
        }
        if !names.is_empty() && there.is_none() {
            return refused(&place, "there is a remote already, which is not encrypted with this key");
        }
        if !names.is_empty() || fitting.is_none() && there.is_some() {
            return refused(&place, &misfit(&says, key, known));
        }
        // Which remote it is, is not for the store to choose: what it says may be that of another one of this key.
        let id = known.map_or_else(Id::new, Ok)?;
        Ok((place.encrypted_with(Cipher::new(key, id)), Self { there, is_new: true }))
    }

    /// Has the place say so. The file is put twice: a store that takes it both times does not heed conditions, and two
    /// pools could not be told apart there.
    pub fn put(self, place: &Place) -> Result<()> {
        let wanted = text(place.cipher());
        if self.is_new && self.there.is_some() {
            log::warn!("{}/{MARK}: it was of a remote that holds nothing, and is put anew", place.shown());
            place.delete(MARK)?;
        }
        let put = || place.put_new_as_is(MARK, wanted.clone());
        if put()? && put()? {
            let what = "this store does not heed conditions of puts, so that two pools could not be kept apart there";
            return refused(place, what);
        }
        // Somebody else may have been faster.
        let there = place.get_as_put(MARK)?;
        let Some(what) = fault(place, there.as_ref()) else { return Ok(()) };
        if self.is_new {
            let what =
                "another remote than the one that was to be made begins there; choose another place, or try again";
            return refused(place, what);
        }
        if place.cipher().is_none() {
            // It says that it is encrypted by now, or what nobody knows.
            return refused(place, "what is there is not for this version of tensorfs, or encrypted");
        }
        log::warn!("{}/{MARK}: {what}; it is put again", place.shown());
        place.delete(MARK)?;
        place.put_new_as_is(MARK, wanted)?;
        Ok(())
    }
}

/// True if there are bases or batches, and none of the newest ones can be read without a key.
fn is_unreadable(place: &Place) -> Result<bool> {
    let names = newest_names(place)?;
    for name in &names {
        if place.get_as_put(name)?.is_some_and(|bytes| open(&bytes).is_ok()) {
            return Ok(false);
        }
    }
    Ok(!names.is_empty())
}

/// The place, once it says that it is a remote: see [`Marking`].
pub fn marked(place: Place, key: Option<&Key>, known: Option<Id>) -> Result<Place> {
    let (place, marking) = Marking::of(place, key, known)?;
    marking.put(&place)?;
    Ok(place)
}

/// What is wrong with the file that says what a place is, if anything is.
pub fn mark_fault(place: &Place) -> Result<Option<&'static str>> {
    Ok(fault(place, place.get_as_put(MARK)?.as_ref()))
}

fn fault(place: &Place, there: Option<&Bytes>) -> Option<&'static str> {
    match there {
        Some(there) if *there == text(place.cipher()) => None,
        Some(_) => Some("its bytes are not those that were put"),
        // Whoever reads a remote that is not encrypted has never needed it.
        None => place.cipher().map(|_| "it is gone"),
    }
}
