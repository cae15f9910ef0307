//! The tiers of a pool and its placement map: what is recorded of them in the pool's own chain, and how it is changed.
//!
//! A pool that never had either is as it was before there were any: the first one sets a feature bit, so that a program
//! that knows nothing of them refuses the pool.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::error::{Error, Result};
use crate::ids::{SegmentId, TIER_MAX};
use crate::log::record::Record;
use crate::log::superblock::{INCOMPAT_REMOTE, INCOMPAT_TIERS, random};
use crate::log::tier::PM_NAME;
use crate::log::tier::{PLACEMENT_MAX, PM, REMOTE_NAME, Tier};
use crate::log::transaction::Transaction;
use crate::pool::opened::Pool;
use crate::segment::place::QUARANTINE;
use crate::segment::tier::{self, Whose};
use crate::segment::tiers::{TierInfo, describe};
use crate::tree::object::Object;

impl Pool {
    /// What there is to know about the tiers, the pool's own directory first.
    pub fn tiers(&self) -> Vec<TierInfo> {
        describe(self.dir(), &self.view(), &self.segments)
    }

    /// Adds a tier: a directory, absolute and without links, that is not there yet or empty. Durable when it returns;
    /// used from the next time the pool is opened.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the directory or the name will not do.
    pub fn add_tier(&self, name: &str, directory: &Path) -> Result<()> {
        self.check_writable()?;
        let invalid = |what: String| Error::Invalid { pool: self.path.clone(), what };
        let refused = |why: &str| Err(invalid(format!("{}: {why}", directory.display())));
        if !Tier::is_name(name) {
            let what = "a tier's name has 1 to 32 letters in lower case, digits, - and _".to_owned();
            return Err(invalid(what));
        }
        let pool = self.path.canonicalize().map_err(|error| Error::io(&self.path, "resolve", error))?;
        let nested = |other: &Path| directory.starts_with(other) || other.starts_with(directory);
        if nested(&pool) {
            return refused("it is inside the pool, or the pool inside it");
        }
        let number = {
            let view = self.view();
            if view.tier_named(name).is_some() {
                return Err(invalid(format!("there is a tier {name} already")));
            }
            if let Some((_, other)) = view.tiers().find(|(_, other)| nested(other.path())) {
                return refused(&format!("it is inside tier {}, or that inside it", other.name));
            }
            let free = (1..=TIER_MAX).find(|number| view.tier(*number).is_none());
            free.ok_or_else(|| invalid(format!("a pool has at most {TIER_MAX} tiers beside its own directory")))?
        };
        let nonce = random().map_err(|error| Error::io(&self.path, "read random bytes", error))?;
        let mut tier = Tier {
            name: name.into(),
            directory: directory.as_os_str().as_bytes().into(),
            volatile: false,
            nonce,
            away: None,
            remote: false,
        };
        if !tier.is_sound() {
            return refused("its path is too long, or not absolute");
        }
        self.use_tiers()?;
        let whose = Whose { pool: self.superblock().uuid, boot: self.boot_id };
        if let Err(why) = tier::create(whose, number, &mut tier, self.dir().owner()) {
            return refused(&why);
        }
        self.store_state(Record::Tier { number, tier })
    }

    /// Adds what stands for a remote: files are in it until their bytes have come. `place` is its URL, and `note` what
    /// whoever fetches them has to know. The next number that the pool draws is `first` or a later one. Durable when it
    /// returns.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is one, or if these are too long.
    pub fn add_remote(&self, place: &str, note: &[u8], first: u64) -> Result<u8> {
        self.check_writable()?;
        let invalid = |what: &str| Error::Invalid { pool: self.path.clone(), what: what.into() };
        let number = {
            let view = self.view();
            if view.tier_named(REMOTE_NAME).is_some() {
                return Err(invalid("there is a tier remote already"));
            }
            let free = (1..=TIER_MAX).rev().find(|number| view.tier(*number).is_none());
            free.ok_or_else(|| invalid("it has as many tiers as there can be"))?
        };
        let directory = [place.as_bytes(), b"\n", note].concat().into();
        let (volatile, nonce, away) = (false, [0; 16], None);
        let tier = Tier { name: REMOTE_NAME.into(), directory, volatile, nonce, away, remote: true };
        if !tier.is_sound() || SegmentId::in_tier(number, first).is_none() {
            return Err(invalid("what is to be noted of its remote is too long, or there is no number left"));
        }
        self.need(INCOMPAT_TIERS | INCOMPAT_REMOTE)?;
        self.edit().draw_from(first);
        self.store_state(Record::Tier { number, tier })?;
        Ok(number)
    }

    /// The number of what stands for the pool's own remote among its tiers, which files leave for: that is made if it
    /// is not there, and told where it is if it is elsewhere by now. Durable when it returns.
    ///
    /// # Errors
    /// [`Error::Invalid`] if files are away elsewhere, or what is noted is too long.
    pub fn own_remote(&self, place: &str, note: &[u8]) -> Result<u8> {
        self.check_writable()?;
        let invalid = |what: String| Error::Invalid { pool: self.path.clone(), what };
        let directory: Box<[u8]> = [place.as_bytes(), b"\n", note].concat().into();
        let (number, nonce) = {
            let view = self.view();
            match view.remote() {
                Some((number, tier)) if tier.is_own_remote() && tier.directory == directory => return Ok(number),
                Some((_, tier)) if tier.is_followed() => {
                    let at = tier.path().display();
                    return Err(invalid(format!("it follows {at}, and is no pool of its own")));
                }
                Some((number, tier)) => {
                    let (files, is_there) = (view.tier_totals(number).files, tier.path() == Path::new(place));
                    if files > 0 && !(tier.is_own_remote() && is_there) {
                        let at = tier.path().display();
                        return Err(invalid(format!("{files} of its files are in another remote yet, {at}")));
                    }
                    (number, Some(tier.nonce).filter(|nonce| *nonce != [0; 16]))
                }
                None if view.tier_named(REMOTE_NAME).is_some() => {
                    return Err(invalid(format!("it has a tier {REMOTE_NAME} that is a directory")));
                }
                None => {
                    let free = (1..=TIER_MAX).rev().find(|number| view.tier(*number).is_none());
                    (free.ok_or_else(|| invalid("it has as many tiers as there can be".into()))?, None)
                }
            }
        };
        let drawn = || random().map_err(|error| Error::io(&self.path, "read random bytes", error));
        let mut nonce = nonce.map_or_else(drawn, Ok)?;
        // Zeroes say that it is not its own.
        nonce[0] |= 1;
        let tier = Tier { name: REMOTE_NAME.into(), directory, volatile: false, nonce, away: None, remote: true };
        if !tier.is_sound() {
            return Err(invalid("what is to be noted of its remote is too long".into()));
        }
        self.need(INCOMPAT_TIERS | INCOMPAT_REMOTE)?;
        // Also in a full pool: what leaves makes room.
        self.edit().store_from_reserve(Transaction::new(0).with(Record::Tier { number, tier }))?;
        self.commit(self.newest())?;
        self.segments.stand_for_remote(number);
        Ok(number)
    }

    /// Removes a tier that holds no file, and of which nothing is set aside. What made its directory a tier is removed,
    /// the directory stays.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is no such tier, or if something is in it.
    pub fn remove_tier(&self, name: &str) -> Result<()> {
        self.check_writable()?;
        let invalid = |what: String| Err(Error::Invalid { pool: self.path.clone(), what });
        let number = self.view().tier_named(name);
        let Some(number) = number.filter(|number| *number != PM) else {
            return invalid(match number {
                Some(_) => format!("{PM_NAME} is the pool's own directory"),
                None => format!("there is no tier {name}"),
            });
        };
        self.commit(self.newest())?;
        self.unlink_covered();
        let (files, tier) = {
            let view = self.view();
            let inside = |object: &Object| {
                let segments = [object.attributes.segment, object.pending_replace()];
                segments.into_iter().flatten().any(|id| id.tier() == number)
            };
            (view.objects().filter(|(_, object)| inside(object)).count(), view.tier(number).cloned())
        };
        if files > 0 {
            return invalid(format!("tier {name} holds {files} files; move or delete them first"));
        }
        let Some(tier) = tier else { return invalid(format!("there is no tier {name}")) };
        let there = self.segments.is_there(number);
        if !self.segments.is_empty(number).map_err(|error| Error::io(tier.path(), "read", error))? {
            return invalid(format!("tier {name} is not empty: something is in {}", tier.path().display()));
        }
        if there {
            let (entries, rest) = self
                .quarantine()
                .clear_tier(number)
                .map_err(|error| Error::io(tier.path(), "read the quarantine of", error))?;
            if entries > 0 {
                let what =
                    "versions of files are set aside in it; bring them back or drop them with `tensorfs restore`";
                return invalid(format!("tier {name} is not empty: {entries} {what}"));
            }
            if rest > 0 {
                let place = tier.path().join(QUARANTINE);
                return invalid(format!("tier {name} is not empty: something is in {}", place.display()));
            }
        }
        let gone = Tier { name: "".into(), directory: Box::default(), away: None, remote: false, ..tier.clone() };
        self.store_state(Record::Tier { number, tier: gone })?;
        if there {
            tier::destroy(tier.path(), self.dir().owner())
                .map_err(|error| Error::io(tier.path(), "remove what made it a tier", error))?;
        }
        Ok(())
    }

    /// Replaces the placement map, durably. What it says is for the caller to check.
    pub fn set_placement(&self, text: &str) -> Result<()> {
        self.check_writable()?;
        if text.len() > PLACEMENT_MAX {
            let what = format!("a placement map has at most {} KiB", PLACEMENT_MAX >> 10);
            return Err(Error::Invalid { pool: self.path.clone(), what });
        }
        self.use_tiers()?;
        self.store_state(Record::Placement { text: text.into() })
    }

    fn store_state(&self, record: Record) -> Result<()> {
        self.edit().store(Transaction::new(0).with(record))?;
        self.commit(self.newest())
    }

    /// From now on a program that knows nothing of tiers refuses the pool.
    fn use_tiers(&self) -> Result<()> {
        if self.superblock.of(|superblock| superblock.features.incompat & INCOMPAT_TIERS != 0) {
            return Ok(());
        }
        let written =
            self.superblock.change(&*self.medium, |superblock| superblock.features.incompat |= INCOMPAT_TIERS);
        written.map_err(|error| self.fail("writing the superblock", &error))
    }
}
