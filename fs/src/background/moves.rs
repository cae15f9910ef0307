//! The moves that programs have asked for: how far they have come, and what came of them until that is heard.

use std::collections::HashMap;

use parking_lot::Mutex;
use tensorfs_layout::Ino;

use crate::error::Fault;
use crate::protocol::Moving;

/// Results that nobody asked for are kept for so many files.
const UNHEARD: usize = 1024;

/// The moves of a mount.
#[derive(Default)]
pub(super) struct Moves(Mutex<HashMap<(Ino, Gift), Move>>);

/// For what a file is given its bytes anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Gift {
    /// To have them in another tier.
    Tier,
    /// To have those that it was sealed with.
    Mend,
}

enum Move {
    UnderWay { done: u64, total: u64 },
    Ended(Result<(), String>),
}

impl Moves {
    /// What has become of a file's move. `None` if it is to `begin`: it counts as under way then. `ESRCH` if nothing
    /// is known of it: a server that was replaced has begun it, or somebody else has heard what came of it.
    pub fn ask(&self, ino: Ino, gift: Gift, begin: bool) -> Result<Option<Moving>, Fault> {
        let mut moves = self.0.lock();
        match moves.get(&(ino, gift)) {
            Some(Move::UnderWay { done, total }) => return Ok(Some(Moving::Working { done: *done, total: *total })),
            Some(Move::Ended(_)) if !begin => {
                return Ok(Some(match moves.remove(&(ino, gift)) {
                    Some(Move::Ended(Err(why))) => Moving::Refused(why),
                    _ => Moving::Moved,
                }));
            }
            _ if !begin => return Err(Fault::new(libc::ESRCH)),
            _ => {}
        }
        if moves.len() >= UNHEARD {
            moves.retain(|_, one| matches!(one, Move::UnderWay { .. }));
        }
        moves.insert((ino, gift), Move::UnderWay { done: 0, total: 0 });
        Ok(None)
    }

    /// A move that counts as under way is not to be.
    pub fn forget(&self, of: (Ino, Gift)) {
        self.0.lock().remove(&of);
    }

    /// So much of a file is copied.
    pub fn report(&self, of: (Ino, Gift), done: u64, total: u64) {
        self.0.lock().insert(of, Move::UnderWay { done, total });
    }

    /// A file is moved, or it is known why not.
    pub fn end(&self, of: (Ino, Gift), ended: Result<(), String>) {
        self.0.lock().insert(of, Move::Ended(ended));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_of_a_move_is_heard_once() {
        let (moves, ino) = (Moves::default(), Ino(7));
        let ask = |gift, begin| moves.ask(ino, gift, begin).map_err(|fault| fault.errno);
        assert_eq!(ask(Gift::Tier, false), Err(libc::ESRCH));
        assert_eq!(ask(Gift::Tier, true), Ok(None));
        // A mend of it is something else.
        assert_eq!(ask(Gift::Mend, false), Err(libc::ESRCH));
        moves.report((ino, Gift::Tier), 3, 4);
        assert_eq!(ask(Gift::Tier, true), Ok(Some(Moving::Working { done: 3, total: 4 })));
        moves.end((ino, Gift::Tier), Err("why".into()));
        assert_eq!(ask(Gift::Tier, false), Ok(Some(Moving::Refused("why".into()))));
        assert_eq!(ask(Gift::Tier, false), Err(libc::ESRCH));
    }
}
