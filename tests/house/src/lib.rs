//! Reads the project's own code and says what it sees: which module imports which, what a struct shows, what an
//! operation may call. The tests of this crate hold the code to the order of its rooms; the program `tensorfs-house`
//! shows it to whoever develops.
//!
//! It reads text and compiles nothing, so it also reads a tree that does not compile. `#[cfg(test)]` is left out.

pub mod arrows;
pub mod calls;
pub mod circles;
pub mod names;
pub mod rooms;
pub mod rules;
pub mod source;
pub mod structs;
pub mod supply;
pub mod text;
pub mod workspace;

#[cfg(test)]
mod calls_made_up;
#[cfg(test)]
mod rules_made_up;
