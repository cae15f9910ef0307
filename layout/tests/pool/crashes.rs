//! Crashes at every store of the log's housekeeping, and of the recovery behind it.

use crate::common::*;
use std::collections::BTreeMap;
use tensorfs_layout::ROOT;
use tensorfs_layout::log::{Shutdown, Transaction};

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

/// Crashes one after the other, in the middle of cleaning, each of which the next server goes on from: what was cleaned
/// and not covered is cleaned a second time, also where the blocks beside it were cleaned before.
#[test]
fn what_is_cleaned_again_after_each_crash_leaves_nothing_missing() {
    let crashes = std::env::var("TENSORFS_CRASHES").map_or(1500, |crashes| crashes.parse().expect("a number"));
    let scratch = Scratch::new(4096);
    let (pool, medium, expected) = churned(&scratch);
    drop(pool);
    let (mut image, mut expected) = (medium.stored(), Some(expected));
    let (mut boot, mut bit) = (1_u128, chance(7));
    let mut number = move |bits: u32| (0..bits).fold(0_usize, |number, _| number * 2 + usize::from(bit()));
    for crash in 0..crashes {
        let (pool, medium) = scratch.open(image, boot.to_le_bytes());
        assert_eq!(pool.is_read_only(), None, "crash {crash}");
        assert!(expected.is_none_or(|expected| tree(&pool.view()) == expected), "crash {crash}");
        for round in 0..number(5) {
            let n = number(5) % 24;
            let live = pool.view().lookup(ROOT, format!("live {n}").as_bytes()).unwrap();
            set_uid(&pool, live, round as u32);
            let name = format!("gone {n}");
            let there = pool.view().lookup(ROOT, name.as_bytes());
            match there {
                _ if number(2) > 0 => {}
                Some(ino) => {
                    let mut edit = pool.edit();
                    edit.store(Transaction::new(0).with(removal(ROOT, &name))).unwrap();
                    edit.reap(ino);
                }
                None => drop(make(&pool, &name, DIR)),
            }
        }
        let is_durable = number(1) == 0;
        if is_durable {
            pool.commit(pool.newest()).unwrap();
        }
        let (before, from) = (tree(&pool.view()), medium.history().len());
        for _ in 0..number(2) {
            pool.maintain().unwrap();
        }
        drop(pool);
        let history = medium.history();
        let at = from + number(8) % (history.len() + 1 - from);
        let is_killed = number(3) > 0;
        image = if is_killed { history.killed(at) } else { history.power_lost(at, chance(crash + 1)) };
        boot += u128::from(!is_killed);
        expected = (is_killed || is_durable).then_some(before);
    }
}
