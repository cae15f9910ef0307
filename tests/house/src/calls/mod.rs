//! What a function may call, and so what an operation can reach.
//!
//! Nothing is compiled, so this is an approximation from above, and it has holes; [`HOW`] says where.

mod bodies;
mod functions;
mod types;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::names::Names;
use bodies::Body;
use functions::Functions;
pub use functions::{FnId, Function};

/// How it is done, for whoever reads its numbers.
pub const HOW: &str = "\
It is made from the text alone, and says what may be called, not what is:

* A method call counts for the methods of that name and number of arguments of the receiver's type, where
  that can be told: from `self`, from the types of fields, parameters, constants and results, from patterns,
  through references, `Arc`, `Box`, locks and their guards, `Option`, `Result`, the usual iterators, and from
  what a function gives to a closure that it is passed. Where it cannot be told, the call counts for every
  method of that name and number of arguments in the crate.
* A call through a trait of the crate counts for all of its implementations.
* A function that is named without being called counts as called. A closure is part of the function that it
  stands in, and so is what another thread is given to run.
* The arguments of a macro are read as expressions where they are such; otherwise every name counts that is
  followed by a bracket. What a macro of the crate itself expands to is not followed.
* Not followed: other crates, and what they call back; calls that nobody writes (drop, operators, formatting,
  iteration by `for`); what other threads do with what is put into a queue.
* A function takes a lock if it calls lock, read, write, try_lock, try_read, try_write or upgradable_read
  without an argument on something that is no type of the crate, or lock or try_lock on something that is.";

/// What a crate's functions call.
pub struct Calls {
    /// All functions.
    pub functions: Vec<Function>,
    calls: Vec<BTreeSet<FnId>>,
    locks: Vec<Vec<String>>,
    /// Method calls on a receiver whose type is not known and which some method of the crate has the name for, and all
    /// method calls.
    pub guessed: (usize, usize),
}

/// What one function reaches.
pub struct Reach {
    /// Each function that is reached, with the one by which it was reached first; the entry is reached by itself.
    pub by: BTreeMap<FnId, FnId>,
}

impl Calls {
    /// Reads all functions of a crate.
    pub fn of(names: &Names<'_>) -> Self {
        let functions = Functions::new(names);
        let mut calls = Vec::new();
        let mut locks = Vec::new();
        let mut guessed = (0, 0);
        for id in 0..functions.all.len() {
            let body = Body::read(&functions, id);
            calls.push(body.calls);
            locks.push(body.locks);
            guessed = (guessed.0 + body.guessed, guessed.1 + body.methods);
        }
        Self { functions: functions.all.into_iter().map(|of| of.shown).collect(), calls, locks, guessed }
    }

    /// Functions of a name: `name`, or `Type::name`.
    pub fn find(&self, name: &str) -> Vec<FnId> {
        let matches = |of: &Function| match name.rsplit_once("::") {
            Some((owner, name)) => of.name == name && of.owner.as_deref() == Some(owner),
            None => of.name == name,
        };
        (0..self.functions.len()).filter(|id| self.functions[*id].has_body && matches(&self.functions[*id])).collect()
    }

    /// All that a function may call, and what that may call, and so on; the function itself too.
    pub fn reach(&self, entry: FnId) -> Reach {
        let mut by = BTreeMap::from([(entry, entry)]);
        let mut next = VecDeque::from([entry]);
        while let Some(at) = next.pop_front() {
            for &to in &self.calls[at] {
                if self.functions[to].has_body {
                    by.entry(to).or_insert_with(|| {
                        next.push_back(to);
                        at
                    });
                }
            }
        }
        Reach { by }
    }

    /// The locks that a function itself takes, as they are written.
    pub fn locks(&self, of: FnId) -> &[String] {
        &self.locks[of]
    }
}
