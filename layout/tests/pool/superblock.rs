//! What the superblock says is believed, and refused, with care.

use crate::common::*;
use tensorfs_layout::log::Shutdown;
use tensorfs_layout::{Error, ROOT};

#[test]
fn a_torn_superblock_leaves_the_other_copy() {
    let scratch = Scratch::new(4096);
    let (pool, medium, expected) = churned(&scratch);
    pool.close().unwrap();
    drop(pool);
    for offset in [0, 1 << 20] {
        for bit in (0..512 * 8).step_by(37) {
            let mut image = medium.stored();
            image[offset + bit / 8] ^= 1 << (bit % 8);
            assert_whole(&scratch, image, NEXT_BOOT, &expected, &format!("bit {bit} of the copy at {offset}"));
        }
    }
}

#[test]
fn a_shorter_log_is_refused_and_a_longer_one_is_an_interrupted_growth() {
    let scratch = Scratch::new(4096);
    let (pool, medium, expected) = churned(&scratch);
    drop(pool);
    let image = medium.stored();
    for len in [0, 1, 511, 512, 4096, 1 << 20, (1 << 20) + 512, 2 << 20, image.len() - 4096, image.len() - 1] {
        let (opened, medium) = scratch.try_open(image[..len].to_vec(), BOOT);
        assert!(matches!(opened.unwrap_err(), Error::NotAPool { .. }), "{len} bytes");
        assert_eq!(medium.stored(), image[..len]);
    }
    let mut longer = image;
    longer.extend_from_slice(&[0x5a; 10_000]);
    let (pool, medium) = scratch.open(longer, BOOT);
    let blocks = pool.usage().log_blocks;
    while pool.usage().log_blocks == blocks {
        set_uid(&pool, ROOT, 0);
    }
    for _ in 0..100 {
        set_uid(&pool, ROOT, 0);
    }
    drop(pool);
    assert_whole(&scratch, medium.stored(), BOOT, &expected, "grown over what was left behind the end");
}

/// Changes both superblocks of an image.
fn patch_superblocks(image: &mut [u8], patch: impl Fn(&mut [u8])) {
    for offset in [0, 1 << 20] {
        let copy = &mut image[offset..offset + 512];
        patch(copy);
        let crc = crc32c::crc32c(&copy[..508]);
        copy[508..].copy_from_slice(&crc.to_le_bytes());
    }
}

#[test]
fn features_that_forbid_writing_are_heeded_by_recovery_too() {
    let scratch = Scratch::new(4096);
    let (pool, medium) = scratch.first_open();
    make(&pool, "a", DIR);
    pool.commit(pool.newest()).unwrap();
    make(&pool, "b", DIR);
    let mut image = medium.after_power_loss(|| true);
    drop(pool);
    patch_superblocks(&mut image, |copy| copy[24] = 1);
    for boot in [BOOT, NEXT_BOOT] {
        let (pool, medium) = scratch.open(image.clone(), boot);
        assert!(pool.is_read_only().is_some());
        assert!(medium.stored() == image, "the log was written to");
    }
}

#[test]
fn a_superblock_from_anybody_costs_no_more_memory_than_a_pool_has() {
    let scratch = Scratch::new(4096);
    let (pool, medium) = scratch.first_open();
    pool.close().unwrap();
    drop(pool);
    // The number of blocks, their size, the sequence, and the count of unsafe shutdowns, which is only a count.
    let gibibyte = (1u32 << 30).to_le_bytes();
    for (at, value) in [(164, &[0xff; 4][..]), (160, &gibibyte), (40, &[0xff; 8]), (176, &[0xff; 8])] {
        let mut image = medium.stored();
        patch_superblocks(&mut image, |copy| copy[at..at + value.len()].copy_from_slice(value));
        let (opened, _) = scratch.try_open(image, NEXT_BOOT);
        assert_eq!(opened.is_ok(), at == 176, "field at {at}");
    }
    let mut image = medium.stored();
    patch_superblocks(&mut image, |copy| {
        copy[8] = 2;
        copy[160..168].fill(0xff);
    });
    let (opened, _) = scratch.try_open(image, NEXT_BOOT);
    assert!(matches!(opened.unwrap_err(), Error::Unsupported { .. }), "a later version may count in its own way");
}

#[test]
fn a_boot_that_is_not_known_is_never_the_same_boot() {
    let scratch = Scratch::new(4096);
    let (pool, medium) = scratch.open(scratch.log(), [0; 16]);
    make(&pool, "durable", DIR);
    pool.commit(pool.newest()).unwrap();
    make(&pool, "not durable", DIR);
    let image = medium.stored();
    drop(pool);
    let (pool, _) = scratch.open(image, [0; 16]);
    assert_eq!(pool.recovery().kind, Shutdown::PowerLoss);
}
