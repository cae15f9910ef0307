//! Why something cannot be done.

use std::fmt;

/// A value, or a sentence that says why there is none.
pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Something is not on this machine: what needs it is skipped, which is no failure.
#[derive(Debug)]
pub struct Missing(pub String);

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Missing {}
