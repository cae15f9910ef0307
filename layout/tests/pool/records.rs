//! Records and transactions that are refused, since they could not be read back.

use crate::common::*;
use tensorfs_layout::log::{Origin, Record};
use tensorfs_layout::{Error, ROOT};

/// Proves P3.
#[test]
fn a_record_that_could_not_be_read_back_is_refused() {
    let scratch = Scratch::new(1 << 20);
    let (pool, medium) = scratch.first_open();
    let (ino, segment) = make_file(&pool, "f", b"bytes");
    let link = make(&pool, "l", libc::S_IFLNK | 0o777);
    let long = |len: usize| -> Box<[u8]> { vec![b'n'; len].into() };
    let records = [
        named(ROOT, "", ino),
        named(ROOT, ".", ino),
        named(ROOT, "..", ino),
        named(ROOT, "a/b", ino),
        named(ROOT, "a\0b", ino),
        Record::Name { dir: ROOT, name: long(256), ino },
        Record::Removal { dir: ROOT, name: long(70_000) },
        Record::Target { ino: link, target: long(70_000) },
        Record::Xattr { ino, name: long(256), value: long(1) },
        Record::Xattr { ino, name: long(1), value: long(65_537) },
        Record::XattrRemoval { ino, name: long(0) },
        Record::Data { ino, segment, offset: u64::MAX, len: 2, allocated: 0, origin: Origin::default() },
        Record::Truncation { ino, segment, offset: u64::MAX, len: 2, allocated: 0, cut_from: 0 },
    ];
    for record in records {
        let newest = pool.newest();
        // Also when it is not the first of its chain.
        let first = match record.ino() {
            ROOT => named(ROOT, "fine", ino),
            ino => Record::Xattr { ino, name: long(3), value: long(3) },
        };
        let short = format!("{record:?}").chars().take(60).collect::<String>();
        assert!(try_store(&pool, [record.clone()]).is_err(), "{short}");
        assert!(try_store(&pool, [first, record]).is_err(), "{short}");
        assert_eq!(pool.newest(), newest);
    }
    let expected = tree(&pool.view());
    drop(pool);
    assert_whole(&scratch, medium.stored(), BOOT, &expected, "after refusals");
}

#[test]
fn a_transaction_of_more_records_than_a_frame_counts_is_refused() {
    let scratch = Scratch::new(1 << 23);
    let (pool, _) = scratch.first_open();
    let (ino, _) = make_file(&pool, "f", b"bytes");
    let records = (0..70_000).map(|_| Record::XattrRemoval { ino, name: b"user.x".as_slice().into() });
    assert!(matches!(try_store(&pool, records), Err(Error::TooLarge { .. })));
}
