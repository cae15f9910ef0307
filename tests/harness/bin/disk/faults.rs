//! Which requests fail or are slow.

use std::collections::HashMap;
use std::ops::Range;
use std::time::Duration;

/// What is asked of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    Read,
    Write,
    Flush,
}

impl Kind {
    /// From its name.
    pub fn of(name: &str) -> Result<Kind, String> {
        match name {
            "read" => Ok(Kind::Read),
            "write" => Ok(Kind::Write),
            "flush" => Ok(Kind::Flush),
            _ => Err(format!("{name}: neither read, write nor flush")),
        }
    }
}

struct Rule {
    kind: Kind,
    bytes: Range<u64>,
    /// How many more fail; none: all.
    left: Option<u64>,
    text: Option<Vec<u8>>,
}

/// What fails and what is slow.
#[derive(Default)]
pub struct Faults {
    rules: Vec<Rule>,
    slow: HashMap<Kind, Duration>,
    failed: HashMap<Kind, u64>,
}

impl Faults {
    pub fn fail(&mut self, kind: Kind, bytes: Range<u64>, times: u64, text: Option<Vec<u8>>) {
        self.rules.push(Rule { kind, bytes, left: Some(times).filter(|times| *times > 0), text });
    }

    pub fn slow(&mut self, kind: Kind, by: Duration) {
        self.slow.insert(kind, by);
    }

    pub fn work(&mut self) {
        self.rules.clear();
        self.slow.clear();
    }

    pub fn failed(&self, kind: Kind) -> u64 {
        self.failed.get(&kind).copied().unwrap_or_default()
    }

    /// Whether this request fails, and how much later it is answered.
    pub fn ask(&mut self, kind: Kind, bytes: Range<u64>, data: &[u8]) -> (bool, Duration) {
        let touches = |rule: &Rule| {
            kind == Kind::Flush
                || rule.bytes.start < bytes.end
                    && bytes.start < rule.bytes.end
                    && text_is_in(rule.text.as_deref(), data)
        };
        let rule = self.rules.iter_mut().find(|rule| rule.kind == kind && rule.left != Some(0) && touches(rule));
        let fails = rule.is_some();
        if let Some(left) = rule.and_then(|rule| rule.left.as_mut()) {
            *left -= 1;
        }
        *self.failed.entry(kind).or_default() += u64::from(fails);
        (fails, self.slow.get(&kind).copied().unwrap_or_default())
    }
}

fn text_is_in(text: Option<&[u8]>, data: &[u8]) -> bool {
    text.is_none_or(|text| data.windows(text.len()).any(|window| window == text))
}
