//! `tensorfs trace`: a line for each request of a mount.

use std::thread;
use std::time::Duration;

use crate::ask::requests::{Request, Requests};
use crate::cli::Trace;
use crate::show::failure::Failure;
use crate::show::{clock, output, size, text};

/// So long nothing is asked when nothing has come.
const PAUSE: Duration = Duration::from_millis(50);

/// Of a request that took so many seconds the reason is told.
const SLOW: f64 = 0.01;

/// Runs the command, which ends by a signal, after so many requests, or when nobody reads any more.
pub fn run(arguments: &Trace) -> Result<(), Failure> {
    let mut requests = Requests::of(&arguments.target)?;
    let least = arguments.slow.unwrap_or_default().as_secs_f64();
    let mut left = arguments.count.unwrap_or(u64::MAX);
    while left > 0 && output::is_read() {
        let came = requests.take()?;
        if came.lost > 0 {
            let lost = text::count(came.lost, "request", "requests");
            output::complain(format!("{}: {lost} came too fast to be told of", arguments.target.display()));
        }
        if came.requests.is_empty() {
            thread::sleep(PAUSE);
        }
        let wanted = came.requests.iter().filter(|request| request.seconds >= least);
        for request in wanted.take(usize::try_from(left).unwrap_or(usize::MAX)) {
            left -= 1;
            output::print(&if arguments.json { json(request)? } else { line(request) })?;
        }
    }
    Ok(())
}

fn json(request: &Request) -> Result<String, Failure> {
    serde_json::to_string(request).map(|text| text + "\n").map_err(|error| Failure::new(error.to_string()))
}

/// `12:03:04.123456   300.1ms fsync        python3[123]  /run/model.pt  waited 299.8ms for a commit`
fn line(request: &Request) -> String {
    let path = request.path.clone().unwrap_or_else(|| format!("inode {}", request.ino));
    let (when, took) = (clock::time_of_day(request.time), text::duration(request.seconds));
    let mut said = format!("{when} {took:>9} {:<12} {:<20} {}", request.kind, request.who(), text::plain(&path));
    let by = request.passthrough.map(|kernel| if kernel { "passthrough" } else { "server" }.to_owned());
    let reason = (request.seconds >= SLOW).then(|| request.reason());
    for more in request.bytes.map(size::humane).into_iter().chain(by).chain(request.error.clone()).chain(reason) {
        said = said + "  " + &more;
    }
    text::plain(&said) + "\n"
}
