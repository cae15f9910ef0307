//! Names with wildcards.

use std::str::FromStr;

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
}
