//! What there is to know about the tiers of a pool.

use std::io;

use nix::sys::stat::fstat;
use serde::{Deserialize, Serialize};

use crate::log::tier::{PM, PM_NAME};
use crate::medium::dir::Dir;
use crate::segment::gone::Gone;
use crate::segment::segments::Segments;
use crate::tree::view::View;

/// Whether a tier can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TierState {
    /// It is there.
    Ready,
    /// Its directory is not there, or is not the one that it was.
    Missing,
    /// It was volatile, and the machine was started anew: it will be empty at the next mount.
    Lost,
    /// It stands for files whose bytes are in a remote yet.
    Away,
}

/// What there is to know about a tier.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierInfo {
    /// Its name.
    pub name: String,
    /// Its directory.
    pub directory: String,
    /// Nothing in it survives the end of the machine's boot.
    pub volatile: bool,
    /// Whether it can be used.
    pub state: TierState,
    /// Why it is missing.
    pub reason: Option<String>,
    /// Regular files whose bytes are in it.
    pub files: u64,
    /// Those of them whose bytes are lost, because it was volatile.
    pub lost: u64,
    /// Bytes that are allocated to them.
    pub used: u64,
    /// Their sizes together.
    #[serde(default)]
    pub bytes: u64,
    /// Bytes of the filesystem that the directory is on.
    pub total: u64,
    /// Those of them that are free.
    pub free: u64,
    /// Whether the kernel reads, writes and maps its files itself; nothing if the pool is not mounted.
    #[serde(default)]
    pub passthrough: Option<bool>,
    /// If not, why.
    #[serde(default)]
    pub passthrough_reason: Option<String>,
}

/// What the filesystems have that the tiers of a pool are on, each of them once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostSpace {
    /// All of it, in bytes.
    pub total: u64,
    /// What may still be written.
    pub available: u64,
}

impl HostSpace {
    /// That of the tiers that are there. One whose filesystem does not say adds nothing.
    pub(crate) fn of(segments: &Segments) -> Self {
        let (mut sum, mut devices) = (Self::default(), Vec::new());
        for (tier, directory) in segments.directories() {
            let device = fstat(directory).map(|found| found.st_dev).ok();
            if devices.contains(&device) {
                continue;
            }
            devices.push(device);
            let Some(Ok(host)) = segments.host_space(tier) else { continue };
            sum.total += host.blocks() * host.fragment_size();
            sum.available += host.blocks_available() * host.fragment_size();
        }
        sum
    }
}

/// What there is to know about all tiers, the pool's own directory first.
pub(crate) fn describe(pool: &Dir, view: &View, segments: &Segments) -> Vec<TierInfo> {
    let own = |number| match number {
        PM => (PM_NAME.to_owned(), pool.path().to_owned(), false),
        _ => view
            .tier(number)
            .map_or_else(Default::default, |tier| (tier.name.to_string(), tier.path().into(), tier.volatile)),
    };
    let numbers: Vec<u8> = std::iter::once(PM).chain(view.tiers().map(|(number, _)| number)).collect();
    let info = |number: u8| {
        let (name, directory, volatile) = own(number);
        let (state, reason) = match segments.away(number) {
            None => (TierState::Ready, None),
            Some(Gone::Lost { .. }) => (TierState::Lost, None),
            Some(Gone::Missing { reason, .. }) => (TierState::Missing, Some(reason.clone())),
            Some(Gone::Away { .. }) => (TierState::Away, None),
            Some(why @ Gone::Left { .. }) => (TierState::Missing, Some(why.to_string())),
        };
        let host = segments.host_space(number).and_then(io::Result::ok);
        let (total, free) = host.map_or((0, 0), |host| {
            let unit = host.fragment_size();
            (host.blocks() * unit, host.blocks_available() * unit)
        });
        let totals = view.tier_totals(number);
        let (files, used, bytes) = (totals.files, totals.allocated, totals.bytes);
        // A file that was removed a moment ago is not among the files any more.
        let lost = match state {
            TierState::Ready => segments.lost(number).min(files),
            TierState::Lost => files,
            TierState::Missing | TierState::Away => 0,
        };
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
            bytes,
            total,
            free,
            passthrough,
            passthrough_reason,
        }
    };
    numbers.into_iter().map(info).collect()
}
