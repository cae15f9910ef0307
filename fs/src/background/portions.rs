//! Which bytes of a file that is on its way are to be fetched next: those that somebody waits for, and then the rest.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::store::{Bytes, Pieces, Ranges};

/// So much of the rest is fetched at a time.
const REST: u64 = 128 << 20;
/// Of a portion of which nothing has come for so long, what is missing may be asked for once more.
const SILENCE: Duration = Duration::from_secs(30);
/// The rest is not tried again for so long after some of it did not come.
const LATER: Duration = Duration::from_secs(10);

/// The portions of a file.
pub(super) struct Portions {
    pieces: Arc<Pieces>,
    /// Those that somebody fetches.
    fetched: Vec<Portion>,
    /// Bytes that the remote has not, and which are tried only for who waits for them.
    bad: Ranges,
    /// Where somebody has read last.
    at: u64,
    /// When the rest is tried.
    rest_from: Instant,
    /// When something was wanted, or came.
    used: Instant,
    /// Why some of it did not come when that was tried last.
    why: Option<String>,
}

/// A portion that somebody fetches.
struct Portion {
    /// What was asked for, which it is known by.
    asked: Bytes,
    /// What comes.
    takes: Bytes,
    /// Nobody waits for it.
    is_rest: bool,
    heard: Instant,
}

impl Portions {
    /// Nothing has come yet.
    pub fn new(pieces: Arc<Pieces>) -> Self {
        let now = Instant::now();
        Self { pieces, fetched: Vec::new(), bad: Ranges::default(), at: 0, rest_from: now, used: now, why: None }
    }

    /// What has come.
    pub fn pieces(&self) -> &Arc<Pieces> {
        &self.pieces
    }

    /// What is missing of bytes that somebody waits for, and that nobody fetches: as a portion that somebody does fetch
    /// from now on.
    pub fn wanted(&mut self, (start, end): Bytes) -> Option<Bytes> {
        self.used = Instant::now();
        let end = end.min(self.pieces.size());
        self.at = end;
        let portion = self.here_and_fetched().gap((start, end))?;
        self.fetch(portion, false)
    }

    /// The next portion of what is missing, where somebody waits for all of it: as one that somebody fetches from now
    /// on. What the remote had not is tried again.
    pub fn all(&mut self) -> Option<Bytes> {
        self.used = Instant::now();
        let size = self.pieces.size();
        let (start, end) = self.here_and_fetched().gap((0, size))?;
        self.fetch((start, end.min(start.saturating_add(REST))), false)
    }

    /// The next portion of the rest, as one that somebody fetches from now on.
    pub fn rest(&mut self) -> Option<Bytes> {
        if Instant::now() < self.rest_from {
            return None;
        }
        let mut others = self.here_and_fetched();
        self.bad.each().for_each(|bad| others.add(bad));
        let size = self.pieces.size();
        let (start, end) = others.gap((self.at, size)).or_else(|| others.gap((0, size)))?;
        self.fetch((start, end.min(start.saturating_add(REST))), true)
    }

    fn fetch(&mut self, portion: Bytes, is_rest: bool) -> Option<Bytes> {
        self.fetched.push(Portion { asked: portion, takes: portion, is_rest, heard: Instant::now() });
        Some(portion)
    }

    fn here_and_fetched(&self) -> Ranges {
        let mut all = self.pieces.here();
        self.fetched.iter().for_each(|portion| all.add(portion.takes));
        all
    }

    /// More comes than was asked for; or it does so still, which is said again and again of a part that takes long.
    pub fn takes(&mut self, asked: Bytes, takes: Bytes) {
        let portion = self.fetched.iter_mut().find(|portion| portion.asked == asked);
        portion.into_iter().for_each(|portion| (portion.takes, portion.heard) = (takes, Instant::now()));
    }

    /// These bytes have come.
    pub fn got(&mut self, bytes: Bytes) {
        self.pieces.add(bytes);
        let now = Instant::now();
        self.used = now;
        let of_it = self.fetched.iter_mut().filter(|portion| portion.takes.0 <= bytes.0 && bytes.1 <= portion.takes.1);
        of_it.for_each(|portion| portion.heard = now);
    }

    /// These do not come. True if these are the first ones that the remote has not.
    pub fn lacks(&mut self, bytes: Bytes, (why, for_good): (&str, bool)) -> bool {
        let are_first = self.bad == Ranges::default();
        if for_good {
            self.bad.add(bytes);
        } else {
            self.rest_from = Instant::now() + LATER;
            self.why = Some(why.to_owned());
        }
        for_good && are_first
    }

    /// Why nothing has come, if something was tried, and may come later: others may have its place until then.
    pub fn why_nothing_came(&self) -> Option<&str> {
        self.why.as_deref().filter(|_| self.has_nothing())
    }

    /// True if nothing has come.
    pub fn has_nothing(&self) -> bool {
        self.pieces.here() == Ranges::default()
    }

    /// What the remote had not is tried again.
    pub fn try_again(&mut self) {
        (self.bad, self.rest_from) = (Ranges::default(), Instant::now());
    }

    /// Nobody fetches a portion any more.
    pub fn over(&mut self, asked: Bytes) {
        if let Some(at) = self.fetched.iter().position(|portion| portion.asked == asked) {
            self.fetched.swap_remove(at);
        }
    }

    /// How many portions somebody fetches that nobody waits for.
    pub fn resting(&self) -> usize {
        self.fetched.iter().filter(|portion| portion.is_rest).count()
    }

    /// True if somebody fetches some.
    pub fn are_fetched(&self) -> bool {
        !self.fetched.is_empty()
    }

    /// Forgets those of which nothing has come for long: whoever fetches them may be there no more.
    pub fn forget_silent(&mut self) {
        self.fetched.retain(|portion| portion.heard.elapsed() < SILENCE);
    }

    /// True if nothing is left to be tried, though not all has come.
    pub fn are_stuck(&self) -> bool {
        let mut others = self.pieces.here();
        self.bad.each().for_each(|bad| others.add(bad));
        !self.pieces.are_all() && others.cover((0, self.pieces.size()))
    }

    /// For how long nothing was wanted or read, and nothing came.
    pub fn idle(&self) -> Duration {
        if self.are_fetched() { Duration::ZERO } else { self.used.max(self.pieces.used()).elapsed() }
    }
}

#[cfg(test)]
mod tests {
    use tensorfs_layout::SegmentId;

    use super::*;

    fn portions(size: u64) -> Portions {
        let segment = (SegmentId(9), tempfile::tempfile().unwrap().into());
        Portions::new(Arc::new(Pieces::new(segment, size)))
    }

    /// Proves E21.
    #[test]
    fn what_is_waited_for_comes_first_and_each_byte_once() {
        let mut portions = portions(1 << 30);
        assert_eq!(portions.wanted((500 << 20, (500 << 20) + 4096)), Some((500 << 20, (500 << 20) + 4096)));
        portions.takes((500 << 20, (500 << 20) + 4096), (480 << 20, 544 << 20));
        // Others who want some of what comes wait for that.
        assert_eq!(portions.wanted((510 << 20, 511 << 20)), None);
        assert_eq!(portions.wanted((540 << 20, 550 << 20)), Some((544 << 20, 550 << 20)));
        portions.over((544 << 20, 550 << 20));
        // Behind it comes what follows, and then what is in front.
        assert_eq!(portions.rest(), Some((550 << 20, 678 << 20)));
        assert_eq!(portions.resting(), 1);
        portions.got((480 << 20, 544 << 20));
        portions.over((500 << 20, (500 << 20) + 4096));
        portions.got((544 << 20, 1 << 30));
        portions.over((550 << 20, 678 << 20));
        assert_eq!(portions.rest(), Some((0, 128 << 20)));
        assert!(portions.are_fetched() && !portions.pieces().are_all());
    }

    /// Proves E21.
    #[test]
    fn what_is_not_there_is_tried_for_who_wants_it_alone() {
        let mut portions = portions(100);
        let first = portions.rest().unwrap();
        portions.got((0, 40));
        let lacks = |portions: &mut Portions, for_good| portions.lacks((40, 60), ("it is gone", for_good));
        assert!(lacks(&mut portions, true) && !lacks(&mut portions, true));
        portions.got((60, 100));
        assert!(portions.are_fetched());
        portions.over(first);
        assert!(portions.are_stuck() && portions.rest().is_none());
        assert_eq!(portions.all(), Some((40, 60)), "for who wants all");
        portions.over((40, 60));
        portions.try_again();
        assert_eq!(portions.rest(), Some((40, 60)));
        portions.over((40, 60));
        assert_eq!(portions.wanted((0, 100)), Some((40, 60)));
        portions.got((40, 60));
        portions.over((40, 60));
        assert!(!portions.are_stuck() && portions.pieces().are_all() && !portions.are_fetched());
    }

    /// Proves E21.
    #[test]
    fn who_is_heard_of_is_not_taken_for_dead_and_who_reads_has_not_done() {
        let mut portions = portions(100);
        let asked = portions.wanted((10, 20)).unwrap();
        let long_ago = Instant::now().checked_sub(SILENCE).unwrap();
        portions.fetched[0].heard = long_ago;
        portions.takes(asked, (0, 50));
        portions.forget_silent();
        assert!(portions.are_fetched() && portions.wanted((40, 50)).is_none());
        portions.fetched[0].heard = long_ago;
        portions.forget_silent();
        assert!(!portions.are_fetched());
        portions.used = long_ago;
        assert!(portions.idle() < SILENCE, "it was made a moment ago");
        portions.pieces.note_use();
        assert!(portions.idle() < SILENCE);
    }

    /// Proves E21, E22.
    #[test]
    fn what_does_not_come_now_costs_nothing_that_has() {
        let mut portions = portions(100);
        let asked = portions.wanted((10, 20)).unwrap();
        assert_eq!(portions.why_nothing_came(), None);
        portions.lacks(asked, ("503", false));
        portions.over(asked);
        assert_eq!(portions.why_nothing_came(), Some("503"));
        assert_eq!(portions.wanted((10, 20)), Some(asked), "it is tried again");
        portions.got((10, 15));
        portions.lacks(asked, ("503", false));
        assert!(portions.why_nothing_came().is_none() && !portions.are_stuck());
    }
}
