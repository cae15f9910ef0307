//! How many lines of a kind are logged: users can cause some of them, and must not fill the log with them.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use log::{Level, Record};

use crate::show::log_line::line;

/// So many lines of a kind are said as they come.
const FIRST: u32 = 100;
/// Beyond them one is said in this time, and how many were not.
const EACH: Duration = Duration::from_secs(60);
/// A kind that was quiet for so long is as new.
const FORGOTTEN: Duration = Duration::from_secs(600);

/// What recovery says while a pool is opened, when there are no users yet, is said in full.
const IN_FULL: &str = "tensorfs_layout::pool::recover";

/// Counts lines by the place in the code that they come from, of which there are as many as the code has.
#[derive(Debug, Default)]
pub struct Limit(Mutex<HashMap<(String, u32), Kind>>);

#[derive(Debug)]
struct Kind {
    said: u32,
    last: Instant,
    left_out: u64,
}

impl Limit {
    /// The lines that are logged for a record, in their order: itself, if it is not one too many, and what was left out
    /// some time ago. Errors are never left out: what causes them is a fault, and each may tell of another file.
    pub fn lines(&self, record: &Record) -> Vec<String> {
        let module = record.module_path().unwrap_or_default();
        let mut said = self.overdue(Instant::now());
        let place = (module.to_owned(), record.line().unwrap_or_default());
        let in_full = record.level() == Level::Error || module.starts_with(IN_FULL);
        if in_full || self.admits(place, Instant::now()) {
            said.push(line(record));
        }
        said
    }

    fn kinds(&self) -> std::sync::MutexGuard<'_, HashMap<(String, u32), Kind>> {
        // It is whole after each change, whatever panicked.
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// True if one more line from that place is said now.
    fn admits(&self, place: (String, u32), now: Instant) -> bool {
        let mut kinds = self.kinds();
        let kind = kinds.entry(place).or_insert(Kind { said: 0, last: now, left_out: 0 });
        if kind.left_out == 0 && now.duration_since(kind.last) >= FORGOTTEN {
            kind.said = 0;
        }
        if kind.said < FIRST {
            kind.said += 1;
            kind.last = now;
            return true;
        }
        kind.left_out += 1;
        false
    }

    /// Says of each kind how many of its lines were left out, if that was not said for a while.
    fn overdue(&self, now: Instant) -> Vec<String> {
        let mut kinds = self.kinds();
        let due = kinds.iter_mut().filter(|(_, kind)| kind.left_out > 0 && now.duration_since(kind.last) >= EACH);
        due.map(|((module, number), kind)| {
            kind.last = now;
            let count = std::mem::take(&mut kind.left_out);
            format!("{count} more lines like some above were left out ({module}:{number})")
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_of_line_is_said_some_times_and_then_counted_once_a_minute() {
        let (limit, start) = (Limit::default(), Instant::now());
        let place = |line| ("module".to_owned(), line);
        let said = (0..1000).filter(|_| limit.admits(place(1), start)).count();
        assert_eq!(said, FIRST as usize);
        // Another kind is not in the way of it.
        assert!(limit.admits(place(2), start));
        assert!(limit.overdue(start + EACH / 2).is_empty());
        assert_eq!(limit.overdue(start + EACH), ["900 more lines like some above were left out (module:1)"]);
        assert!(limit.overdue(start + EACH).is_empty());
        // It goes on: one line a minute.
        let lines: usize = (0..600_u64)
            .map(|second| {
                let now = start + EACH + Duration::from_secs(second);
                usize::from(limit.admits(place(1), now)) + limit.overdue(now).len()
            })
            .sum();
        assert!((9..=10).contains(&lines), "{lines}");
        // And is as new after it was quiet.
        let later = start + EACH * 12 + FORGOTTEN;
        limit.overdue(later);
        assert!(!limit.admits(place(1), later));
        let much_later = later + FORGOTTEN;
        limit.overdue(much_later);
        assert!(limit.admits(place(1), much_later + FORGOTTEN));
    }

    #[test]
    fn errors_are_all_said() {
        let limit = Limit::default();
        let said = |level| {
            let of = |_| limit.lines(&Record::builder().level(level).line(Some(7)).build()).len();
            (0..1000).map(of).sum::<usize>()
        };
        assert_eq!((said(Level::Error), said(Level::Warn)), (1000, FIRST as usize));
    }
}
