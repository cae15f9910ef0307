//! Having the server of a mount give a file its bytes anew: in another tier, or mended. It does so beside, and is asked
//! what came of it.

use std::path::Path;
use std::thread;
use std::time::Duration;

use tensorfs_fs::{IS_WHOLE, Moving, Reply, Request};

use crate::ask::question::{directory, request_about_work, unknown};
use crate::show::failure::Failure;

/// How often to ask what came of it: at first, and at most.
const INTERVAL: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));

/// So often a server that does not know of it is asked anew: it may be this that its servers die of.
const ANEW: usize = 10;

/// Waits until a file has its bytes, or it is known why not. `request` says what is asked for, and whether to begin it;
/// `each` hears how many bytes are there.
pub fn wait(file: &Path, request: impl Fn(bool) -> Request, each: impl Fn(u64)) -> Result<Result<(), String>, Failure> {
    let dir = directory(file);
    let (mut begin, mut anew) = (true, 0);
    let mut pause = INTERVAL.0;
    loop {
        match request_about_work(file, &dir, &request(begin))? {
            Some(Reply::Moving(Moving::Moved)) => return Ok(Ok(())),
            // The server before had done it.
            Some(Reply::Moving(Moving::Refused(why))) if anew > 0 && why == IS_WHOLE => return Ok(Ok(())),
            Some(Reply::Moving(Moving::Refused(why))) => return Ok(Err(why)),
            Some(Reply::Moving(Moving::Working { done, .. })) => each(done),
            // The server has died or was exchanged: the next one begins anew, which does nothing to a file that has
            // its bytes.
            None if !begin && anew < ANEW => {
                (begin, anew) = (true, anew + 1);
                continue;
            }
            _ => return Err(unknown(file)),
        }
        begin = false;
        thread::sleep(pause);
        pause = (pause * 2).min(INTERVAL.1);
    }
}
