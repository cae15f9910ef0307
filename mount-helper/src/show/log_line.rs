//! What of a log record is said, wherever it goes.

use log::Record;

use crate::show::failure::one_line;

/// The module of fuser that logs, as an error, every reply that the kernel does not want any more: the client was
/// interrupted meanwhile. It logs nothing else.
pub const UNHEARD_REPLIES: &str = "fuser::reply";

/// Whatever is logged, one line each.
pub fn line(record: &Record) -> String {
    one_line(&record.args().to_string())
}
