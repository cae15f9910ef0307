//! Work on several threads, which ends before its caller goes on.

use std::sync::atomic::{AtomicUsize, Ordering};

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
    on_threads(threads, count, work)
}

/// As [`parallel`], for work that waits for a disk more than for a processor.
pub(crate) fn overlapping<T: Send>(
    count: usize,
    share: usize,
    work: impl Fn(usize) -> std::io::Result<T> + Sync,
) -> std::io::Result<Vec<T>> {
    match count.div_ceil(share).min(8) {
        0 | 1 => (0..count).map(work).collect(),
        threads => on_threads(threads, count, work),
    }
}

fn on_threads<T: Send>(
    threads: usize,
    count: usize,
    work: impl Fn(usize) -> std::io::Result<T> + Sync,
) -> std::io::Result<Vec<T>> {
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<(usize, std::io::Result<T>)>> = Mutex::new(Vec::with_capacity(count));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= count {
                        break;
                    }
                    let result = work(index);
                    results.lock().push((index, result));
                }
            });
        }
    });
    let mut results = results.into_inner();
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}
