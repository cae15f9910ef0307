//! For which tiers the kernel moves the bytes, and which tiers are not there.

use std::collections::BTreeMap;
use std::fs::File;

use log::Level;
use tensorfs_layout::Ino;
use tensorfs_layout::log::PM;
use tensorfs_layout::segment::{Gone, TierInfo, TierState};
use tensorfs_layout::tree::View;

use crate::error::{Fault, Result};

use super::Store;

impl Store {
    /// Finds out for which tiers the kernel can move the bytes. `probe` tries it with a file.
    pub fn probe_tiers(&self, probe: impl Fn(&File) -> std::result::Result<(), String>) {
        let mut refused = BTreeMap::new();
        for (tier, _) in self.pool.segments().directories().filter(|(tier, _)| *tier != PM) {
            let Some(file) = self.pool.segments().host_file(tier) else { continue };
            if let Err(reason) = probe(file) {
                let name = self.pool.view().tier_name(tier);
                log::info!("tier {name}: bytes go through the server: {reason}");
                refused.insert(tier, reason);
            }
        }
        self.tiers.refuse(refused);
    }

    /// True if the kernel moves the bytes of files in a tier.
    pub fn has_passthrough_in(&self, tier: u8) -> bool {
        self.link.has_passthrough() && self.tiers.refused(tier).is_none()
    }

    /// True if a segment of the tier that was looked at has another change time after its next change, however soon.
    pub fn tells_each_change(&self, tier: u8) -> bool {
        self.tiers.tells_each_change(tier)
    }

    /// What there is to know about the tiers.
    pub fn describe_tiers(&self) -> Vec<TierInfo> {
        let mut tiers = self.pool.tiers();
        let view = self.pool.view();
        let general = self.link.no_passthrough();
        for tier in &mut tiers {
            let number = view.tier_named(&tier.name).unwrap_or(PM);
            let reason = general.or(self.tiers.refused(number));
            if tier.state == TierState::Away {
                continue;
            }
            tier.passthrough = Some(reason.is_none() && self.link.has_passthrough());
            tier.passthrough_reason = reason.map(str::to_owned);
        }
        tiers
    }

    /// Why the bytes of a file cannot be had, if that is so.
    pub fn gone(&self, ino: Ino) -> Option<Gone> {
        let segment = self.pool.view().object(ino)?.attributes.segment?;
        self.pool.segments().gone(segment)
    }

    /// Files that were lost with their tier, are so yet, and that somebody has wanted.
    pub fn wanted(&self, view: &View) -> Vec<Ino> {
        let segment = |ino| view.object(ino)?.attributes.segment;
        let gone = |ino| self.pool.segments().gone(segment(ino)?);
        self.damage.wanted(|ino| matches!(gone(ino), Some(Gone::Lost { .. })))
    }

    /// `EIO` for a file whose bytes cannot be had.
    pub fn check_gone(&self, ino: Ino) -> Result<()> {
        match self.gone(ino) {
            // Whoever has waited for it looks its name up again.
            Some(Gone::Away { .. }) if self.view().object(ino).is_none_or(|object| object.names() == 0) => {
                Err(Fault::stale())
            }
            Some(gone) => {
                if matches!(gone, Gone::Lost { .. }) {
                    self.damage.want(ino);
                }
                Err(Fault { level: Level::Info, ..Fault::warn(libc::EIO, format!("inode {ino}: {gone}")) })
            }
            None => Ok(()),
        }
    }
}
