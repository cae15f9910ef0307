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
}

impl std::fmt::Display for Gone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Lost { tier } => write!(f, "lost: tier {tier} was volatile"),
            Self::Missing { tier, reason } => write!(f, "tier {tier} is missing: {reason}"),
        }
    }
}
