//! What this process itself computes for things whose files are not trusted, and that it has an end.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::rc::Rc;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// A thing may take a second of the processors for so many bytes that the host has of its files, and all things of a
/// command together so much beyond that: as much as readers may for a request.
const BYTES_A_SECOND: u64 = 16 << 20;
const BEYOND: Duration = Duration::from_secs(20);
/// So often it is looked for each time that the clock is asked.
const LOOKS: u32 = 64;
/// So many files of a thing are looked at again, of which the host may have more by then.
const COMING_MAX: usize = 64;

/// What all things of a command may take together beyond what each may for its files.
#[derive(Clone)]
pub struct Allowance(Rc<Cell<Duration>>);

impl Default for Allowance {
    fn default() -> Self {
        Self::of(BEYOND)
    }
}

impl Allowance {
    fn of(beyond: Duration) -> Self {
        Allowance(Rc::new(Cell::new(beyond)))
    }

    /// An account of a thing that takes from it.
    pub fn account(&self) -> Account {
        Account { beyond: Some(self.clone()), ..Account::endless() }
    }
}

/// What a thing has taken of the processors, and what it may.
#[derive(Default)]
pub struct Account {
    beyond: Option<Allowance>,
    /// What it may take by its files.
    own: Cell<Duration>,
    spent: Cell<Duration>,
    /// How much of that was taken from what all have together.
    drawn: Cell<Duration>,
    /// Since when it takes more.
    since: Cell<Option<Duration>>,
    looks: Cell<u32>,
    files: RefCell<Files>,
}

/// Files of a thing, which count once.
#[derive(Default)]
struct Files {
    allocated: HashMap<(u64, u64), u64>,
    /// Those that the host does not have all of: they may be on their way from a remote.
    coming: VecDeque<File>,
}

impl Files {
    /// How much more the host has of a file than was known.
    fn more_of(&mut self, about: &Metadata) -> u64 {
        let known = self.allocated.entry((about.dev(), about.ino())).or_default();
        let more = allocated(about).saturating_sub(*known);
        *known += more;
        more
    }
}

fn allocated(about: &Metadata) -> u64 {
    about.blocks().saturating_mul(512)
}

impl Account {
    /// Of what may take as long as it does: somebody asked for just that.
    pub fn endless() -> Account {
        Account::default()
    }

    /// Counts what a file allows for: once, however often it is opened, and by however many names.
    pub fn count(&self, file: &File) -> io::Result<()> {
        if self.beyond.is_none() {
            return Ok(());
        }
        let (about, mut files) = (file.metadata()?, self.files.borrow_mut());
        let is_new = !files.allocated.contains_key(&(about.dev(), about.ino()));
        let more = files.more_of(&about);
        if is_new && allocated(&about) < about.len() {
            let oldest = if files.coming.len() == COMING_MAX { files.coming.pop_front() } else { None };
            let last = oldest.and_then(|oldest| oldest.metadata().ok()).map_or(0, |about| files.more_of(&about));
            files.coming.push_back(file.try_clone()?);
            self.allow(last);
        }
        self.allow(more);
        Ok(())
    }

    /// Counts what has come meanwhile.
    fn count_again(&self) {
        let mut files = self.files.borrow_mut();
        let now: Vec<Metadata> = files.coming.iter().filter_map(|file| file.metadata().ok()).collect();
        let more = now.iter().map(|about| files.more_of(about)).sum();
        self.allow(more);
    }

    fn allow(&self, bytes: u64) {
        let more = Duration::from_millis(bytes.saturating_mul(1000) / BYTES_A_SECOND);
        self.own.set(self.own.get().saturating_add(more));
        self.draw();
    }

    /// Takes what it has spent beyond its own from what all have together, or gives back what was too much.
    fn draw(&self) {
        let Some(Allowance(beyond)) = &self.beyond else { return };
        let wanted = self.spent.get().saturating_sub(self.own.get());
        let left = beyond.get().saturating_add(self.drawn.get());
        let drawn = wanted.min(left);
        beyond.set(left.saturating_sub(drawn));
        self.drawn.set(drawn);
    }

    /// Does something that counts.
    ///
    /// # Errors
    /// It has taken as much as it may.
    pub fn during<T>(&self, work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        self.check()?;
        if self.beyond.is_none() || self.since.get().is_some() {
            return work();
        }
        self.since.set(Some(now()));
        let done = work();
        self.settle();
        self.since.set(None);
        done
    }

    /// Counts what was taken up to now by what is going on.
    ///
    /// # Errors
    /// It has taken as much as it may.
    pub fn look(&self) -> io::Result<()> {
        self.looks.set(self.looks.get() + 1);
        if self.looks.get() < LOOKS {
            return Ok(());
        }
        self.looks.set(0);
        self.settle();
        self.check()
    }

    fn settle(&self) {
        if let Some(since) = self.since.get() {
            let now = now();
            self.spent.set(self.spent.get().saturating_add(now.saturating_sub(since)));
            self.since.set(Some(now));
            self.draw();
        }
    }

    fn check(&self) -> io::Result<()> {
        if self.is_over() {
            self.count_again();
        }
        if self.is_over() {
            return Err(io::Error::other("not looked into any further, as that takes longer than it may"));
        }
        Ok(())
    }

    /// True if it has taken more than it may, all together.
    fn is_over(&self) -> bool {
        self.beyond.is_some() && self.spent.get() > self.own.get().saturating_add(self.drawn.get())
    }

    /// What is left.
    pub fn left(&self) -> Duration {
        let Some(Allowance(beyond)) = &self.beyond else { return Duration::MAX };
        let may = self.own.get().saturating_add(self.drawn.get()).saturating_add(beyond.get());
        may.saturating_sub(self.spent.get())
    }

    #[cfg(test)]
    pub fn of(allowed: Duration) -> Account {
        Allowance::of(allowed).account()
    }
}

/// What this thread has taken of the processors.
fn now() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Into::into).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLI: Duration = Duration::from_millis(1);

    /// Takes some time of the processors.
    fn take(account: &Account, time: Duration) -> io::Result<()> {
        let until = now() + time;
        account.during(|| {
            while now() < until {
                account.look()?;
            }
            Ok(())
        })
    }

    /// Proves T11.
    #[test]
    fn what_a_thing_takes_has_an_end() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 40).unwrap();
        let account = Account::of(50 * MILLI);
        for _ in 0..1000 {
            account.count(&file).unwrap();
        }
        assert!(account.left() <= 51 * MILLI, "a hole allows for nothing");
        assert!(account.files.borrow().coming.len() == 1, "it is looked at again once");
        // One long piece of work ends within, and what comes next is not begun.
        let why = take(&account, Duration::from_secs(60)).unwrap_err();
        assert!(why.to_string().contains("not looked into"), "{why}");
        assert!(account.during(|| Ok(())).is_err() && account.left().is_zero());
        let other = Account::endless();
        (0..100_000).for_each(|_| other.during(|| other.look()).unwrap());
        // What the host has of a file counts once.
        let some = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(some.path(), vec![7; 8 << 20]).unwrap();
        let account = Allowance::default().account();
        (0..9).for_each(|_| account.count(&File::open(some.path()).unwrap()).unwrap());
        let left = account.left().saturating_sub(BEYOND);
        assert!((400..1000).contains(&left.as_millis()), "{left:?}");
    }

    /// However many things there are, and each has what its own files allow for.
    ///
    /// Proves T11.
    #[test]
    fn what_all_things_take_together_has_an_end() {
        let all = Allowance::of(60 * MILLI);
        let things: Vec<Account> = (0..3).map(|_| all.account()).collect();
        take(&things[0], 30 * MILLI).unwrap();
        assert!(take(&things[1], 300 * MILLI).is_err());
        assert!(things[2].left().is_zero() && take(&things[2], 100 * MILLI).is_err());
        let mut file = tempfile::tempfile().unwrap();
        io::Write::write_all(&mut file, &vec![7; 8 << 20]).unwrap();
        let own = all.account();
        own.count(&file).unwrap();
        assert!(own.left() >= 400 * MILLI, "{:?}", own.left());
        take(&own, 20 * MILLI).unwrap();
    }

    /// As those do that are away, and come as they are read.
    ///
    /// Proves T11.
    #[test]
    fn what_the_host_has_later_counts_too() {
        let mut file = tempfile::tempfile().unwrap();
        file.set_len(8 << 20).unwrap();
        let account = Account::of(20 * MILLI);
        account.count(&file).unwrap();
        assert!(account.left() <= 20 * MILLI);
        io::Write::write_all(&mut file, &vec![7; 8 << 20]).unwrap();
        take(&account, 100 * MILLI).unwrap();
        assert!((300..500).contains(&account.left().as_millis()), "{:?}", account.left());
    }
}
