//! Signals of the server: SIGTERM and SIGINT ask it to end, SIGHUP to open its log again, SIGUSR1 and SIGUSR2 to log
//! more or less.

use std::thread;

use nix::sys::signal::{SigSet, Signal};

use crate::show::failure::Failure;
use crate::show::logging;

/// Those that are no reason to end, at any moment of the server's life.
pub const OF_THE_LOG: [Signal; 3] = [Signal::SIGHUP, Signal::SIGUSR1, Signal::SIGUSR2];

/// From now on these signals wait for [`watch`]. Called before other threads start: they inherit it.
pub fn block(signals: &[Signal]) -> Result<(), Failure> {
    let set: SigSet = signals.iter().copied().collect();
    set.thread_block().map_err(|errno| Failure::new(format!("cannot block signals: {}", errno.desc())))
}

/// Calls `stop` for every SIGTERM and SIGINT, and does what the others ask for, in a thread of its own: no code runs
/// inside a signal handler.
pub fn watch(stop: impl Fn(Signal) + Send + 'static) -> Result<(), Failure> {
    let set: SigSet = [Signal::SIGTERM, Signal::SIGINT].into_iter().chain(OF_THE_LOG).collect();
    thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            loop {
                match set.wait() {
                    Ok(Signal::SIGHUP) => logging::open_again(),
                    Ok(Signal::SIGUSR1) => logging::change_level(true),
                    Ok(Signal::SIGUSR2) => logging::change_level(false),
                    Ok(signal) => stop(signal),
                    Err(errno) => log::error!("waiting for signals: {}", errno.desc()),
                }
            }
        })
        .map(drop)
        .map_err(|error| Failure::new(format!("cannot start a thread: {error}")))
}
