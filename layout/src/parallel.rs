//! Work on several threads, which ends before its caller goes on.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::Builder;

use parking_lot::Mutex;

/// Runs `work` for every index below `count`, on as many threads as there are processors, each of which is worth it for
/// `share` of them.
pub(crate) fn parallel<T: Send>(
    count: usize,
    share: usize,
    work: impl Fn(usize) -> std::io::Result<T> + Sync,
) -> std::io::Result<Vec<T>> {
    let most = count.div_ceil(share).min(8);
    if most <= 1 {
        return (0..count).map(work).collect();
    }
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(most);
    on_threads(threads, Builder::new, count, work)
}

/// As [`parallel`], for work that waits for a disk more than for a processor.
pub(crate) fn overlapping<T: Send>(
    count: usize,
    share: usize,
    work: impl Fn(usize) -> std::io::Result<T> + Sync,
) -> std::io::Result<Vec<T>> {
    match count.div_ceil(share).min(8) {
        0 | 1 => (0..count).map(work).collect(),
        threads => on_threads(threads, Builder::new, count, work),
    }
}

fn on_threads<T: Send>(
    threads: usize,
    thread: impl Fn() -> Builder,
    count: usize,
    work: impl Fn(usize) -> std::io::Result<T> + Sync,
) -> std::io::Result<Vec<T>> {
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<(usize, std::io::Result<T>)>> = Mutex::new(Vec::with_capacity(count));
    let share = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= count {
                break;
            }
            let result = work(index);
            results.lock().push((index, result));
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            // Where there is no thread to be had, those that there are do its part.
            if thread().spawn_scoped(scope, share).is_err() {
                break;
            }
        }
        share();
    });
    let mut results = results.into_inner();
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_is_done_where_no_thread_is_to_be_had() {
        let none = || Builder::new().stack_size(1 << 60);
        assert!(none().spawn(|| ()).is_err());
        assert_eq!(on_threads(8, none, 20, Ok).unwrap(), (0..20).collect::<Vec<_>>());
        assert_eq!(on_threads(8, Builder::new, 20, Ok).unwrap(), (0..20).collect::<Vec<_>>());
    }
}
