//! What is said of a pool's second copy.

use tensorfs_fs::SecondCopy;

use crate::show::size::humane;
use crate::show::text::{self, count};

/// Where it is, and how far behind.
pub fn lines(copy: &SecondCopy) -> Vec<String> {
    let place = copy.url.as_ref().map_or_else(|| "there is one".to_owned(), |url| text::plain(url));
    let is_as = match copy.seconds_behind {
        None => "nothing was carried yet".to_owned(),
        Some(_) if copy.transactions_behind == 0 => "as the pool is".to_owned(),
        Some(seconds) => {
            format!("as the pool was {seconds} seconds and {} transactions ago", copy.transactions_behind)
        }
    };
    let files = count(copy.files_behind, "file", "files");
    let lacks = (copy.files_behind > 0).then(|| format!("it lacks {} of {files}", humane(copy.bytes_behind)));
    let put = |rate| format!("{} put, at {} a second when it was last", humane(copy.put_bytes), humane(rate));
    let who = if copy.carrier { "a carrier is at work" } else { "no carrier is at work" };
    let did = copy.put_bytes_per_second.map_or_else(|| who.to_owned(), |rate| format!("{who}; {}", put(rate)));
    [format!("{place}: {is_as}")].into_iter().chain(lacks).chain([did]).collect()
}

/// What is wrong with it, or of no use.
pub fn problems(copy: &SecondCopy) -> Vec<String> {
    let unmended = copy.unmended.first().map(|one| format!("its second copy does not mend {}: {}", one.path, one.why));
    let some = (copy.unmended_files > 0).then(|| {
        format!("its second copy does not mend {}", count(copy.unmended_files, "damaged file", "damaged files"))
    });
    problem(copy).into_iter().chain(unmended.or(some)).map(|what| text::plain(&what)).collect()
}

/// What keeps it from being as the pool is.
fn problem(copy: &SecondCopy) -> Option<String> {
    let carried = copy.error.as_ref().map(|error| ("is not carried on", error));
    let (what, error) = carried.or(copy.collect_error.as_ref().map(|error| ("keeps its garbage", error)))?;
    Some(format!("its second copy {what}: {error}"))
}
