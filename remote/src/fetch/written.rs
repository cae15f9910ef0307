//! What has come before: objects that were written as parts of files, from where they can be read again, packs that are
//! at hand, and which objects somebody else has on their way. Those who fetch files beside each other share it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fs::File;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tensorfs_layout::SegmentId;

use crate::repository::{Hash, Part};

/// Where an object was written as a part of a file: that file, and where it begins there.
pub type Place = (SegmentId, u64);

/// So long it is waited for an object that somebody else has on its way; then it is asked for once more. His part of
/// what is asked for ahead may take that long.
const PATIENCE: Duration = Duration::from_secs(60);

/// Objects that were written as parts of files, packs, and what is on its way.
#[derive(Clone)]
pub struct Written {
    places: Arc<Mutex<Places>>,
    open: Arc<dyn Fn(SegmentId) -> Option<File> + Send + Sync>,
    packs: Arc<Mutex<Packs>>,
    coming: Arc<(Mutex<HashSet<Hash>>, Condvar)>,
}

#[derive(Default)]
struct Places {
    of: HashMap<Hash, Place>,
    /// In the order in which they came, if there is a bound.
    order: VecDeque<Hash>,
    most: Option<usize>,
}

impl Places {
    fn add(&mut self, hash: Hash, place: Place) {
        // One that is there already is as good, as far as anybody knows.
        if self.of.contains_key(&hash) {
            return;
        }
        self.of.insert(hash, place);
        let Some(most) = self.most else { return };
        self.order.push_back(hash);
        while self.order.len() > most {
            self.order.pop_front().and_then(|oldest| self.of.remove(&oldest));
        }
    }
}

impl Written {
    /// None yet. `open` is asked for the files; packs of so many bytes are kept at hand.
    pub fn new(open: impl Fn(SegmentId) -> Option<File> + Send + Sync + 'static, packs: usize) -> Self {
        let packs = Arc::new(Mutex::new(Packs::new(packs)));
        Self { places: Arc::default(), open: Arc::new(open), packs, coming: Arc::default() }
    }

    /// Remembers the places of so many objects at most, the newest ones.
    pub fn of_newest(self, most: usize) -> Self {
        locked(&self.places).most = Some(most);
        self
    }

    /// A part of a file was written there. One that shares an object with others is not looked for there.
    pub fn add_part(&self, part: &Part, place: Place) {
        if let Part::Alone((_, hash)) = part {
            locked(&self.places).add(*hash, place);
        }
    }

    pub(super) fn packs(&self) -> &Arc<Mutex<Packs>> {
        &self.packs
    }

    pub(super) fn place(&self, part: &Part) -> Option<Place> {
        let Part::Alone((_, hash)) = part else { return None };
        locked(&self.places).of.get(hash).copied()
    }

    pub(super) fn open(&self, segment: SegmentId) -> Option<File> {
        (self.open)(segment)
    }

    /// It is not there any more.
    pub(super) fn remove(&self, hash: Hash) {
        locked(&self.places).of.remove(&hash);
    }

    /// Says that somebody has an object on its way; false if somebody else has.
    pub(super) fn begin(&self, object: Hash) -> bool {
        locked(&self.coming.0).insert(object)
    }

    /// It has come, or will not.
    pub(super) fn end(&self, object: Hash) {
        locked(&self.coming.0).remove(&object);
        self.coming.1.notify_all();
    }

    /// Waits until nobody has an object on its way any more, or for long.
    pub(super) fn wait(&self, object: Hash) {
        let begun = Instant::now();
        let mut coming = locked(&self.coming.0);
        while coming.contains(&object)
            && let Some(left) = PATIENCE.checked_sub(begun.elapsed())
        {
            coming = self.coming.1.wait_timeout(coming, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Packs that were used last, as far as there is room, and one more.
pub struct Packs {
    /// Those that were used last come first.
    kept: Vec<(Hash, Bytes)>,
    room: usize,
}

impl Packs {
    pub(super) fn new(room: usize) -> Self {
        Self { kept: Vec::new(), room }
    }

    pub(super) fn has(&self, pack: Hash) -> bool {
        self.kept.iter().any(|(kept, _)| *kept == pack)
    }

    pub(super) fn get(&mut self, pack: Hash) -> Option<Bytes> {
        let at = self.kept.iter().position(|(kept, _)| *kept == pack)?;
        self.kept[..=at].rotate_right(1);
        Some(self.kept[0].1.clone())
    }

    /// Keeps a pack at hand, and those that were used before it as far as there is room.
    pub(super) fn keep(&mut self, pack: Hash, bytes: Bytes) {
        if self.has(pack) {
            return;
        }
        self.kept.insert(0, (pack, bytes));
        let mut kept = 0;
        let fits = |(_, bytes): &&(Hash, Bytes)| {
            kept += bytes.len();
            kept <= self.room
        };
        let fit = self.kept.iter().take_while(fits).count();
        self.kept.truncate(fit.max(1));
    }
}

pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(n: u8) -> Part {
        Part::Alone((5, Hash::of(&[n])))
    }

    #[test]
    fn of_what_was_written_the_newest_is_kept_in_mind() {
        let written = Written::new(|_| None, 10).of_newest(2);
        for n in 0..3 {
            written.add_part(&part(n), (SegmentId(n.into()), 7));
            written.add_part(&part(n), (SegmentId(9), 7));
        }
        let places = [0, 1, 2].map(|n| written.place(&part(n)));
        assert_eq!(places, [None, Some((SegmentId(1), 7)), Some((SegmentId(2), 7))]);
    }

    /// Who waits goes on when the other one has it, or has given it up.
    #[test]
    fn what_somebody_else_has_on_its_way_is_waited_for() {
        let (written, object) = (Written::new(|_| None, 10), Hash::of(b"object"));
        assert!(written.begin(object) && !written.begin(object));
        let (other, begun) = (written.clone(), Instant::now());
        let ends = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(200));
            other.end(object);
        });
        written.wait(object);
        assert!(begun.elapsed() >= Duration::from_millis(200) && written.begin(object));
        ends.join().unwrap();
    }

    #[test]
    fn packs_are_kept_as_far_as_there_is_room() {
        let (mut packs, bytes) = (Packs::new(10), |len| Bytes::from(vec![0; len]));
        let names = [1, 2, 3].map(|n: u8| Hash::of(&[n]));
        packs.keep(names[0], bytes(5));
        packs.keep(names[1], bytes(5));
        assert!(packs.get(names[0]).is_some());
        packs.keep(names[2], bytes(5));
        assert_eq!(names.map(|name| packs.has(name)), [true, false, true]);
        packs.keep(names[1], bytes(50));
        assert_eq!(names.map(|name| packs.has(name)), [false, true, false]);
    }
}
