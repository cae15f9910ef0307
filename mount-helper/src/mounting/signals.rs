//! Signals of the server: SIGTERM and SIGINT ask it to end, SIGHUP is ignored.

use std::thread;

use nix::sys::signal::{SigSet, Signal};

use crate::show::failure::Failure;

/// From now on these signals wait for [`watch`]. Called before other threads start: they inherit it.
pub fn block(signals: &[Signal]) -> Result<(), Failure> {
    let set: SigSet = signals.iter().copied().collect();
    set.thread_block().map_err(|errno| Failure::new(format!("cannot block signals: {}", errno.desc())))
}

/// Calls `stop` for every SIGTERM and SIGINT, in a thread of its own: no code runs inside a signal handler.
pub fn watch(stop: impl Fn(Signal) + Send + 'static) -> Result<(), Failure> {
    let set: SigSet = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP].into_iter().collect();
    thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            loop {
                match set.wait() {
                    Ok(Signal::SIGHUP) => {}
                    Ok(signal) => stop(signal),
                    Err(errno) => log::error!("waiting for signals: {}", errno.desc()),
                }
            }
        })
        .map(drop)
        .map_err(|error| Failure::new(format!("cannot start a thread: {error}")))
}
