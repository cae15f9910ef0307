//! How far a remote's tree is behind the pool's: files, and bytes of them.

use serde::{Deserialize, Serialize};
use tensorfs_layout::tree::{FileChain, Object, Run, View};

use crate::carry::left_out::LeftOut;
use crate::repository::{Content, Part, State, Tree};

/// Files of which a remote has not all bytes, and what a carrier has to look at of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Behind {
    /// How many.
    #[serde(rename = "files_behind")]
    pub files: u64,
    /// Their bytes that it has not, as far as their records tell: what was moved or thawed may turn out to be there.
    #[serde(rename = "bytes_behind")]
    pub bytes: u64,
}

/// How far a remote is behind, and how it comes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Pace {
    /// How far it was behind the pool when the carrier looked last.
    #[serde(flatten)]
    pub behind: Behind,
    /// Bytes that were put since the remote was set.
    pub put_bytes: u64,
    /// Bytes a second that were put, when there were some last.
    pub put_bytes_per_second: Option<u64>,
}

impl Behind {
    /// Of a tree of this very pool, or of a remote that has none of it yet.
    pub fn of((view, out): (&View, &LeftOut), tree: Option<&Tree>) -> Self {
        let carried = view.objects().filter(|(ino, _)| out.keeps(*ino));
        let files = carried.map(|(ino, object)| {
            let before = tree.and_then(|tree| tree.entry(ino.0)?.file.as_ref());
            Self::of_file((view, object), before)
        });
        files.fold(Self::default(), Self::and)
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
        let files = tree.entries().filter_map(|entry| entry.file.as_ref());
        files.map(Self::lacking).fold(Self::default(), Self::and)
    }

    fn lacking(content: &Content) -> Self {
        match content.state {
            State::Whole => Self::default(),
            State::Open | State::Damaged => Self { files: 1, bytes: content.size.saturating_sub(told(content)) },
        }
    }

    fn and(self, other: Self) -> Self {
        Self { files: self.files.saturating_add(other.files), bytes: self.bytes.saturating_add(other.bytes) }
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
