//! What is known of the pool's second copy, for whoever asks whether something is carried.

use super::Store;
use super::carried::SecondCopy;
use super::touched::Touched;

impl Store {
    /// What was touched since the second copy was made.
    pub fn touched(&self) -> &Touched {
        self.carried.touched()
    }

    /// From now on what is touched is kept in mind: somebody makes a second copy, or asks for it.
    pub fn keep_touched(&self) {
        let _unchanging = self.view();
        self.touched().keep(self.pool.newest());
    }

    /// What is noted of the pool's second copy, if it has one. The host's disk is read for it.
    pub fn second_copy(&self) -> Option<SecondCopy> {
        let note = match self.pool.carried() {
            Ok(note) => note?,
            Err(error) => {
                log::debug!("{error}");
                return Some(SecondCopy::unknown());
            }
        };
        self.keep_touched();
        self.carried.told(&self.pool, &note.note)
    }
}
