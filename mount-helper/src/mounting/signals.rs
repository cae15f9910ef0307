//! Signals of the server: SIGTERM and SIGINT ask it to end, SIGQUIT of a keeper to leave the rest to another server,
//! SIGHUP to open its log again, SIGUSR1 and SIGUSR2 to log more or less.

use std::sync::Arc;
use std::thread;

use nix::sys::signal::{SigSet, Signal};

use crate::mounting::keeper::errands::Errands;
use crate::show::failure::Failure;
use crate::show::logging;

/// Those that are no reason to end, at any moment of the server's life.
pub const OF_THE_LOG: [Signal; 3] = [Signal::SIGHUP, Signal::SIGUSR1, Signal::SIGUSR2];

/// Those that ask a server to end.
pub const TO_END: [Signal; 2] = [Signal::SIGTERM, Signal::SIGINT];
/// And one that has a keeper.
pub const TO_END_KEPT: [Signal; 3] = [Signal::SIGTERM, Signal::SIGINT, TO_LEAVE];
/// Another server is to take its place.
pub const TO_LEAVE: Signal = Signal::SIGQUIT;

/// From now on these signals wait for [`watch`]. Called before other threads start: they inherit it.
pub fn block(signals: &[Signal]) -> Result<(), Failure> {
    let set: SigSet = signals.iter().copied().collect();
    set.thread_block().map_err(|errno| Failure::new(format!("cannot block signals: {}", errno.desc())))
}

/// Calls `stop` for every one `to_end`, and does what the others ask for, in a thread of its own: no code runs inside a
/// signal handler. Who has given up the right to open the log has it opened by errand.
pub fn watch(
    to_end: &[Signal],
    errands: Option<Arc<Errands>>,
    stop: impl Fn(Signal) + Send + 'static,
) -> Result<(), Failure> {
    let set: SigSet = to_end.iter().copied().chain(OF_THE_LOG).collect();
    thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            loop {
                match set.wait() {
                    Ok(Signal::SIGHUP) => match &errands {
                        Some(errands) => {
                            let errands = errands.clone();
                            logging::open_again(Some(move || errands.log()));
                        }
                        None => logging::open_again(logging::BY_ITSELF),
                    },
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
