//! The tiers of a pool and its placement map: what is recorded of them in the pool's own chain, and how it is changed.
//!
//! A pool that never had either is as it was before there were any: the first one sets a feature bit, so that a program that
//! knows nothing of them refuses the pool.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::sys::statvfs::statvfs;

use crate::error::{Error, Result};
use crate::ids::{Ino, SegmentId, TIER_MAX};
use crate::object::Object;
use crate::owner::Owner;
use crate::pool::Pool;
use crate::record::{Attributes, Record, Transaction};
use crate::seal::SealedRun;
use crate::segments::Segments;
use crate::superblock::{INCOMPAT_TIERS, Superblock, random};
use crate::tier::{self, Gone, PLACEMENT_MAX, PM, PM_NAME, Tier, TierInfo, TierState, Whose};
use crate::view::View;

/// That a pool is not going to be mounted over one of its tiers, or in one.
pub(crate) fn check_mountpoint(pool: &Path, view: &View, mountpoint: &Path) -> Result<()> {
    let within = |tier: &Tier| mountpoint.starts_with(tier.path()) || tier.path().starts_with(mountpoint);
    match view.tiers().find(|(_, tier)| within(tier)) {
        Some((_, tier)) => {
            let (name, path) = (&tier.name, tier.path().display());
            let what = format!("its tier {name} is in {path}, which the mount point would hide or be in");
            Err(Error::Invalid { pool: pool.into(), what })
        }
        None => Ok(()),
    }
}

/// What there is to know about all tiers, the pool's own directory first.
pub(crate) fn describe(pool: &Path, view: &View, segments: &Segments) -> Vec<TierInfo> {
    let own = |number| match number {
        PM => (PM_NAME.to_owned(), pool.to_owned(), false),
        _ => view
            .tier(number)
            .map_or_else(Default::default, |tier| (tier.name.to_string(), tier.path().into(), tier.volatile)),
    };
    let numbers: Vec<u8> = std::iter::once(PM).chain(view.tiers().map(|(number, _)| number)).collect();
    let mut counts = vec![(0, 0, 0); usize::from(TIER_MAX) + 1];
    if let [PM] = numbers[..] {
        counts[0] = (view.totals().files, 0, view.totals().allocated);
    } else {
        for (_, object) in view.objects().filter(|(_, object)| object.is_file() && object.names() > 0) {
            let segment = object.attributes.segment;
            let Some(count) = counts.get_mut(usize::from(segment.map_or(PM, |id| id.tier()))) else { continue };
            count.0 += 1;
            count.1 += u64::from(segment.is_some_and(|id| matches!(segments.gone(id), Some(Gone::Lost { .. }))));
            count.2 += object.allocated();
        }
    }
    let info = |number: u8| {
        let (name, directory, volatile) = own(number);
        let (state, reason) = match segments.away(number) {
            None => (TierState::Ready, None),
            Some(Gone::Lost { .. }) => (TierState::Lost, None),
            Some(Gone::Missing { reason, .. }) => (TierState::Missing, Some(reason.clone())),
        };
        let host = statvfs(&directory).ok().filter(|_| state == TierState::Ready);
        let (total, free) = host.map_or((0, 0), |host| {
            let unit = host.fragment_size();
            (host.blocks() * unit, host.blocks_available() * unit)
        });
        let (files, lost, used) = counts[usize::from(number)];
        let directory = directory.to_string_lossy().into_owned();
        let (passthrough, passthrough_reason) = (None, None);
        TierInfo {
            name,
            directory,
            volatile,
            state,
            reason,
            files,
            lost,
            used,
            total,
            free,
            passthrough,
            passthrough_reason,
        }
    };
    numbers.into_iter().map(info).collect()
}

impl Pool {
    /// What there is to know about the tiers, the pool's own directory first.
    pub fn tiers(&self) -> Vec<TierInfo> {
        describe(&self.path, &self.view(), &self.segments)
    }

    /// Adds a tier: a directory, absolute and without links, that is not there yet or empty. Durable when it returns; used from
    /// the next time the pool is opened.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the directory or the name will not do.
    pub fn add_tier(&self, name: &str, directory: &Path) -> Result<()> {
        self.check_writable()?;
        let invalid = |what: String| Error::Invalid { pool: self.path.clone(), what };
        let refused = |why: &str| Err(invalid(format!("{}: {why}", directory.display())));
        if !tier::is_name(name) {
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
        };
        if !tier.is_sound() {
            return refused("its path is too long, or not absolute");
        }
        self.use_tiers()?;
        let owner = Owner::of(&pool).map_err(|error| Error::io(&self.path, "stat", error))?;
        let whose = Whose { pool: self.superblock().uuid, boot: self.boot_id };
        if let Err(why) = tier::create(whose, number, &mut tier, owner) {
            return refused(&why);
        }
        self.store_state(Record::Tier { number, tier })
    }

    /// Removes a tier that holds no file. What made its directory a tier is removed, the directory stays.
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
        let gone = Tier { name: "".into(), directory: Box::default(), away: None, ..tier.clone() };
        self.store_state(Record::Tier { number, tier: gone })?;
        if there {
            tier::destroy(tier.path()).map_err(|error| Error::io(tier.path(), "remove what made it a tier", error))?;
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

    /// Announces that a segment is going to be a copy of a file's own, durably: should the machine go down before it has become
    /// that, it is removed, and not set aside as bytes that nobody knows.
    pub fn announce_copy(&self, ino: Ino, copy: SegmentId) -> Result<()> {
        self.edit().store(Transaction::new(0).with(Record::Thaw { ino, segment: copy, offset: 0, len: 0 }))?;
        self.commit(self.newest())
    }

    /// Makes a whole copy of a file's segment the file's own, in one transaction, with the file's seals; the caller sees to it that
    /// nothing can write the file meanwhile. The copy is durable before that, and the segment that it is a copy of is removed
    /// once that is durable too. False if the file is not as it was any more: then nothing has changed.
    pub fn switch_to_copy(&self, ino: Ino, from: SegmentId, copy: SegmentId, size: u64) -> Result<bool> {
        self.segments.sync_copy(copy).map_err(|error| Error::io(self.segments.path_of(copy), "sync", error))?;
        let stat = self.segments.stat(copy).map_err(|error| Error::io(self.segments.path_of(copy), "stat", error))?;
        let runs: Vec<SealedRun> = {
            let mut edit = self.edit();
            let as_it_was = |object: &&Object| {
                object.names() > 0
                    && object.attributes.segment == Some(from)
                    && object.pending_replace().is_none()
                    && !object.is_cut_unconfirmed()
                    && object.size() == size
                    && stat.size == size
            };
            let Some(object) = edit.object(ino).filter(as_it_was) else { return Ok(false) };
            let sealed = object.chain().filter(|chain| chain.is_sealed());
            let runs = sealed
                .map_or(&[][..], |chain| chain.runs())
                .iter()
                .filter_map(|run| Some(SealedRun { offset: run.offset, len: run.len, seal: run.seal.clone()? }));
            let runs = runs.collect();
            let attributes = Attributes { segment: Some(copy), ..object.attributes.clone() };
            let data = Record::Data { ino, segment: copy, offset: 0, len: size, allocated: stat.allocated };
            edit.store(Transaction::new(0).with(Record::Attributes { ino, attributes }).with(data))?;
            runs
        };
        // The switch has been made, whatever becomes of the seals.
        if !runs.is_empty()
            && let Err(error) = self.seal(ino, copy, stat.allocated, runs)
        {
            log::warn!("{}: inode {ino}: its seals are not there any more: {error}", self.path.display());
        }
        Ok(true)
    }

    fn store_state(&self, record: Record) -> Result<()> {
        self.edit().store(Transaction::new(0).with(record))?;
        self.commit(self.newest())
    }

    /// From now on a program that knows nothing of tiers refuses the pool.
    fn use_tiers(&self) -> Result<()> {
        let mut superblock = self.superblock.lock();
        if superblock.features.incompat & INCOMPAT_TIERS != 0 {
            return Ok(());
        }
        let mut features = superblock.features;
        features.incompat |= INCOMPAT_TIERS;
        let mut marked = Superblock { features, ..superblock.clone() };
        marked.write(&*self.medium).map_err(|error| self.fail("writing the superblock", &error))?;
        *superblock = marked;
        Ok(())
    }
}
