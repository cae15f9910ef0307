//! What this process itself computes for a thing whose files are not trusted, and that it has an end.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// A thing may take so much of the processors, and a second more for so many bytes that the host has of its files: as
/// much as readers may.
const EACH: Duration = Duration::from_secs(20);
const BYTES_A_SECOND: u64 = 16 << 20;
/// So often it is looked for each time that the clock is asked.
const LOOKS: u32 = 64;

/// What a thing has taken of the processors, and what it may.
pub struct Account {
    allowed: Cell<Option<Duration>>,
    spent: Cell<Duration>,
    /// Since when that runs.
    since: Cell<Option<Duration>>,
    looks: Cell<u32>,
    /// Files that are counted.
    files: RefCell<HashSet<(u64, u64)>>,
}

impl Account {
    /// Of what may take as much as its files allow for.
    pub fn bounded() -> Account {
        Account { allowed: Cell::new(Some(EACH)), ..Account::endless() }
    }

    /// Of what may take as long as it does: somebody asked for just that.
    pub fn endless() -> Account {
        let (allowed, spent, since, looks) = (Cell::new(None), Cell::default(), Cell::new(None), Cell::new(0));
        Account { allowed, spent, since, looks, files: RefCell::default() }
    }

    /// Counts what a file allows for: once, however often it is opened, and by however many names.
    pub fn count(&self, file: &File) -> io::Result<()> {
        let Some(allowed) = self.allowed.get() else { return Ok(()) };
        let about = file.metadata()?;
        if self.files.borrow_mut().insert((about.dev(), about.ino())) {
            let allocated = about.blocks().saturating_mul(512);
            let more = Duration::from_millis(allocated.saturating_mul(1000) / BYTES_A_SECOND);
            self.allowed.set(Some(allowed.saturating_add(more)));
        }
        Ok(())
    }

    /// Does something that counts.
    ///
    /// # Errors
    /// It has taken as much as it may.
    pub fn during<T>(&self, work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        self.check()?;
        if self.allowed.get().is_none() || self.since.get().is_some() {
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
        }
    }

    fn check(&self) -> io::Result<()> {
        match self.allowed.get() {
            Some(allowed) if self.spent.get() > allowed => {
                Err(io::Error::other("not looked into any further, as that takes longer than it may"))
            }
            _ => Ok(()),
        }
    }

    /// What is left.
    pub fn left(&self) -> Duration {
        self.allowed.get().map_or(Duration::MAX, |allowed| allowed.saturating_sub(self.spent.get()))
    }

    #[cfg(test)]
    pub fn of(allowed: Duration) -> Account {
        Account { allowed: Cell::new(Some(allowed)), ..Account::endless() }
    }
}

/// What this thread has taken of the processors.
fn now() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Into::into).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves T11.
    #[test]
    fn what_a_thing_takes_has_an_end() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 40).unwrap();
        let account = Account::of(Duration::from_millis(50));
        for _ in 0..1000 {
            account.count(&file).unwrap();
        }
        assert!(account.left() <= Duration::from_millis(51), "a hole allows for nothing");
        // One long piece of work ends within, and what comes next is not begun.
        let endless = || -> io::Result<()> {
            loop {
                account.look()?;
            }
        };
        let why = account.during(endless).unwrap_err();
        assert!(why.to_string().contains("not looked into"), "{why}");
        assert!(account.during(|| Ok(())).is_err() && account.left().is_zero());
        let other = Account::endless();
        (0..100_000).for_each(|_| other.during(|| other.look()).unwrap());
        // What the host has of a file counts once.
        let some = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(some.path(), vec![7; 8 << 20]).unwrap();
        let account = Account::bounded();
        (0..9).for_each(|_| account.count(&File::open(some.path()).unwrap()).unwrap());
        let left = account.left().saturating_sub(EACH);
        assert!((400..1000).contains(&left.as_millis()), "{left:?}");
    }
}
