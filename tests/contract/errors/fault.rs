//! What goes wrong with a call of the host.

use std::time::Duration;

use tensorfs_tests::{Call, Rule};

/// A kind of call, by what it is made on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Target {
    pub call: Known,
    pub on: Files,
}

/// The calls of the matrix, in the order of its rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Known {
    Open,
    Read,
    Write,
    Fdatasync,
    Fsync,
    SyncFileRange,
    Syncfs,
    Fallocate,
    Ftruncate,
    Unlink,
    Rename,
    Link,
    Fstat,
    Lease,
    Register,
}

/// Files of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Files {
    /// Segments and their directories, in the pool and in its tier.
    Segments,
    Log,
    Quarantine,
}

const CALLS: [Known; 15] = [
    Known::Open,
    Known::Read,
    Known::Write,
    Known::Fdatasync,
    Known::Fsync,
    Known::SyncFileRange,
    Known::Syncfs,
    Known::Fallocate,
    Known::Ftruncate,
    Known::Unlink,
    Known::Rename,
    Known::Link,
    Known::Fstat,
    Known::Lease,
    Known::Register,
];

impl Target {
    pub fn all() -> impl Iterator<Item = Target> {
        let on = [Files::Segments, Files::Log, Files::Quarantine];
        CALLS.into_iter().flat_map(move |call| on.map(|on| Target { call, on }))
    }

    /// As in the table.
    pub fn name(self) -> String {
        let call = match self.call {
            Known::SyncFileRange => "sync_file_range".to_owned(),
            other => format!("{other:?}").to_lowercase(),
        };
        match self.on {
            Files::Segments => call,
            Files::Log => format!("{call}, log"),
            Files::Quarantine => format!("{call}, quarantine"),
        }
    }

    /// A rule about it that does nothing yet.
    pub fn rule(self) -> Rule {
        let call = match self.call {
            Known::Open => Call::Open,
            Known::Read => Call::Read,
            Known::Write => Call::Write,
            Known::Fdatasync => Call::Fdatasync,
            Known::Fsync => Call::Fsync,
            Known::SyncFileRange => Call::SyncFileRange,
            Known::Syncfs => Call::Syncfs,
            Known::Fallocate => Call::Fallocate,
            Known::Ftruncate => Call::Ftruncate,
            Known::Unlink => Call::Unlink,
            Known::Rename => Call::Rename,
            Known::Link => Call::Link,
            Known::Fstat => Call::Fstat,
            Known::Lease => Call::Lease,
            Known::Register => Call::Backing,
        };
        Rule::of(call).on(match self.on {
            Files::Segments => "/segments",
            Files::Log => "/pool/log",
            Files::Quarantine => "/quarantine",
        })
    }
}

/// What happens to the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    Once,
    Seconds,
    Good,
    NoSpace,
    NoDescriptor,
    Late,
}

pub const FAULTS: [Fault; 6] =
    [Fault::Once, Fault::Seconds, Fault::Good, Fault::NoSpace, Fault::NoDescriptor, Fault::Late];

/// For how long EIO is given.
pub const SECONDS: Duration = Duration::from_secs(3);

impl Fault {
    /// As in the table.
    pub fn name(self) -> &'static str {
        match self {
            Fault::Once => "EIO once",
            Fault::Seconds => "EIO for 3 s",
            Fault::Good => "EIO for good",
            Fault::NoSpace => "ENOSPC",
            Fault::NoDescriptor => "EMFILE",
            Fault::Late => "5 s late",
        }
    }

    /// Adds it to a rule. ENOSPC and EMFILE are given until the operation is over.
    pub fn on(self, rule: Rule) -> Rule {
        match self {
            Fault::Once => rule.error(libc::EIO).times(1),
            Fault::Seconds | Fault::Good => rule.error(libc::EIO),
            Fault::NoSpace => rule.error(libc::ENOSPC),
            Fault::NoDescriptor => rule.error(libc::EMFILE),
            Fault::Late => rule.held().times(1),
        }
    }
}

/// Whether all is tried.
pub fn at_length() -> bool {
    std::env::var_os("TENSORFS_MATRIX").is_some()
}
