//! Inode numbers of the control tree's changing part.
//!
//! A number is a hash of what it stands for, so it is the same whenever it is asked for. What the kernel knows of is
//! kept until it forgets it; for a file that is the place of its tensor, not its name, so that a million of them are
//! affordable. A server that takes over from one that died knows them, too ([`Handover`]).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use parking_lot::Mutex;
use tensorfs_layout::{Ino, SegmentId, Timestamp};

use super::fixed::{FIRST, MIRROR};
use super::origin::Origin;
use super::shared::Rights;
use crate::content::hash::number;
use crate::content::index::DirId;
use crate::handover::{Handover, Kept, Slip, long, short};

/// A tensor's file as it was when it was looked up. It never changes: another content is another number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Look {
    pub size: u64,
    pub mtime: Timestamp,
}

/// What the kernel knows of.
#[derive(Default)]
pub(super) struct Numbers {
    known: Mutex<HashMap<Ino, Known>>,
    /// Of each checkpoint in parts of which the kernel knows something, whose rights count for its directories.
    shared: Mutex<HashMap<Ino, Shared>>,
    /// The bytes of all lists.
    taken: Arc<AtomicUsize>,
    handover: Option<Arc<Handover>>,
}

struct Known {
    origin: Origin,
    look: Look,
    /// Whose rights count for a tensor of a checkpoint: of files that are it as the origin says. With what another
    /// plan names, and that is asked about a moment later, it has nothing to do.
    files: Option<Arc<List>>,
    lookups: u64,
    /// Servers before have told it, too: nobody knows how often, but once at least.
    told_before: bool,
    /// The kernel did not know it when it was asked, which this server has not told it since.
    doubted: bool,
    /// Where it stands for the next server.
    _kept: Option<Kept>,
}

/// Whose rights count for what there is of a checkpoint, and for how many numbers.
#[derive(Default)]
struct Shared {
    files: Option<Arc<[Ino]>>,
    /// The list that a tensor of it was told with last: as a rule they are all the same, and kept once.
    told: Option<Arc<List>>,
    numbers: usize,
}

/// All lists of those whose rights count for tensors take no more than this. A tensor without one has those of all that
/// is beside the plan, and cannot be opened before it is looked up again.
const LISTS_MAX: usize = 64 << 20;

/// Whose rights count for tensors of a checkpoint. What it takes is counted as long as anybody has it.
pub(super) struct List {
    files: Arc<[Ino]>,
    /// What they were when all of them were there.
    noted: Mutex<Option<Rights>>,
    taken: Arc<AtomicUsize>,
}

impl List {
    fn new(files: Arc<[Ino]>, taken: &Arc<AtomicUsize>) -> Option<Self> {
        let room = |before: usize| before.checked_add(size_of_val(&*files)).filter(|taken| *taken <= LISTS_MAX);
        taken.fetch_update(Relaxed, Relaxed, room).ok()?;
        Some(Self { files, noted: Mutex::default(), taken: taken.clone() })
    }

    /// The files.
    pub fn files(&self) -> &[Ino] {
        &self.files
    }

    /// These are the rights to all of them.
    pub fn note(&self, rights: Rights) {
        *self.noted.lock() = Some(rights);
    }

    /// The rights to all of them, as they were when all of them were there.
    pub fn noted(&self) -> Option<Rights> {
        self.noted.lock().clone()
    }
}

impl Drop for List {
    fn drop(&mut self) {
        self.taken.fetch_sub(size_of_val(&*self.files), Relaxed);
    }
}

/// In the place of nanoseconds: it is a directory; it is one of a checkpoint.
const DIRECTORY: u32 = u32::MAX;
const CHECKPOINT: u32 = u32::MAX - 1;
/// Beside nanoseconds: it is a tensor of a checkpoint.
const ASSEMBLED: u32 = 1 << 31;

/// What the next server has to know of a number.
fn to_slip(ino: Ino, origin: &Origin, look: Look) -> Slip {
    let (words, nanoseconds) = match *origin {
        // Its number says it all.
        Origin::Mirror(dir) => ([dir.0, 0, 0, 0], DIRECTORY),
        Origin::Directory { file, dir, parent, place } => ([file.0, dir.number(), parent.0, place], DIRECTORY),
        Origin::Tensor { file, segment, stamp, ordinal } => {
            ([file.0, segment.0, stamp, u64::from(ordinal)], look.mtime.nsec)
        }
        Origin::Checkpoint { dir, inside, parent } => ([dir.0, inside.number(), parent.0, 0], CHECKPOINT),
        Origin::Assembled { dir, stamp, ordinal } => {
            ([dir.0, stamp, u64::from(ordinal), 0], look.mtime.nsec | ASSEMBLED)
        }
    };
    let mut slip = [0; 60];
    let longs = [ino.0].into_iter().chain(words).chain([look.size, look.mtime.sec as u64]);
    for (place, word) in slip.chunks_exact_mut(8).zip(longs) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    slip[56..].copy_from_slice(&nanoseconds.to_le_bytes());
    slip
}

/// The number that a slip is of, if it is that of what the slip says it stands for.
fn of_slip(slip: &Slip) -> Option<(Ino, Origin, Look)> {
    // No file is longer, and no time is another one.
    let can_be = |look: &Look| look.size <= i64::MAX as u64 && look.mtime.nsec < SECOND;
    said_by(slip).filter(|(ino, origin, look)| of(origin) == *ino && can_be(look))
}

/// For tests: the number that what a slip says has.
pub(crate) fn right_number(slip: &Slip) -> Option<Ino> {
    said_by(slip).map(|(_, origin, _)| of(&origin))
}

/// What a slip says, whatever number it has.
fn said_by(slip: &Slip) -> Option<(Ino, Origin, Look)> {
    let [ino, file, second, third, fourth, size, seconds] = std::array::from_fn(|n| long(slip, n * 8));
    let (ino, file, nanoseconds) = (Ino(ino), Ino(file), short(slip, 56));
    let look = |nsec| Look { size, mtime: Timestamp { sec: seconds as i64, nsec } };
    let (origin, look) = match nanoseconds {
        DIRECTORY => {
            let origin = Origin::Directory { file, dir: DirId::of(second), parent: Ino(third), place: fourth };
            (origin, Look::default())
        }
        CHECKPOINT => {
            (Origin::Checkpoint { dir: file, inside: DirId::of(second), parent: Ino(third) }, Look::default())
        }
        nsec if nsec & ASSEMBLED != 0 => {
            let ordinal = u32::try_from(third).ok()?;
            (Origin::Assembled { dir: file, stamp: second, ordinal }, look(nsec & !ASSEMBLED))
        }
        nsec => {
            let (segment, ordinal) = (SegmentId(second), u32::try_from(fourth).ok()?);
            (Origin::Tensor { file, segment, stamp: third, ordinal }, look(nsec))
        }
    };
    Some((ino, origin, look))
}

/// In nanoseconds.
const SECOND: u32 = 1_000_000_000;

/// Numbers below this, counted from [`FIRST`], belong to the part of the tree that does not change.
const FIXED: u64 = 1 << 16;

/// The number that a origin has unless another one has it.
pub(super) fn of(origin: &Origin) -> Ino {
    match origin {
        Origin::Mirror(dir) => Ino(FIRST | MIRROR | dir.0),
        _ => Ino(FIRST | (number(origin) & (MIRROR - 1)).max(FIXED)),
    }
}

impl Numbers {
    /// With what the kernel knows from servers before.
    pub(super) fn new(handover: Option<Arc<Handover>>) -> Self {
        let inherited = handover.iter().flat_map(Handover::inherited_shown);
        let known = inherited.filter_map(|(slip, kept)| {
            let (ino, origin, look) = of_slip(&slip)?;
            let (files, kept) = (None, Some(kept));
            Some((ino, Known { origin, look, files, lookups: 0, told_before: true, doubted: false, _kept: kept }))
        });
        let known: HashMap<_, _> = known.collect();
        let mut shared: HashMap<Ino, Shared> = HashMap::new();
        for dir in known.values().filter_map(|known: &Known| known.origin.checkpoint()) {
            shared.entry(dir).or_default().numbers += 1;
        }
        Self { known: Mutex::new(known), shared: Mutex::new(shared), taken: Arc::default(), handover }
    }

    /// The number of a origin that the kernel is about to be told of, by a user whose share of places it takes. If it
    /// is a tensor of a checkpoint: whose rights count for it, from now on.
    pub(super) fn tell(&self, user: Option<u32>, origin: Origin, look: Look, files: Option<Arc<[Ino]>>) -> Ino {
        let mut ino = of(&origin);
        if let Origin::Mirror(_) = origin {
            return ino;
        }
        let files = files.map(|files| self.list(&origin, files));
        let mut known = self.known.lock();
        loop {
            let entry = known.entry(ino).or_insert_with(|| {
                if let Some(dir) = origin.checkpoint() {
                    self.shared.lock().entry(dir).or_default().numbers += 1;
                }
                let kept = self.handover.as_ref().and_then(|it| it.keep_shown(user, &to_slip(ino, &origin, look)));
                Known { origin, look, files: None, lookups: 0, told_before: false, doubted: false, _kept: kept }
            });
            if entry.origin == origin {
                entry.lookups += 1;
                entry.doubted = false;
                let before = files.map(|files| std::mem::replace(&mut entry.files, files));
                // Freed without the lock.
                drop(known);
                drop(before);
                return ino;
            }
            ino = Ino(FIRST | ((ino.0 + 1) & (MIRROR - 1)).max(FIXED));
        }
    }

    /// The list, kept once for all that have the same. None if there is no room for it.
    fn list(&self, origin: &Origin, files: Arc<[Ino]>) -> Option<Arc<List>> {
        let dir = origin.checkpoint()?;
        let told = self.shared.lock().get(&dir).and_then(|shared| shared.told.clone());
        if let Some(told) = told.filter(|told| told.files == files) {
            return Some(told);
        }
        let list = Arc::new(List::new(files, &self.taken)?);
        let before = self.shared.lock().get_mut(&dir).map(|shared| shared.told.replace(list.clone()));
        drop(before);
        Some(list)
    }

    /// These are the files whose rights count for the directories of a checkpoint, from now on. None if that is not
    /// known.
    pub(super) fn share(&self, dir: Ino, files: Option<Arc<[Ino]>>) {
        let before = self.shared.lock().get_mut(&dir).map(|shared| std::mem::replace(&mut shared.files, files));
        drop(before);
    }

    /// The files whose rights count for a tensor of a checkpoint. None if this server has not told it.
    pub(super) fn files(&self, ino: Ino) -> Option<Arc<List>> {
        self.known.lock().get(&ino)?.files.clone()
    }

    /// The files whose rights count for the directories of a checkpoint. None if that was not looked up yet.
    pub(super) fn shared(&self, dir: Ino) -> Option<Arc<[Ino]>> {
        self.shared.lock().get(&dir)?.files.clone()
    }

    /// What a origin looked like when the kernel was told of it, if it knows it still.
    pub(super) fn look(&self, origin: &Origin) -> Option<Look> {
        self.known.lock().get(&of(origin)).filter(|known| known.origin == *origin).map(|known| known.look)
    }

    /// What a number stands for.
    pub(super) fn get(&self, ino: Ino) -> Option<(Origin, Look)> {
        if ino.0 & MIRROR != 0 {
            return Some((Origin::Mirror(Ino(ino.0 & (MIRROR - 1))), Look::default()));
        }
        self.known.lock().get(&ino).map(|known| (known.origin, known.look))
    }

    /// What servers before have told and this one has not: the kernel may have forgotten it, and have said so to one
    /// that died with it. Of what it does not know, that is noted; what it did not know the last time either is let go
    /// of. In between it must have been heard what the kernel had to say the last time. Returns how much is in doubt.
    pub fn let_go_of_forgotten(&self, knows: impl Fn(Ino) -> bool) -> usize {
        let left = |known: &Known| known.told_before && known.lookups == 0;
        let mut inos = Vec::new();
        inos.extend(self.known.lock().iter().filter(|(_, known)| left(known)).map(|(ino, _)| *ino));
        let mut doubted = 0;
        for ino in inos.into_iter().filter(|ino| !knows(*ino)) {
            let mut known = self.known.lock();
            match known.get_mut(&ino).filter(|known| left(known)) {
                Some(entry) if !entry.doubted => {
                    entry.doubted = true;
                    doubted += 1;
                }
                Some(_) => self.remove(&mut known, ino),
                None => {}
            }
        }
        doubted
    }

    /// The kernel has forgotten so many of the times that it was told.
    pub fn forget(&self, ino: Ino, lookups: u64) {
        let mut known = self.known.lock();
        if let Some(entry) = known.get_mut(&ino) {
            // It forgets all at once, as a rule; what it was told by servers before is forgotten with more than what
            // it was told by this one.
            let all = if entry.told_before { lookups > entry.lookups } else { lookups >= entry.lookups };
            entry.lookups = entry.lookups.saturating_sub(lookups);
            if all {
                self.remove(&mut known, ino);
            }
        }
    }

    fn remove(&self, known: &mut HashMap<Ino, Known>, ino: Ino) {
        let of = known.remove(&ino).and_then(|gone| gone.origin.checkpoint());
        let mut shared = self.shared.lock();
        if let Some((dir, left)) = of.and_then(|dir| Some((dir, shared.get_mut(&dir)?))) {
            left.numbers -= 1;
            if left.numbers == 0 {
                shared.remove(&dir);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::index::TOP;

    #[test]
    fn a_number_lives_until_the_kernel_forgets_it() {
        let numbers = Numbers::default();
        let origin = Origin::Directory { file: Ino(7), dir: TOP, parent: Ino(FIRST), place: 0 };
        let ino = numbers.tell(None, origin, Look::default(), None);
        assert_eq!((ino, numbers.tell(None, origin, Look::default(), None)), (of(&origin), ino));
        assert!(ino.0 >= FIRST + FIXED && ino.0 & MIRROR == 0);
        numbers.forget(ino, 1);
        assert_eq!(numbers.get(ino), Some((origin, Look::default())));
        numbers.forget(ino, 1);
        assert_eq!(numbers.get(ino), None);
    }

    #[test]
    fn the_next_server_knows_what_the_kernel_knows() {
        let open = |file| Handover::open(file, None, nix::unistd::getppid()).unwrap();
        let first = open(Handover::create().unwrap());
        let numbers = Numbers::new(Some(first.clone()));
        let directory = Origin::Directory { file: Ino(7), dir: TOP, parent: Ino(FIRST), place: 3 };
        let tensor = Origin::Tensor { file: Ino(7), segment: SegmentId(8), stamp: 9, ordinal: u32::MAX };
        let look = Look { size: 5, mtime: Timestamp { sec: -3, nsec: 999_999_999 } };
        let gone = numbers.tell(
            None,
            Origin::Tensor { file: Ino(1), segment: SegmentId(8), stamp: 9, ordinal: 1 },
            look,
            None,
        );
        let all = [numbers.tell(None, directory, Look::default(), None), numbers.tell(None, tensor, look, None)];
        numbers.tell(None, tensor, look, None);
        numbers.forget(gone, 1);
        let next = Numbers::new(Some(open(first.share().unwrap())));
        assert_eq!(all.map(|ino| next.get(ino)), [Some((directory, Look::default())), Some((tensor, look))]);
        assert_eq!(next.get(gone), None);
        // What was told here alone is not all.
        next.tell(None, tensor, look, None);
        next.forget(all[1], 1);
        assert!(next.get(all[1]).is_some());
        next.forget(all[1], 2);
        assert_eq!(next.get(all[1]), None);
        std::mem::forget(numbers);
    }

    /// A server that was killed had heard that the kernel has forgotten one, and nobody else will hear of it.
    ///
    /// Proves K6.
    #[test]
    fn what_the_kernel_has_forgotten_while_a_server_died_is_let_go_of() {
        let open = |file| Handover::open(file, None, nix::unistd::getppid()).unwrap();
        let first = open(Handover::create().unwrap());
        let before = Numbers::new(Some(first.clone()));
        let tensor = |ordinal| Origin::Tensor { file: Ino(7), segment: SegmentId(8), stamp: 9, ordinal };
        let [forgotten, known, again] = [0, 1, 2].map(|n| before.tell(None, tensor(n), Look::default(), None));
        std::mem::forget(before);
        let second = open(first.share().unwrap());
        let numbers = Numbers::new(Some(second.clone()));
        let knows = |ino| ino == known;
        assert_eq!(numbers.let_go_of_forgotten(knows), 2);
        // Told once more: the kernel may have asked before it forgot.
        numbers.tell(None, tensor(2), Look::default(), None);
        assert_eq!(numbers.let_go_of_forgotten(knows), 0);
        assert_eq!([forgotten, known, again].map(|ino| numbers.get(ino).is_some()), [false, true, true]);
        numbers.forget(again, 1);
        assert_eq!((numbers.let_go_of_forgotten(knows), numbers.get(again).is_some()), (1, true), "not at once");
        assert_eq!((numbers.let_go_of_forgotten(knows), numbers.get(again).is_some()), (0, false));
        std::mem::forget(numbers);
        assert_eq!(open(first.share().unwrap()).inherited_shown().count(), 1, "nor has it a place");
    }

    #[test]
    fn a_slip_is_of_the_number_that_it_stands_for() {
        let tensor = Origin::Tensor { file: Ino(7), segment: SegmentId(8), stamp: 9, ordinal: 2 };
        let slip = to_slip(of(&tensor), &tensor, Look::default());
        assert_eq!(of_slip(&slip), Some((of(&tensor), tensor, Look::default())));
        for at in 0..40 {
            let mut other = slip;
            other[at] ^= 1;
            assert_eq!(of_slip(&other), None, "byte {at}");
        }
        let of = |look| of_slip(&to_slip(of(&tensor), &tensor, look));
        assert_eq!(of(Look { size: u64::MAX, ..Look::default() }), None, "no file is as long");
        assert_eq!(of(Look { size: 1, mtime: Timestamp { sec: 0, nsec: SECOND } }), None, "no time is like that");
    }

    #[test]
    fn two_nodes_never_share_a_number() {
        let numbers = Numbers::default();
        let tensor = |ordinal| Origin::Tensor { file: Ino(7), segment: SegmentId(8), stamp: 9, ordinal };
        let ino = numbers.tell(None, tensor(0), Look { size: 1, ..Look::default() }, None);
        // As if the hash had collided.
        let other = {
            let mut known = numbers.known.lock();
            let taken = known.remove(&ino).unwrap();
            known.insert(of(&tensor(1)), taken);
            drop(known);
            numbers.tell(None, tensor(1), Look { size: 2, ..Look::default() }, None)
        };
        assert_ne!(other, of(&tensor(1)));
        assert_eq!(numbers.get(other), Some((tensor(1), Look { size: 2, ..Look::default() })));
        assert_eq!(numbers.get(of(&tensor(1))).unwrap().0, tensor(0));
    }

    #[test]
    fn whose_rights_count_for_many_tensors_is_kept_once_and_has_a_bound() {
        let numbers = Numbers::default();
        let list = |len: usize| -> Arc<[Ino]> { (0..len as u64).map(Ino).collect() };
        let tensor = |ordinal| Origin::Assembled { dir: Ino(7), stamp: 1, ordinal };
        let tell = |ordinal, len| numbers.tell(None, tensor(ordinal), Look::default(), Some(list(len)));
        let directory = numbers.tell(
            None,
            Origin::Checkpoint { dir: Ino(7), inside: TOP, parent: Ino(FIRST) },
            Look::default(),
            None,
        );
        let all: Vec<Ino> = (0..10_000).map(|ordinal| tell(ordinal, 4096)).collect();
        assert_eq!(numbers.taken.load(Relaxed), 4096 * 8);
        assert!(all.iter().all(|ino| numbers.files(*ino).unwrap().files().len() == 4096));
        // Each with another one: those that find no room have none.
        let many: Vec<Ino> = (10_000..11_000).map(|ordinal| tell(ordinal, ordinal as usize * 2)).collect();
        let with = many.iter().filter(|ino| numbers.files(**ino).is_some()).count();
        assert!(with > 100 && with < 1000 && numbers.taken.load(Relaxed) <= LISTS_MAX, "{with}");
        all.iter().chain(&many).for_each(|ino| numbers.forget(*ino, 1));
        numbers.forget(directory, 1);
        assert_eq!(numbers.taken.load(Relaxed), 0);
    }

    #[test]
    fn directories_of_the_pool_need_not_be_kept() {
        let numbers = Numbers::default();
        let ino = numbers.tell(None, Origin::Mirror(Ino(5)), Look::default(), None);
        assert_eq!(numbers.get(ino), Some((Origin::Mirror(Ino(5)), Look::default())));
        assert!(numbers.known.lock().is_empty());
    }
}
