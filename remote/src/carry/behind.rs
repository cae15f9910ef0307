//! How far a remote's tree is behind the pool's: files, and bytes of them.

use serde::{Deserialize, Serialize};
use tensorfs_layout::tree::{FileChain, Object, Run, View};

use crate::carry::left_out::LeftOut;
use crate::repository::{Content, Part, State, Tree};

/// Files of which a remote has not all bytes, and what a carrier has to look at of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Behind {
    /// How many.
    pub files: u64,
    /// Their bytes that it has not, as far as their records tell: what was moved or thawed may turn out to be there.
    pub bytes: u64,
}

impl Behind {
    /// Of a tree of this very pool, or of a remote that has none of it yet.
    pub fn of((view, out): (&View, &LeftOut), tree: Option<&Tree>) -> Self {
        let mut sum = Self::default();
        for (ino, object) in view.objects().filter(|(ino, _)| out.keeps(*ino)) {
            let before = tree.and_then(|tree| tree.entry(ino.0)?.file.as_ref());
            sum.add(Self::of_file((view, object), before));
        }
        sum
    }

    /// Of one file, given what the remote has of it.
    pub fn of_file((view, object): (&View, &Object), before: Option<&Content>) -> Self {
        let Some(chain) = object.chain() else { return Self::default() };
        let segment = object.attributes.segment.unwrap_or_default();
        // What has left for this remote is there.
        if view.remote().is_some_and(|(number, tier)| tier.is_own_remote() && number == segment.tier()) {
            return Self::default();
        }
        let segment = segment.0;
        match before {
            Some(before) if before.segment == segment && before.version == chain.version() => Self::lacking(before),
            Some(before) if before.segment == segment => Self { files: 1, bytes: newer(chain, before) },
            _ => Self { files: 1, bytes: chain.size() },
        }
    }

    /// What is lacking in a tree that is as the pool's was: files that were not at rest, or are damaged.
    pub fn of_tree(tree: &Tree) -> Self {
        let mut sum = Self::default();
        tree.entries().filter_map(|entry| entry.file.as_ref()).for_each(|file| sum.add(Self::lacking(file)));
        sum
    }

    fn lacking(content: &Content) -> Self {
        match content.state {
            State::Whole => Self::default(),
            State::Open | State::Damaged => Self { files: 1, bytes: content.size.saturating_sub(told(content)) },
        }
    }

    fn add(&mut self, other: Self) {
        self.files += other.files;
        self.bytes = self.bytes.saturating_add(other.bytes);
    }

    /// Less what was looked at by now.
    pub fn without(self, other: Self) -> Self {
        Self { files: self.files.saturating_sub(other.files), bytes: self.bytes.saturating_sub(other.bytes) }
    }
}

/// Bytes of a file, from its first one on, that were told of.
fn told(content: &Content) -> u64 {
    content.parts.iter().map(Part::len).fold(0, u64::saturating_add)
}

/// Bytes of runs that are others than those which were told of, or stand behind these.
fn newer(chain: &FileChain, before: &Content) -> u64 {
    let told = told(before);
    let of_run = |run: &Run| match run.version() > before.version {
        true => run.len,
        false => run.end().saturating_sub(run.offset.max(told)).min(run.len),
    };
    chain.runs().iter().map(of_run).fold(0, u64::saturating_add)
}
