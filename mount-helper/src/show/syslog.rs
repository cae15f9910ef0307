//! Logging to syslog: where a server without a terminal belongs.

use std::ffi::CString;
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;

use log::{Level, Log, Metadata, Record};

use crate::show::failure::reason;
use crate::show::limit::Limit;
use crate::show::log_line::UNHEARD_REPLIES;
use crate::show::log_queue::{Line, LogQueue};

/// Where syslog(3) sends it.
const SOCKET: &str = "/dev/log";

/// Sends what is logged to syslog(3), as `tensorfs[PID]`.
pub struct Syslog {
    limit: Limit,
    queue: Arc<LogQueue>,
}

impl Syslog {
    /// Names this program to syslog(3), which is given what is in the queue. It connects, and reads the time zone, now:
    /// the process may give up the right to.
    pub fn open(queue: Arc<LogQueue>) -> Syslog {
        // SAFETY: openlog keeps the pointer, and the string is static.
        unsafe { libc::openlog(c"tensorfs".as_ptr(), libc::LOG_PID | libc::LOG_NDELAY, libc::LOG_DAEMON) };
        // SAFETY: it reads the environment, which nothing in this program changes.
        unsafe { tzset() };
        Syslog { limit: Limit::default(), queue }
    }
}

// SAFETY: as `<time.h>` declares it.
unsafe extern "C" {
    /// tzset(3).
    fn tzset();
}

/// Gives a line to syslog(3), which may wait for whoever reads its socket.
pub fn send(line: &Line) {
    if let Ok(text) = CString::new(&*line.text) {
        // SAFETY: both strings end in a zero byte, and the format takes exactly one string.
        unsafe { libc::syslog(priority(line.level), c"%s".as_ptr(), text.as_ptr()) };
    }
}

impl Log for Syslog {
    fn enabled(&self, metadata: &Metadata) -> bool {
        metadata.level() <= log::max_level() && metadata.target() != UNHEARD_REPLIES
    }

    fn log(&self, record: &Record) {
        if !self.enabled(record.metadata()) {
            return;
        }
        if let Some(text) = self.limit.line(record) {
            self.queue.add(Line { level: record.level(), text: text.into() });
        }
    }

    fn flush(&self) {}
}

/// Why nothing takes what is sent to syslog(3), which does not say so.
pub fn unheard() -> Option<String> {
    let connected = UnixDatagram::unbound().and_then(|socket| socket.connect(SOCKET));
    connected.err().map(|error| format!("{SOCKET}: {}", reason(&error)))
}

/// The number of a level's priority.
pub fn priority(level: Level) -> libc::c_int {
    match level {
        Level::Error => libc::LOG_ERR,
        Level::Warn => libc::LOG_WARNING,
        Level::Info => libc::LOG_INFO,
        Level::Debug | Level::Trace => libc::LOG_DEBUG,
    }
}
