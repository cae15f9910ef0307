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
use crate::repository::batch::FORMAT;
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

/// The place, whose objects are encrypted with the key from now on; or the place as it is, if none is named and it is
/// not encrypted. Fails if that does not fit together.
pub fn unlocked(place: Place, key: Option<&Key>) -> Result<Place> {
    let there = place.get_as_put(MARK)?;
    unlocked_as(place, key, there.as_ref())
}

/// As [`unlocked`], where the place says this.
fn unlocked_as(place: Place, key: Option<&Key>, there: Option<&Bytes>) -> Result<Place> {
    let refused = |what: &str| Err(Error::Refused(format!("{}: {what}", place.shown())));
    let says = says(there);
    let Some(key) = key else {
        return match says {
            Says::Encrypted(_) => refused("it is encrypted; name the file of its key with --key-file"),
            Says::Unknown => {
                log::warn!(
                    "{}/{MARK}: it cannot be read; the remote is taken for one that is not encrypted",
                    place.shown()
                );
                Ok(place)
            }
            Says::Plain | Says::Nothing => Ok(place),
        };
    };
    if let Says::Encrypted(encryption) = &says
        && let Some(cipher) = Id::of(&encryption.id).map(|id| Cipher::new(key, id))
        && encryption.check == cipher.check()
        && encryption.method == METHOD
    {
        return Ok(place.encrypted_with(cipher));
    }
    if let Some(cipher) = found(&place, key)? {
        log::warn!("{}/{MARK}: it is gone or damaged, and not needed; `tensorfs remote set` mends it", place.shown());
        return Ok(place.encrypted_with(cipher));
    }
    refused(match says {
        Says::Encrypted(encryption) if encryption.method != METHOD => "it is encrypted as a later tensorfs may know",
        Says::Encrypted(_) => "it is encrypted with another key than this one",
        Says::Plain => "it is not encrypted, and stays so; leave the key out, or choose another place",
        Says::Nothing => "there is no remote that is encrypted with this key",
        Says::Unknown => "what is there is not for this version of tensorfs, or not encrypted with this key",
    })
}

/// What a key makes of the number that bases and batches have, if it opens one of them.
fn found(place: &Place, key: &Key) -> Result<Option<Cipher>> {
    for directory in [BASES, LOG] {
        let mut names = Vec::new();
        place.list(directory, |found| names.extend(number_in(&found.name).map(|number| (number, found.name))))?;
        names.sort_unstable();
        for (_, name) in names.into_iter().rev().take(LOOKED_AT) {
            let Some(bytes) = place.get_as_put(&name)? else { continue };
            let cipher = Id::in_object(&bytes).map(|id| Cipher::new(key, id));
            if let Some(cipher) = cipher.filter(|cipher| cipher.open(&name, bytes).is_ok()) {
                return Ok(Some(cipher));
            }
        }
    }
    Ok(None)
}

/// Says at a place that it is a remote, encrypted with this key if there is one, unless it says so already. The file is
/// put twice: a store that takes it both times does not heed conditions, and two pools could not be told apart there.
pub fn marked(place: Place, key: Option<&Key>) -> Result<Place> {
    let (place, wanted) = match key {
        None => (place, text(None)),
        Some(key) => match place.get_as_put(MARK)? {
            None => {
                let cipher = match found(&place, key)? {
                    Some(cipher) => cipher,
                    None => Cipher::new(key, Id::new()?),
                };
                (place, text(Some(&cipher)))
            }
            there => {
                let place = unlocked_as(place, Some(key), there.as_ref())?;
                let wanted = text(place.cipher());
                (place, wanted)
            }
        },
    };
    let put = || place.put_new_as_is(MARK, wanted.clone());
    if put()? && put()? {
        let what = "this store does not heed conditions of puts, so that two pools could not be kept apart there";
        return Err(Error::Refused(format!("{}: {what}", place.shown())));
    }
    // Somebody else may have been faster.
    let there = place.get_as_put(MARK)?;
    let place = unlocked_as(place, key, there.as_ref())?;
    let Some(what) = fault(&place, there.as_ref()) else { return Ok(place) };
    if place.cipher().is_none() {
        let what = "what is there is not for this version of tensorfs";
        return Err(Error::Refused(format!("{}: {what}", place.shown())));
    }
    log::warn!("{}/{MARK}: {what}; it is put again", place.shown());
    place.delete(MARK)?;
    place.put_new_as_is(MARK, text(place.cipher()))?;
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
