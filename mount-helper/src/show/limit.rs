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
/// So many kinds are told apart by their first words, too.
const KINDS: usize = 1024;
/// So many words tell them apart.
const WORDS: usize = 4;

/// What recovery says while a pool is opened, when there are no users yet, is said in full.
const IN_FULL: &str = "tensorfs_layout::pool::recover";

/// Counts lines by the place in the code that they come from, their level, and their first words: all that goes wrong
/// with requests comes from one place.
#[derive(Debug, Default)]
pub struct Limit(Mutex<HashMap<Name, Kind>>);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Name {
    place: (String, u32),
    level: Level,
    words: String,
}

#[derive(Debug)]
struct Kind {
    count: u32,
    seen: Instant,
    said: Instant,
    left_out: u64,
}

impl Limit {
    /// The line that is logged for a record, if it is not one too many. Errors are never left out: what causes them is
    /// a fault, and each may tell of another file.
    pub fn line(&self, record: &Record) -> Option<String> {
        let module = record.module_path().unwrap_or_default();
        if record.level() == Level::Error || module.starts_with(IN_FULL) {
            return Some(line(record));
        }
        let place = (module.to_owned(), record.line().unwrap_or_default());
        let name = Name { place, level: record.level(), words: first_words(&record.args().to_string()) };
        match self.admits(name, Instant::now())? {
            0 => Some(line(record)),
            left_out => Some(format!("{} ({left_out} more lines like this one were left out)", line(record))),
        }
    }

    /// How many lines of a kind were left out before the one that is said now. Nothing if it is left out, too.
    fn admits(&self, mut name: Name, now: Instant) -> Option<u64> {
        // It is whole after each change, whatever panicked.
        let mut kinds = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if kinds.len() >= KINDS && !kinds.contains_key(&name) {
            // Of these there are as many as the code has places.
            name.words.clear();
        }
        let kind = kinds.entry(name).or_insert(Kind { count: 0, seen: now, said: now, left_out: 0 });
        if now.duration_since(kind.seen) >= FORGOTTEN {
            kind.count = 0;
        }
        kind.seen = now;
        if kind.count >= FIRST && now.duration_since(kind.said) < EACH {
            kind.left_out += 1;
            return None;
        }
        kind.count = (kind.count + 1).min(FIRST);
        kind.said = now;
        Some(std::mem::take(&mut kind.left_out))
    }
}

/// What lines that say the same of different things have in common.
fn first_words(text: &str) -> String {
    let words = text.split_whitespace().take(WORDS).filter(|word| word.bytes().all(|byte| !byte.is_ascii_digit()));
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(words: &str) -> Name {
        Name { place: ("module".to_owned(), 1), level: Level::Warn, words: words.to_owned() }
    }

    #[test]
    fn a_kind_of_line_is_said_some_times_and_then_once_a_minute() {
        let (limit, start) = (Limit::default(), Instant::now());
        let said = (0..1000).filter(|_| limit.admits(name("one"), start).is_some()).count();
        assert_eq!(said, FIRST as usize);
        // Another kind is not in the way of it.
        assert_eq!(limit.admits(name("other"), start), Some(0));
        // It goes on: one line a minute, with how many there were besides.
        assert_eq!(limit.admits(name("one"), start + EACH / 2), None);
        assert_eq!(limit.admits(name("one"), start + EACH), Some(901));
        let begun = start + EACH;
        let lines =
            (1..=600).filter(|second| limit.admits(name("one"), begun + Duration::from_secs(*second)).is_some());
        assert_eq!(lines.count(), 10);
        // Once a day it is said each time, and after it was quiet all of it.
        let day = Duration::from_secs(86_400);
        assert!((1..200).all(|n| limit.admits(name("one"), start + day * n).is_some()));
        let said = (0..1000).filter(|_| limit.admits(name("one"), start + day * 300).is_some()).count();
        assert_eq!(said, FIRST as usize);
    }

    #[test]
    fn kinds_have_a_bound() {
        let (limit, start) = (Limit::default(), Instant::now());
        let said = (0..100_000).filter(|n| limit.admits(name(&format!("x{n}")), start).is_some()).count();
        assert_eq!(said, KINDS + FIRST as usize);
        assert!(limit.0.lock().unwrap().len() <= KINDS + 1);
    }

    #[test]
    fn one_thing_that_goes_wrong_does_not_hide_another_at_the_same_place() {
        let limit = Limit::default();
        let said = |text: &str, level| {
            let record = |n: u32| {
                let text = format!("{text} {n}");
                limit.line(&Record::builder().level(level).line(Some(7)).args(format_args!("{text}")).build()).is_some()
            };
            (0..1000).filter(|n| record(*n)).count()
        };
        assert_eq!(said("setxattr: the pool has no tier", Level::Info), FIRST as usize);
        assert_eq!(said("fsync: 3 files could not be synced", Level::Warn), FIRST as usize);
        assert_eq!(said("fsync: 4 files could not be synced", Level::Warn), 0);
        assert_eq!(said("anything", Level::Error), 1000);
    }
}
