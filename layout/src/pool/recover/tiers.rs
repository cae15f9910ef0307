//! From what each tier of a pool is to be recovered: one that was away was not there when the others were.

use std::collections::{HashMap, HashSet};

use crate::error::Result;
use crate::ids::SegmentId;
use crate::log::record::Record;
use crate::log::shutdown::Shutdown;
use crate::log::tier::Tier;
use crate::log::transaction::Transaction;
use crate::pool::opened::Pool;
use crate::pool::recover::store::store;

/// So many of the records that say what a power loss left are one transaction: of 65,536 segments.
const TOGETHER: usize = 512;

/// From what each tier is to be recovered.
pub(super) struct Tiers {
    kind: Shutdown,
    /// Those that were away before and are here now.
    pub(super) back: HashMap<u8, Shutdown>,
    /// Those that are away now, and what that is to be recorded as.
    away: HashMap<u8, Shutdown>,
    /// What has to be recorded of them.
    changed: Vec<Record>,
    /// Segments that an earlier recovery left as a power loss had left them.
    left: HashSet<SegmentId>,
}

impl Tiers {
    pub(super) fn of(pool: &Pool, kind: Shutdown) -> Self {
        let left = pool.view().left_by_power_loss();
        let mut tiers = Self { kind, back: HashMap::new(), away: HashMap::new(), changed: Vec::new(), left };
        for (number, tier) in pool.view().tiers() {
            if tier.remote {
                // There is nothing in it to be recovered, ever.
                tiers.away.insert(number, kind);
                continue;
            }
            let worst = tier.away.map_or(kind, |before| worse(before, kind));
            let away = if pool.segments.is_there(number) {
                if tier.away.is_some() {
                    tiers.back.insert(number, worst);
                }
                None
            } else {
                tiers.away.insert(number, worst);
                Some(worst)
            };
            if away != tier.away {
                let tier = Tier { away, ..tier.clone() };
                tiers.changed.push(Record::Tier { number, tier });
            }
        }
        tiers
    }

    /// From what a segment is to be recovered: nothing if its tier is away, or was in order all the time.
    pub(super) fn kind(&self, segment: SegmentId) -> Option<Shutdown> {
        let tier = segment.tier();
        match self.back.get(&tier) {
            _ if self.left.contains(&segment) && !self.away.contains_key(&tier) => Some(Shutdown::PowerLoss),
            Some(kind) => Some(*kind),
            None => Some(self.kind).filter(|kind| *kind != Shutdown::Clean && !self.away.contains_key(&tier)),
        }
    }

    /// Records which tiers are away: what happens to their files meanwhile, they have to be brought to agree with. And
    /// which segments are still to be judged as after a power loss.
    pub(super) fn note(&self, pool: &Pool) -> Result<()> {
        let away = |segment: &SegmentId| self.away.contains_key(&segment.tier());
        let mut left: HashSet<SegmentId> = self.left.iter().copied().filter(away).collect();
        left.extend(pool.segments.left().into_iter().filter(|left| self.kind(*left) == Some(Shutdown::PowerLoss)));
        let left = pool.view().leave_to_power_loss(&left);
        let changed = self.changed.iter().cloned();
        changed.into_iter().try_for_each(|record| store(pool, Transaction::new(0).with(record)))?;
        // All at once: a number that moves from one to another is never in none.
        left.chunks(TOGETHER).try_for_each(|records| {
            let all = records.iter().cloned();
            store(pool, all.fold(Transaction::new(0), Transaction::with))
        })
    }
}

fn worse(one: Shutdown, other: Shutdown) -> Shutdown {
    match (one, other) {
        (Shutdown::PowerLoss, _) | (_, Shutdown::PowerLoss) => Shutdown::PowerLoss,
        (Shutdown::ServerKilled, _) | (_, Shutdown::ServerKilled) => Shutdown::ServerKilled,
        _ => Shutdown::Clean,
    }
}
