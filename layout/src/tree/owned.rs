//! What objects take in memory, by their owner.

use std::collections::BTreeMap;

/// Sums over objects.
#[derive(Debug, Default)]
pub(crate) struct Owned {
    by_owner: BTreeMap<u32, u64>,
    /// Those of all owners but root.
    of_users: u64,
}

impl Owned {
    /// That of one owner.
    pub fn of(&self, uid: u32) -> u64 {
        self.by_owner.get(&uid).copied().unwrap_or(0)
    }

    /// That of all owners but root.
    pub fn of_users(&self) -> u64 {
        self.of_users
    }

    /// An object was `before`, its owner and what it takes, and is now `after`.
    pub fn change(&mut self, before: Option<(u32, u64)>, after: Option<(u32, u64)>) {
        if before == after {
            return;
        }
        // More first: what is in use does not go and come back.
        if let Some((uid, taken)) = after {
            *self.by_owner.entry(uid).or_default() += taken;
            self.of_users += if uid == 0 { 0 } else { taken };
        }
        if let Some((uid, taken)) = before
            && let Some(all) = self.by_owner.get_mut(&uid)
        {
            *all -= taken;
            if *all == 0 {
                self.by_owner.remove(&uid);
            }
            self.of_users -= if uid == 0 { 0 } else { taken };
        }
    }
}
