//! Why the bytes of a file cannot be had.

/// Why a file's bytes cannot be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gone {
    /// Its tier was volatile, and the machine was started anew.
    Lost {
        /// The tier.
        tier: String,
    },
    /// Its tier is not there. The bytes are back when it is.
    Missing {
        /// The tier.
        tier: String,
        /// Why.
        reason: String,
    },
    /// They are in a remote, and come when they are asked for.
    Away {
        /// The name of the tier that stands for it.
        tier: String,
    },
    /// It could not be brought in order after a crash, and is left as it is. The next opening of the pool tries again.
    Left {
        /// Why.
        reason: Box<str>,
    },
}

impl std::fmt::Display for Gone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Lost { tier } => write!(f, "lost: tier {tier} was volatile"),
            Self::Missing { tier, reason } => write!(f, "tier {tier} is missing: {reason}"),
            Self::Away { tier } => write!(f, "away: its bytes are in the {tier} yet"),
            Self::Left { reason } => write!(f, "left as a crash left it, for the next mount: {reason}"),
        }
    }
}
