//! How a pool is to be left by whoever has it open.

use crate::log::superblock::PoolState;

/// How a pool is to be left.
#[derive(Debug)]
pub(super) struct Ending {
    /// At least so: what asks for a recovery is not unsaid.
    pub state: PoolState,
    /// It was left so: there is nothing more to do.
    pub over: bool,
    /// It could not be, and that is noted elsewhere.
    pub noted: bool,
}

impl Default for Ending {
    fn default() -> Self {
        Self { state: PoolState::Clean, over: false, noted: false }
    }
}

impl Ending {
    /// At least so from now on.
    pub fn at_least(&mut self, state: PoolState) {
        self.state = match (self.state, state) {
            (PoolState::Clean, state) | (state, PoolState::Clean) => state,
            (PoolState::Outlived, PoolState::Outlived) => PoolState::Outlived,
            _ => PoolState::Left,
        };
    }
}
