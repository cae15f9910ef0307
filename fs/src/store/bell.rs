//! Calls whoever commits in the background.

use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// What it is called for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Call {
    #[default]
    None,
    Commit,
    Stop,
}

/// Calls the thread that commits in the background.
#[derive(Default)]
pub(crate) struct Bell {
    call: Mutex<Call>,
    rung: Condvar,
}

impl Bell {
    /// Has a commit begin at once, and does not wait for it.
    pub fn commit(&self) {
        self.ring(Call::Commit);
    }

    /// There is to be no commit any more.
    pub fn stop(&self) {
        self.ring(Call::Stop);
    }

    fn ring(&self, call: Call) {
        let mut now = self.call.lock();
        if *now != Call::Stop {
            *now = call;
        }
        self.rung.notify_all();
    }

    /// Waits until it is time for a commit; false if there is to be none any more.
    pub fn wait(&self, interval: Duration) -> bool {
        let mut call = self.call.lock();
        if *call == Call::None {
            self.rung.wait_for(&mut call, interval);
        }
        if *call == Call::Commit {
            *call = Call::None;
        }
        *call != Call::Stop
    }
}
