//! Crashes at every store of the log's housekeeping, and of the recovery behind it.

use crate::common::*;
use std::collections::BTreeMap;
use tensorfs_layout::ROOT;
use tensorfs_layout::log::Shutdown;

/// Every crash of a history, and crashes of the recoveries behind them, leave the same tree.
fn assert_survives_every_crash(scratch: &Scratch, history: &History, from: usize, expected: &BTreeMap<String, String>) {
    for at in from..=history.len() {
        let seed = at as u64 + 1;
        let images = [
            ("killed", history.killed(at), BOOT),
            ("nothing reached", history.power_lost(at, || false), NEXT_BOOT),
            ("all reached", history.power_lost(at, || true), NEXT_BOOT),
            ("some reached", history.power_lost(at, chance(seed)), NEXT_BOOT),
            ("others reached", history.power_lost(at, chance(seed + 1000)), NEXT_BOOT),
        ];
        for (what, image, boot) in images {
            let what = format!("event {at}, {what}");
            let recovery = assert_whole(scratch, image, boot, expected, &what);
            // Power goes in the middle of that recovery.
            let steps = if boot == BOOT { 1 } else { 4 };
            for step in (0..=recovery.len()).skip(at % steps).step_by(steps) {
                let image = recovery.power_lost(step, chance(seed * 31 + step as u64));
                assert_whole(scratch, image, THIRD_BOOT, expected, &format!("{what}, recovery event {step}"));
            }
        }
    }
}

#[test]
fn a_crash_at_any_store_of_cleaning_or_of_the_recovery_behind_it_loses_nothing() {
    let scratch = Scratch::new(4096);
    let (pool, medium, expected) = churned(&scratch);
    let from = medium.history().len();
    for _ in 0..3 {
        pool.maintain().unwrap();
    }
    drop(pool);
    let history = medium.history();
    assert!(history.len() > from + 10, "nothing was cleaned");
    assert_survives_every_crash(&scratch, &history, from, &expected);
}

#[test]
fn a_crash_at_any_store_of_growth_idling_or_closing_loses_nothing() {
    let scratch = Scratch::new(4096);
    let (pool, medium) = scratch.first_open();
    for n in 0..20 {
        make(&pool, &format!("dir {n}"), DIR);
    }
    let blocks = pool.usage().log_blocks;
    pool.commit(pool.newest()).unwrap();
    let expected = tree(&pool.view());
    let from = medium.history().len();
    // Transactions that change nothing that is seen, until the log has grown.
    while pool.usage().log_blocks == blocks {
        set_uid(&pool, ROOT, 0);
    }
    pool.idle().unwrap();
    pool.close().unwrap();
    drop(pool);
    assert_survives_every_crash(&scratch, &medium.history(), from, &expected);
}

#[test]
fn a_crash_at_any_store_of_opening_a_pool_loses_nothing() {
    let scratch = Scratch::new(4096);
    let (pool, medium, expected) = churned(&scratch);
    pool.close().unwrap();
    drop(pool);
    let (pool, medium) = scratch.open(medium.stored(), BOOT);
    assert_eq!(pool.recovery().kind, Shutdown::Clean);
    drop(pool);
    assert_survives_every_crash(&scratch, &medium.history(), 0, &expected);
}
