//! What is said of a mount that goes on to newer trees of its remote.

use tensorfs_fs::FollowInfo;

use crate::show::clock;

/// After so many seconds without a look that found something out, and after so many times as it is looked, something is
/// wrong: of who looks nothing is heard.
const SILENCE: f64 = 120.0;
const TIMES: f64 = 6.0;

/// Where, which tree is here, and how it was looked last.
pub fn lines(info: &FollowInfo) -> Vec<String> {
    let mut lines: Vec<String> = info.url.iter().cloned().collect();
    lines.push(match (info.batch, info.batch_time) {
        (Some(batch), Some(time)) => format!("batch {batch}, of {}", clock::utc(time)),
        _ => "nobody has looked yet since this server began".to_owned(),
    });
    if info.partly {
        lines.push("not all of a newer batch is here yet".to_owned());
    }
    if info.looked.is_some() {
        lines.push(format!("looked for a newer one {:.0} s ago", info.unknown_seconds));
    }
    lines.extend(info.error.iter().cloned());
    lines
}

/// What is wrong with it.
pub fn problems(info: &FollowInfo) -> Vec<String> {
    let is_silent = info.unknown_seconds > SILENCE.max(TIMES * info.every_seconds);
    let silent = is_silent.then(|| "it was not looked for long whether there is a newer tree".to_owned());
    let error = info.error.as_ref().map(|error| format!("the remote is not followed: {error}"));
    error.or(silent).into_iter().collect()
}
