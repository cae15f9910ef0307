//! What is made of a key for one remote, and the bytes of an object.
//!
//! XChaCha20-Poly1305: nonces of 24 bytes are long enough to be drawn at random for each object, however many there
//! are. What an object is called is associated data: under another name its bytes are none. And every remote has keys
//! of its own, so that what was put into one is nothing in another.

use std::fmt;
use std::sync::Arc;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use chacha20poly1305::aead::AeadInOut;
use chacha20poly1305::{KeyInit, Tag, XChaCha20Poly1305, XNonce};
use serde::{Deserialize, Serialize};

use crate::crypt::key::Key;
use crate::crypt::random;
use crate::error::{Error, Result};

/// What the three keys of a remote are for. Each is part of the format.
const NAMES: &str = "tensorfs 2026-11-26 remote: the names of objects";
const BYTES: &str = "tensorfs 2026-11-26 remote: the bytes of objects";
const CHECK: &str = "tensorfs 2026-11-26 remote: whether a key is the right one";

/// Bytes of a remote's number, of a nonce, and of what proves that bytes are those that were put.
const ID: usize = 16;
const NONCE: usize = 24;
const TAG: usize = 16;
/// So many bytes an object has more than what is in it.
pub const OVERHEAD: u64 = (ID + NONCE + TAG) as u64;

/// Which remote it is: a number that no other one has. It is no secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Id([u8; ID]);

impl From<Id> for String {
    fn from(id: Id) -> Self {
        id.text()
    }
}

impl TryFrom<String> for Id {
    type Error = &'static str;

    fn try_from(text: String) -> std::result::Result<Self, &'static str> {
        Self::of(&text).ok_or("no ID of a remote: that is 16 bytes in base64")
    }
}

impl Id {
    /// That of a new remote.
    pub fn new() -> Result<Self> {
        random().map(Self)
    }

    /// The one that an object says that it is of.
    pub fn in_object(bytes: &[u8]) -> Option<Self> {
        bytes.first_chunk().copied().map(Self)
    }

    /// As text.
    pub fn text(&self) -> String {
        BASE64_STANDARD.encode(self.0)
    }

    /// That of a text.
    pub fn of(text: &str) -> Option<Self> {
        BASE64_STANDARD.decode(text).ok()?.try_into().ok().map(Self)
    }
}

/// What encrypts the objects of one remote.
#[derive(Clone)]
pub struct Cipher(Arc<Keys>);

struct Keys {
    id: Id,
    names: [u8; 32],
    bytes: XChaCha20Poly1305,
    check: [u8; 32],
}

impl fmt::Debug for Cipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cipher({})", self.0.id.text())
    }
}

impl Cipher {
    /// That of a remote.
    pub fn new(key: &Key, id: Id) -> Self {
        let [names, bytes, check] = [NAMES, BYTES, CHECK].map(|purpose| key.derived(purpose, &id.0));
        Self(Arc::new(Keys { id, names, bytes: XChaCha20Poly1305::new(&bytes.into()), check }))
    }

    /// Which remote it is of.
    pub fn id(&self) -> Id {
        self.0.id
    }

    /// The key of the BLAKE3 that objects and parts are named after.
    pub fn names(&self) -> &[u8; 32] {
        &self.0.names
    }

    /// What tells whether a key is the one of the remote, as text. Nothing else can be made of it.
    pub fn check(&self) -> String {
        BASE64_STANDARD.encode(self.0.check)
    }

    /// The bytes of an object that holds these and is called so, in pieces.
    pub fn seal(&self, name: &str, bytes: Bytes) -> Result<[Bytes; 3]> {
        let nonce: [u8; NONCE] = random()?;
        let mut bytes = Vec::from(bytes);
        let sealed =
            self.0.bytes.encrypt_inout_detached(&XNonce::from(nonce), name.as_bytes(), bytes.as_mut_slice().into());
        let tag = sealed.map_err(|_| Error::Refused(format!("{name}: too long to be encrypted")))?;
        let front = [&self.0.id.0[..], &nonce].concat();
        Ok([front.into(), bytes.into(), Bytes::copy_from_slice(&tag)])
    }

    /// What an object holds that is called so. An error says why that cannot be had.
    pub fn open(&self, name: &str, bytes: Bytes) -> std::result::Result<Bytes, &'static str> {
        let Some(len) = bytes.len().checked_sub(ID + NONCE + TAG) else { return Err("it is cut short") };
        if Id::in_object(&bytes) != Some(self.0.id) {
            return Err("it is of another remote, or its bytes are not those that were put");
        }
        let mut bytes = Vec::from(bytes);
        let (front, rest) = bytes.split_at_mut(ID + NONCE);
        let (held, tag) = rest.split_at_mut(len);
        let parts = front.last_chunk::<NONCE>().zip(tag.first_chunk::<TAG>());
        let opened = parts.map(|(nonce, tag)| {
            let (nonce, tag) = (XNonce::from(*nonce), Tag::from(*tag));
            self.0.bytes.decrypt_inout_detached(&nonce, name.as_bytes(), held.into(), &tag)
        });
        match opened {
            Some(Ok(())) => Ok(Bytes::from(bytes).slice(ID + NONCE..ID + NONCE + len)),
            _ => Err("its bytes are not those that were put under this name"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cipher(key: u8, id: u8) -> Cipher {
        Cipher::new(&Key::with(key), Id([id; ID]))
    }

    fn sealed(cipher: &Cipher, name: &str, bytes: &[u8]) -> Vec<u8> {
        cipher.seal(name, Bytes::copy_from_slice(bytes)).unwrap().concat()
    }

    /// Proves E19.
    #[test]
    fn an_object_is_what_was_put_under_its_name_in_its_remote_or_nothing() {
        let own = cipher(1, 2);
        for held in [&b""[..], b"x", b"some bytes of a file", &[7; 1000]] {
            let whole = sealed(&own, "log/000000000007", held);
            assert_eq!(whole.len() as u64, held.len() as u64 + OVERHEAD);
            let open = |cipher: &Cipher, name: &str, bytes: &[u8]| cipher.open(name, Bytes::copy_from_slice(bytes));
            assert_eq!(open(&own, "log/000000000007", &whole).unwrap(), held);
            for (other, name) in [
                (&own, "log/000000000008"),
                (&own, "base/000000000007"),
                (&own, ""),
                (&cipher(2, 2), "log/000000000007"),
                (&cipher(1, 3), "log/000000000007"),
            ] {
                open(other, name, &whole).unwrap_err();
            }
            for bit in 0..whole.len() * 8 {
                let mut flipped = whole.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                assert!(open(&own, "log/000000000007", &flipped).is_err(), "bit {bit}");
            }
            for len in 0..whole.len() {
                assert!(open(&own, "log/000000000007", &whole[..len]).is_err(), "{len} bytes");
            }
            open(&own, "log/000000000007", &[&whole[..], b"x"].concat()).unwrap_err();
            // The number of another remote in front does not make it one of it.
            let moved = [&[3; ID][..], &whole[ID..]].concat();
            open(&cipher(1, 3), "log/000000000007", &moved).unwrap_err();
        }
    }

    /// As docs/REMOTE.md has it, made by libsodium and another BLAKE3.
    #[test]
    fn an_object_of_another_program_is_read() {
        let own = cipher(1, 2);
        let hash = "32b3cbe92fa705e9809a32eec728ea63ded78143135960cc1db5d00cca3daa68";
        let stored = "\
            02020202020202020202020202020202030303030303030303030303030303030303030303030303\
            fcb028331a1622d8f9ac208db52cb027a1d5eb11ebf357c2e103f99111f6de4d06c77e0f";
        let stored: Vec<u8> =
            (0..stored.len()).step_by(2).map(|at| u8::from_str_radix(&stored[at..at + 2], 16).unwrap()).collect();
        let held = own.open(&format!("objects/32/{hash}"), stored.into()).unwrap();
        assert_eq!(held, &b"some bytes of a file"[..]);
        assert_eq!(blake3::keyed_hash(own.names(), &held).to_string(), hash);
        assert_eq!(own.check(), "kh9oIbttqmnJYcI4KZQKcFS322JnzkFoCluS6iWdpVg=");
    }

    #[test]
    fn the_same_bytes_are_other_ones_each_time_they_are_put() {
        let own = cipher(1, 2);
        let [one, other] = [(); 2].map(|()| sealed(&own, "x", &[0; 64]));
        assert!(one[..ID] == other[..ID] && one[ID..] != other[ID..]);
        assert!(one[ID + NONCE..].windows(8).all(|eight| eight != [0; 8]));
    }
}
