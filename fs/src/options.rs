//! How to serve a pool.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::handover::Handover;

/// When bytes and their records survive a power loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// When `write` returns.
    Write,
    /// When `close` returns.
    Close,
    /// When `fsync` returns; everything else within the commit interval.
    Fsync,
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Write => "write",
            Self::Close => "close",
            Self::Fsync => "fsync",
        })
    }
}

impl FromStr for Durability {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        match word {
            "write" => Ok(Self::Write),
            "close" => Ok(Self::Close),
            "fsync" => Ok(Self::Fsync),
            _ => Err(format!("{word:?} is not one of write, close, fsync")),
        }
    }
}

/// Whether the kernel is to move the bytes of open files itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PassthroughMode {
    /// Where the kernel grants it.
    #[default]
    Auto,
    /// Or else refuse to mount.
    On,
    /// Never.
    Off,
}

impl fmt::Display for PassthroughMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::On => "on",
            Self::Off => "off",
        })
    }
}

impl FromStr for PassthroughMode {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        match word {
            "auto" => Ok(Self::Auto),
            "on" => Ok(Self::On),
            "off" => Ok(Self::Off),
            _ => Err(format!("{word:?} is not one of auto, on, off")),
        }
    }
}

/// Whether the processors are kept from sleeping deeply while requests arrive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LatencyMode {
    /// Where the kernel lets us.
    #[default]
    Auto,
    /// Never.
    Off,
}

impl fmt::Display for LatencyMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Off => "off",
        })
    }
}

impl FromStr for LatencyMode {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        match word {
            "auto" => Ok(Self::Auto),
            "off" => Ok(Self::Off),
            _ => Err(format!("{word:?} is not one of auto, off")),
        }
    }
}

/// What is done for the sake of a remote.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ForRemote {
    /// Where the mount is fuller than so many per cent, files are to leave for the remote.
    pub evict_at: Option<u8>,
    /// The tree goes on to newer ones of the remote that the pool was made from, and nobody else changes it. So often
    /// it is looked for one.
    pub follow: Option<Duration>,
}

/// How to serve a pool.
#[derive(Clone, Debug)]
pub struct Options {
    /// When data survives a power loss; `None` is `close` on dax and `fsync` elsewhere.
    pub durability: Option<Durability>,
    /// How often the background commits.
    pub commit: Duration,
    /// How long a file that is being replaced keeps its old version while its writer neither syncs nor closes it.
    pub replace: Duration,
    /// Reading a file leaves its access time alone.
    pub noatime: bool,
    /// Whether to use kernel passthrough.
    pub passthrough: PassthroughMode,
    /// Whether to keep the processors from sleeping deeply while requests arrive.
    pub latency: LatencyMode,
    /// Threads that read requests.
    pub threads: usize,
    /// Where the filesystem is mounted; for messages and `info`.
    pub mountpoint: PathBuf,
    /// The device number of the mount, major and minor, for the read-ahead setting.
    pub device: Option<(u32, u32)>,
    /// Whether users other than the mounting one are served.
    pub allow_other: bool,
    /// What names and records of users' files may take of the server's memory; `None` is what the machine has.
    pub names: Option<u64>,
    /// What is done for the sake of a remote.
    pub second_copy: ForRemote,
    /// The version of the program, as it tells itself.
    pub version: &'static str,
    /// What the next server takes over should this one die, if there is to be one.
    pub handover: Option<Arc<Handover>>,
}

impl Options {
    /// The commit interval; never no time at all.
    pub(crate) fn interval(&self) -> Duration {
        self.commit.max(Duration::from_millis(1))
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            durability: None,
            commit: Duration::from_secs(1),
            replace: Duration::from_secs(120),
            noatime: false,
            passthrough: PassthroughMode::Auto,
            latency: LatencyMode::Auto,
            threads: 4,
            mountpoint: PathBuf::new(),
            device: None,
            allow_other: false,
            names: None,
            second_copy: ForRemote::default(),
            version: env!("CARGO_PKG_VERSION"),
            handover: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_round_trip() {
        for word in ["write", "close", "fsync"] {
            assert_eq!(word.parse::<Durability>().unwrap().to_string(), word);
        }
        for word in ["auto", "on", "off"] {
            assert_eq!(word.parse::<PassthroughMode>().unwrap().to_string(), word);
        }
        for word in ["auto", "off"] {
            assert_eq!(word.parse::<LatencyMode>().unwrap().to_string(), word);
        }
        assert!("".parse::<Durability>().is_err());
        assert!("on".parse::<LatencyMode>().is_err());
    }
}
