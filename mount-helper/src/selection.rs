//! Which tensors are meant: names with wildcards, ranges of steps, modes, types; and one tensor of a file.

use std::fs::File;
use std::ops::ControlFlow;
use std::path::Path;
use std::str::FromStr;

use tensorfs_formats::{Dtype, Format, Mode, Recognised, Tensor, recognise};
use tensorfs_layout::TensorEntry;

use crate::failure::Failure;
use crate::place::Place;
use crate::recorded::Recorded;
use crate::text;

/// A name with wildcards: `*` for any text, `?` for any character, `[a-z]` for one of some, `[!a-z]` for another one.
#[derive(Clone, Debug)]
pub struct Glob(Vec<Part>);

#[derive(Clone, Debug)]
enum Part {
    Any,
    One,
    Char(char),
    Set { negated: bool, ranges: Vec<(char, char)> },
}

impl FromStr for Glob {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let chars: Vec<char> = text.chars().collect();
        let (mut parts, mut at) = (Vec::new(), 0);
        while let Some(&char) = chars.get(at) {
            at += 1;
            parts.push(match char {
                '*' => Part::Any,
                '?' => Part::One,
                '[' => {
                    // A ] that comes first is one of the set.
                    let least = if matches!(chars.get(at), Some('!' | '^')) { 2 } else { 1 };
                    let end = chars[at..].iter().skip(least).position(|&char| char == ']').map(|end| at + least + end);
                    let end = end.ok_or_else(|| "a [ without its ]".to_owned())?;
                    let inside = &chars[at..end];
                    at = end + 1;
                    set(inside)
                }
                char => Part::Char(char),
            });
        }
        parts.dedup_by(|a, b| matches!((a, b), (Part::Any, Part::Any)));
        Ok(Glob(parts))
    }
}

fn set(inside: &[char]) -> Part {
    let (negated, mut inside) = match inside {
        ['!' | '^', rest @ ..] if !rest.is_empty() => (true, rest),
        inside => (false, inside),
    };
    let mut ranges = Vec::new();
    loop {
        inside = match inside {
            [first, '-', last, rest @ ..] => {
                ranges.push((*first, *last));
                rest
            }
            [one, rest @ ..] => {
                ranges.push((*one, *one));
                rest
            }
            [] => return Part::Set { negated, ranges },
        };
    }
}

impl Glob {
    /// Whether all of `name` is meant. Time is at most the product of both lengths.
    pub fn matches(&self, name: &str) -> bool {
        let chars: Vec<char> = name.chars().collect();
        let (mut part, mut at) = (0, 0);
        // Where to go on if what follows the last `*` does not fit.
        let mut back = None;
        while at < chars.len() {
            match self.0.get(part) {
                Some(Part::Any) => {
                    back = Some((part, at));
                    part += 1;
                }
                Some(one) if one.fits(chars[at]) => (part, at) = (part + 1, at + 1),
                _ => match &mut back {
                    Some((star, from)) => {
                        *from += 1;
                        (part, at) = (*star + 1, *from);
                    }
                    None => return false,
                },
            }
        }
        self.0[part..].iter().all(|part| matches!(part, Part::Any))
    }
}

impl Part {
    fn fits(&self, char: char) -> bool {
        match self {
            Part::Any => false,
            Part::One => true,
            Part::Char(wanted) => *wanted == char,
            Part::Set { negated, ranges } => {
                *negated != ranges.iter().any(|(first, last)| (first..=last).contains(&&char))
            }
        }
    }
}

/// Steps from one to another, both included: `5`, `5..9`, `5..`, `..9`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steps {
    first: i64,
    last: i64,
}

impl FromStr for Steps {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str, default| match text {
            "" => Ok(default),
            text => text.parse().map_err(|_| format!("{text:?} is no step (try 5, 5..9, 5.. or ..9)")),
        };
        let (first, last) = match text.split_once("..") {
            Some((first, last)) => (number(first, i64::MIN)?, number(last.trim_start_matches('='), i64::MAX)?),
            None if text.is_empty() => return Err("no step".to_owned()),
            None => number(text, 0).map(|step| (step, step))?,
        };
        Ok(Steps { first, last })
    }
}

/// Parses smdebug's name of a mode.
pub fn parse_mode(text: &str) -> Result<Mode, String> {
    let found = Mode::ALL.into_iter().find(|mode| mode.name().eq_ignore_ascii_case(text));
    found.ok_or_else(|| format!("{text:?} is no mode (train, eval, predict, global)"))
}

/// What `tensorfs tensors` filters by.
#[derive(Debug)]
pub struct Filter<'a> {
    pub names: &'a [Glob],
    pub steps: Option<Steps>,
    pub mode: Option<Mode>,
    pub dtype: Option<Dtype>,
}

impl Filter<'_> {
    pub fn takes(&self, tensor: &Tensor) -> bool {
        let in_steps = |steps: Steps| tensor.step.is_some_and(|step| (steps.first..=steps.last).contains(&step));
        (self.names.is_empty() || self.names.iter().any(|glob| glob.matches(&tensor.name_text())))
            && self.steps.is_none_or(in_steps)
            && self.mode.is_none_or(|mode| tensor.mode == Some(mode))
            && self.dtype.is_none_or(|dtype| tensor.dtype == dtype)
    }
}

/// Why a file has no tensors that can be listed, or why it could not be read.
pub fn failure(path: &Path, found: &Listing) -> Option<Failure> {
    if let Some(error) = &found.error {
        return Some(Failure::at(path, crate::failure::reason(error)));
    }
    let opaque = matches!(found.format, Format::Opaque | Format::Hdf5);
    opaque.then(|| Failure::at(path, found.reason.as_deref().unwrap_or("no tensors")))
}

/// A file and what is known of its tensors: from the records of its pool if it is sealed, else it is looked into.
pub struct Contents {
    pub file: File,
    recorded: Option<Recorded>,
}

impl Contents {
    pub fn open(place: &Place) -> Result<Contents, Failure> {
        let file = place.open()?;
        let recorded = place.recorded(&file)?.filter(Recorded::has_all_tensors);
        Ok(Contents { file, recorded })
    }

    /// Gives each tensor to `sink`, in the file's own order, with its checksums as far as there are any.
    pub fn tensors(&self, sink: &mut dyn FnMut(Tensor, Vec<(u64, u32)>) -> ControlFlow<()>) -> Listing {
        match &self.recorded {
            Some(recorded) => {
                recorded.each(&mut |entry: TensorEntry| {
                    let checksums = recorded.checksums(&entry);
                    sink(entry.tensor, checksums)
                });
                Listing::of(recorded)
            }
            None => recognise(&self.file, &mut |tensor| sink(tensor, Vec::new())).into(),
        }
    }

    /// The same, but what a program that loads the file would call is always found out, which the records do not say.
    pub fn tensors_and_calls(&self, sink: &mut dyn FnMut(Tensor) -> ControlFlow<()>) -> Listing {
        match &self.recorded {
            Some(recorded) if recorded.summary().is_some_and(|summary| summary.format != Format::Torch) => {
                recorded.each(&mut |entry| sink(entry.tensor));
                Listing::of(recorded)
            }
            _ => recognise(&self.file, sink).into(),
        }
    }
}

/// What a file turned out to be.
pub struct Listing {
    pub format: Format,
    pub tensors: u64,
    pub bad_frames: u64,
    pub reason: Option<String>,
    pub calls: Vec<String>,
    pub error: Option<std::io::Error>,
}

impl Listing {
    /// Of a file with all its tensors in the records.
    fn of(recorded: &Recorded) -> Listing {
        let summary = recorded.summary();
        Listing {
            // It has one, or its tensors would not be there.
            format: summary.as_ref().map_or(Format::Opaque, |summary| summary.format),
            tensors: summary.as_ref().map_or(0, |summary| summary.tensors),
            bad_frames: summary.as_ref().map_or(0, |summary| summary.bad_frames),
            reason: summary.and_then(|summary| summary.reason),
            calls: Vec::new(),
            error: None,
        }
    }
}

impl From<Recognised> for Listing {
    fn from(found: Recognised) -> Self {
        let Recognised { format, tensors, bad_frames, reason, calls, error, .. } = found;
        Listing { format, tensors, bad_frames, reason, calls, error }
    }
}

/// Opens a file and finds the tensor that a person means by `NAME`, `NAME@STEP` or `NAME@last`.
pub fn one(path: &Path, wanted: &str) -> Result<(File, Tensor), Failure> {
    let contents = Contents::open(&Place::of(path)?)?;
    let at_step = wanted.rsplit_once('@').and_then(|(name, step)| match step {
        "last" => Some((name, None)),
        step => Some((name, Some(step.parse::<i64>().ok()?))),
    });
    // A name may have an @ in it: the whole of it goes first.
    let mut whole = Candidates::default();
    let mut stepped = Candidates::default();
    let found = contents.tensors(&mut |tensor, _| {
        let name = tensor.name_text();
        if name == wanted {
            whole.add(tensor, false);
        } else if let Some((wanted, step)) = at_step
            && name == wanted
            && (step.is_none() || step == tensor.step)
        {
            stepped.add(tensor, step.is_none());
        }
        ControlFlow::Continue(())
    });
    if let Some(failure) = failure(path, &found) {
        return Err(failure);
    }
    let file = contents.file;
    let candidates = if whole.count > 0 { whole } else { stepped };
    match (candidates.last, candidates.count) {
        (None, _) => Err(Failure::at(path, format!("no tensor {:?}; `tensorfs tensors` lists what there is", wanted))),
        (Some(tensor), 1) => Ok((file, tensor)),
        (Some(tensor), count) => {
            let name = text::plain(&tensor.name_text());
            let hint = match candidates.steps {
                Some((first, last)) if first != last => {
                    format!("at steps {first} to {last}; say {name}@STEP or {name}@last")
                }
                _ => "with nothing that tells them apart".to_owned(),
            };
            Err(Failure::at(path, format!("{count} tensors are called {name}, {hint}")))
        }
    }
}

/// Tensors of one name: how many, at which steps, and the last one.
#[derive(Default)]
struct Candidates {
    last: Option<Tensor>,
    count: u64,
    steps: Option<(i64, i64)>,
}

impl Candidates {
    /// With `newest`, only those of the highest step count.
    fn add(&mut self, tensor: Tensor, newest: bool) {
        if newest && let Some(last) = &self.last {
            match tensor.step.cmp(&last.step) {
                std::cmp::Ordering::Less => return,
                std::cmp::Ordering::Equal => {}
                std::cmp::Ordering::Greater => *self = Candidates::default(),
            }
        }
        if let Some(step) = tensor.step {
            let (first, last) = self.steps.unwrap_or((step, step));
            self.steps = Some((first.min(step), last.max(step)));
        }
        self.count += 1;
        self.last = Some(tensor);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs() {
        for (glob, yes, no) in [
            ("*", vec!["", "a", "a/b.c"], vec![]),
            ("a*c", vec!["ac", "abc", "abcc"], vec!["a", "acb"]),
            ("*.weight", vec!["x.weight", "x.y.weight", ".weight"], vec!["weight", "x.weights"]),
            ("l?", vec!["l1", "lä"], vec!["l", "l12"]),
            ("l[0-3a]", vec!["l0", "la"], vec!["l4", "lb", "l"]),
            ("l[!0-3]", vec!["l4"], vec!["l0"]),
            ("[]]", vec!["]"], vec!["["]),
            ("[!]]", vec!["["], vec!["]"]),
            ("**a**", vec!["a", "bab"], vec!["b"]),
            ("", vec![""], vec!["a"]),
        ] {
            let glob: Glob = glob.parse().unwrap();
            assert!(yes.iter().all(|name| glob.matches(name)), "{glob:?}");
            assert!(!no.iter().any(|name| glob.matches(name)), "{glob:?}");
        }
        assert!("[a".parse::<Glob>().is_err() && "[".parse::<Glob>().is_err());
        let slow: Glob = "*a".repeat(30).parse().unwrap();
        assert!(!slow.matches(&("a".repeat(10_000) + "b")));
    }

    #[test]
    fn steps() {
        let range = |text: &str| text.parse::<Steps>().ok().map(|steps| (steps.first, steps.last));
        assert_eq!(range("5"), Some((5, 5)));
        assert_eq!(range("5..9"), Some((5, 9)));
        assert_eq!(range("5.."), Some((5, i64::MAX)));
        assert_eq!(range("..9"), Some((i64::MIN, 9)));
        assert_eq!((range(""), range("x"), range("1..x")), (None, None, None));
    }
}
