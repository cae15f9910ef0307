//! Which tensors of a file are meant: by name, step, mode and type.

use std::str::FromStr;

use tensorfs_formats::{Dtype, Mode, Tensor};

use crate::tensors::glob::Glob;

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
    names: &'a [Glob],
    steps: Option<Steps>,
    mode: Option<Mode>,
    dtype: Option<Dtype>,
}

impl<'a> Filter<'a> {
    /// Takes tensors with one of the names (no names: any), in these steps, of this mode and type.
    pub fn new(names: &'a [Glob], steps: Option<Steps>, mode: Option<Mode>, dtype: Option<Dtype>) -> Self {
        Filter { names, steps, mode, dtype }
    }

    /// Whether a tensor is one of those that are meant.
    pub fn takes(&self, tensor: &Tensor) -> bool {
        let in_steps = |steps: Steps| tensor.step.is_some_and(|step| (steps.first..=steps.last).contains(&step));
        (self.names.is_empty() || self.names.iter().any(|glob| glob.matches(&tensor.name_text())))
            && self.steps.is_none_or(in_steps)
            && self.mode.is_none_or(|mode| tensor.mode == Some(mode))
            && self.dtype.is_none_or(|dtype| tensor.dtype == dtype)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
