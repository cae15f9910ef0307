//! What the program says: to people, as text of 80 columns, and to the log.

pub mod clock;
pub mod colours;
pub mod failure;
pub mod following;
pub mod info;
mod limit;
pub mod log_file;
mod log_line;
mod log_queue;
pub mod logging;
pub mod metrics;
pub mod output;
pub mod progress;
pub mod report;
pub mod second_copy;
pub mod size;
mod syslog;
pub mod table;
pub mod text;

/// What was built, as far as the build knew.
pub const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), env!("TENSORFS_COMMIT"));
