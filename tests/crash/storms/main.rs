//! Crashes at random instants while writers are at work: of the server, and of a whole machine.

mod guest;
mod kills;
mod lost;
mod machines;
mod outliving;
mod quotas;
mod ranks;
mod takeovers;
