//! What of a pool in use another process sees to be durable: always the tree after some transaction, while the log is
//! written, cleaned and grows.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use tensorfs_layout::check::Committed;
use tensorfs_layout::pool::{CreateOptions, OpenOptions, Pool};
use tensorfs_layout::{Error, Ino, ROOT};

use crate::common::*;

#[test]
fn a_pool_in_use_shows_the_tree_after_a_transaction_that_is_durable() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().join("pool");
    Pool::create(&dir, &CreateOptions { block_size: 4096, ..CreateOptions::default() }).unwrap();
    let pool = Pool::open(&dir, &OpenOptions::default()).unwrap();
    // The tree after each transaction.
    let trees = Mutex::new(BTreeMap::from([(pool.newest(), tree(&pool.view()))]));
    let over = AtomicBool::new(false);
    let (mut looks, mut newest) = (0, pool.horizon());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..1500_u64 {
                // Nobody may see it before it is noted.
                let mut trees = trees.lock().unwrap();
                if n >= 8 {
                    store(&pool, [removal(ROOT, &format!("{}", n - 8))]);
                    trees.insert(pool.newest(), tree(&pool.view()));
                }
                let ino = Ino(pool.edit().next_id());
                store(&pool, [record_of_new(ino), named(ROOT, &format!("{n}"), ino)]);
                trees.insert(pool.newest(), tree(&pool.view()));
                drop(trees);
                pool.commit(pool.newest()).unwrap();
                pool.maintain().unwrap();
            }
            over.store(true, Ordering::SeqCst);
        });
        while !over.load(Ordering::SeqCst) {
            match Committed::read(&dir) {
                Ok(committed) => {
                    assert!(committed.is_in_use() && committed.transaction() >= newest);
                    newest = committed.transaction();
                    let trees = trees.lock().unwrap();
                    let (_, expected) = trees.range(..=newest).next_back().unwrap();
                    assert_eq!(&tree(committed.view()), expected, "after transaction {newest}");
                    looks += 1;
                }
                // It changed faster than it could be read.
                Err(Error::Invalid { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
    });
    assert!(looks > 3, "{looks} looks");
    pool.close().unwrap();
    let expected = tree(&pool.view());
    drop(pool);
    let committed = Committed::read(&dir).unwrap();
    assert!(!committed.is_in_use());
    assert_eq!(tree(committed.view()), expected);
    // One that comes into use meanwhile is noticed.
    committed.check_unchanged().unwrap();
    let pool = Pool::open(&dir, &OpenOptions::default()).unwrap();
    assert!(committed.check_unchanged().is_err());
    // And one that was not closed is for a recovery first.
    drop(pool);
    assert!(matches!(Committed::read(&dir), Err(Error::Invalid { .. })));
}

fn record_of_new(ino: Ino) -> tensorfs_layout::log::Record {
    tensorfs_layout::log::Record::Attributes { ino, attributes: attributes(DIR) }
}

#[test]
fn what_is_not_committed_is_not_seen() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().join("pool");
    Pool::create(&dir, &CreateOptions::default()).unwrap();
    let pool = Pool::open(&dir, &OpenOptions::default()).unwrap();
    let before = tree(Committed::read(&dir).unwrap().view());
    make(&pool, "new", DIR);
    assert_eq!(tree(Committed::read(&dir).unwrap().view()), before);
    pool.commit(pool.newest()).unwrap();
    assert_eq!(tree(Committed::read(&dir).unwrap().view()), tree(&pool.view()));
}
