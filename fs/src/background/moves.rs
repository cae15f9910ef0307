//! The moves that programs have asked for: how far they have come, and what came of them until that is heard.

use std::collections::HashMap;

use parking_lot::Mutex;
use tensorfs_layout::Ino;

use crate::protocol::Moving;

/// Results that nobody asked for are kept for so many files.
const UNHEARD: usize = 1024;

/// The moves of a mount.
#[derive(Default)]
pub(super) struct Moves(Mutex<HashMap<Ino, Move>>);

enum Move {
    UnderWay { done: u64, total: u64 },
    Ended(Result<(), String>),
}

impl Moves {
    /// What has become of a file's move. `None` if it is to `begin`: it counts as under way then.
    pub fn ask(&self, ino: Ino, begin: bool) -> Option<Moving> {
        let mut moves = self.0.lock();
        match moves.get(&ino) {
            Some(Move::UnderWay { done, total }) => return Some(Moving::Working { done: *done, total: *total }),
            Some(Move::Ended(_)) if !begin => {
                return Some(match moves.remove(&ino) {
                    Some(Move::Ended(Err(why))) => Moving::Refused(why),
                    _ => Moving::Moved,
                });
            }
            _ if !begin => return Some(Moving::Refused("it was not begun, or is over for long".into())),
            _ => {}
        }
        if moves.len() >= UNHEARD {
            moves.retain(|_, one| matches!(one, Move::UnderWay { .. }));
        }
        moves.insert(ino, Move::UnderWay { done: 0, total: 0 });
        None
    }

    /// A move that counts as under way is not to be.
    pub fn forget(&self, ino: Ino) {
        self.0.lock().remove(&ino);
    }

    /// So much of a file is copied.
    pub fn report(&self, ino: Ino, done: u64, total: u64) {
        self.0.lock().insert(ino, Move::UnderWay { done, total });
    }

    /// A file is moved, or it is known why not.
    pub fn end(&self, ino: Ino, ended: Result<(), String>) {
        self.0.lock().insert(ino, Move::Ended(ended));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_of_a_move_is_heard_once() {
        let (moves, ino) = (Moves::default(), Ino(7));
        let unknown = Some(Moving::Refused("it was not begun, or is over for long".into()));
        assert_eq!(moves.ask(ino, false), unknown);
        assert_eq!(moves.ask(ino, true), None);
        moves.report(ino, 3, 4);
        assert_eq!(moves.ask(ino, true), Some(Moving::Working { done: 3, total: 4 }));
        moves.end(ino, Err("why".into()));
        assert_eq!(moves.ask(ino, false), Some(Moving::Refused("why".into())));
        assert_eq!(moves.ask(ino, false), unknown);
    }
}
