//! The rooms of a crate, and which of them may import from which.

use std::fmt;

use crate::arrows::Arrow;
use crate::source::{Crate, Module};

/// The order of a crate's rooms. A room is a module below the root, with all that is in it.
#[derive(Clone, Copy, Debug)]
pub struct Rooms {
    /// The crate's name.
    pub of: &'static str,
    /// From the top down, the rooms of each level, with spaces between them. A room may import from all levels below
    /// its own. `a/b` is a room within a room.
    pub levels: &'static [&'static str],
    /// What rooms may import beside that: `from -> to`. On one level, or from a level below, but then not also back.
    pub also: &'static [&'static str],
}

/// An arrow that the order does not have.
#[derive(Debug)]
pub enum Breach {
    /// From one room to one that it may not import from.
    Back {
        /// Where it is in the code.
        arrow: Arrow,
        /// The room with that code.
        from: String,
        /// The room that it imports from.
        to: String,
    },
    /// A module that the table does not know.
    Nowhere(String),
    /// The table names a room that is not there.
    Missing(String),
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Back { arrow, from, to } => write!(f, "{arrow}: {from} -> {to}"),
            Self::Nowhere(module) => write!(f, "{module}: in no room of the table"),
            Self::Missing(room) => write!(f, "room {room} of the table is not there"),
        }
    }
}

/// The root of a crate, which may import from everywhere and which nobody imports from.
const ROOT: &str = "crate";

impl Rooms {
    fn level(&self, room: &str) -> Option<usize> {
        self.levels.iter().position(|level| level.split_whitespace().any(|name| name == room))
    }

    /// The room that a module is in, if the table has it.
    fn room(&self, module: &Module) -> Option<String> {
        if module.path.is_empty() {
            return Some(ROOT.to_owned());
        }
        (1..=module.path.len())
            .rev()
            .map(|length| module.path[..length].join("/"))
            .find(|room| self.level(room).is_some())
    }

    /// The path of the room that a module is in, if the table has it.
    pub fn room_path(&self, module: &Module) -> Option<Vec<String>> {
        let room = self.room(module)?;
        Some(if room == ROOT { Vec::new() } else { room.split('/').map(str::to_owned).collect() })
    }

    fn allows(&self, from: &str, to: &str) -> bool {
        let also = || {
            self.also
                .iter()
                .any(|arrow| arrow.split_once("->").is_some_and(|(a, b)| a.trim() == from && b.trim() == to))
        };
        if from == to || from == ROOT {
            return true;
        }
        to != ROOT && (self.level(from) < self.level(to) || also())
    }

    /// All arrows of a crate that are against the order.
    pub fn breaches(&self, of: &Crate, arrows: &[Arrow]) -> Vec<Breach> {
        let mut found = Vec::new();
        for module in of.modules.iter().filter(|module| self.room(module).is_none()) {
            // Those in it are not told on their own.
            if module.path.len() == 1 {
                found.push(Breach::Nowhere(format!("{}: {module}", module.file.display())));
            }
        }
        for name in self.levels.iter().flat_map(|level| level.split_whitespace()) {
            if !of.modules.iter().any(|module| module.path.join("/") == name) {
                found.push(Breach::Missing(name.to_owned()));
            }
        }
        for arrow in arrows {
            let (from, to) = (&of.modules[arrow.from], &of.modules[arrow.to]);
            let (Some(from), Some(to)) = (self.room(from), self.room(to)) else { continue };
            if !self.allows(&from, &to) {
                found.push(Breach::Back { arrow: arrow.clone(), from, to });
            }
        }
        found
    }
}
