//! Pools that crash again and again: `TENSORFS_CRASHES` times each, and as many pools as `TENSORFS_CRASH_POOLS` says.
//! `TENSORFS_CRASH_POOL=cached:SEED`, or `dax:SEED`, is one alone, until it fails, as a failure names it.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tensorfs_crash::disk::Kind;
use tensorfs_crash::generations::live;

use crate::campaign::seed;

fn number(variable: &str, usual: u64) -> u64 {
    std::env::var(variable).map_or(usual, |text| text.parse().expect("a number"))
}

#[test]
fn what_goes_on_after_each_crash_loses_nothing() {
    if let Ok(one) = std::env::var("TENSORFS_CRASH_POOL") {
        let (kind, seed) = one.split_once(':').expect("a kind and a seed");
        let kind = if kind == "dax" { Kind::Dax } else { Kind::Cached };
        return live(kind, usize::MAX, seed.parse().expect("a number")).unwrap_or_else(|why| panic!("{why}"));
    }
    let (crashes, pools) = (number("TENSORFS_CRASHES", 30), number("TENSORFS_CRASH_POOLS", 8));
    let (next, done) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let pool = next.fetch_add(1, Relaxed);
                    if pool >= pools {
                        break;
                    }
                    let kind = if pool % 2 == 0 { Kind::Cached } else { Kind::Dax };
                    live(kind, crashes as usize, seed() * 1_000_003 + pool).unwrap_or_else(|why| panic!("{why}"));
                    done.fetch_add(crashes, Relaxed);
                }
            });
        }
    });
    println!("{} crashes of {pools} pools, each of which went on", done.into_inner());
}
