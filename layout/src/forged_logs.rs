//! Tests: logs that somebody forged who knows the pool's secret.

use proptest::prelude::*;

use crate::check::inspect::inspect;
use crate::ids::{Ino, ROOT};
use crate::log::any_record::{number, record};
use crate::log::block;
use crate::log::file::{open_log, open_pool};
use crate::log::frame;
use crate::log::record::Record;
use crate::log::superblock::{BLOCKS_OFFSET, Superblock};
use crate::log::transaction::Transaction;
use crate::medium;
use crate::pool::create::CreateOptions;
use crate::pool::open::OpenOptions;
use crate::pool::opened::Pool;

#[derive(Clone, Debug)]
struct Forged {
    header: block::Header,
    frames: Vec<(frame::Header, Vec<(Record, u64)>)>,
}

fn forged() -> impl Strategy<Value = Forged> {
    let header = (number(), number()).prop_map(|(incarnation, first)| (incarnation.max(1), first));
    let numbers = (number(), number(), number(), number());
    let frame = (numbers, prop::collection::vec((record(), number()), 0..4), any::<bool>());
    let frames = prop::collection::vec(frame, 0..4);
    (header, frames).prop_map(|((incarnation, first), frames)| Forged {
        header: block::Header { incarnation, first, index: 0 },
        frames: frames
            .into_iter()
            .map(|((id, horizon, proposal, next_id), records, pool)| {
                let flags = if pool { frame::FLAG_POOL } else { 0 };
                let (records_count, id) = (records.len() as u16, id.max(1));
                let header = frame::Header {
                    id,
                    horizon,
                    proposal,
                    next_id,
                    records: records_count,
                    flags,
                    ..Default::default()
                };
                (header, records)
            })
            .collect(),
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whoever knows the pool's secret can write a log with right checksums that says anything.
    #[test]
    fn no_forged_log_breaks_recovery(
        blocks in prop::collection::vec(forged(), 1..4),
        same_boot in any::<bool>(),
        in_order in any::<bool>(),
    ) {
        let mut id = 1;
        let dir = tempfile::tempdir().unwrap();
        let pool = dir.path().join("pool");
        Pool::create(&pool, &CreateOptions { block_size: 16384, ..CreateOptions::default() }).unwrap();
        let first = OpenOptions { boot_id: Some([1; 16]), ..OpenOptions::default() };
        // Left open, as by a killed server.
        drop(Pool::open(&pool, &first).unwrap());
        {
            let medium = medium::open(open_log(&open_pool(&pool).unwrap(), true).unwrap()).unwrap();
            let (superblock, _) = Superblock::read(&pool, &*medium).unwrap();
            for (index, forged) in blocks.iter().enumerate().map(|(index, forged)| (index + 1, forged)) {
                let mut header = block::Header { index: index as u32, ..forged.header };
                if in_order {
                    header = block::Header { incarnation: index as u64 + 1, first: id + 1, ..header };
                }
                let seed = superblock.seed(header.incarnation);
                let mut bytes = block::encode(header, seed).to_vec();
                for (header, records) in &forged.frames {
                    let mut frame = vec![0; frame::HEADER];
                    for (record, seq) in records {
                        record.encode(*seq, &mut frame);
                    }
                    if bytes.len() + frame.len() > 16384 {
                        break;
                    }
                    let mut header = *header;
                    if in_order {
                        // A log that is whole, but for what its records say.
                        id += 1;
                        header = frame::Header { id, horizon: 0, proposal: 0, next_id: header.next_id >> 1, ..header };
                    }
                    frame::finish(&mut frame, &header, seed);
                    bytes.extend_from_slice(&frame);
                }
                medium.store(BLOCKS_OFFSET + index as u64 * 16384, &bytes).unwrap();
            }
        }
        let second = OpenOptions { boot_id: Some([if same_boot { 1 } else { 2 }; 16]), ..OpenOptions::default() };
        let _ = inspect(&pool);
        if let Ok(pool) = Pool::open(&pool, &second) {
            let ino = Ino(pool.edit().next_id());
            let name: Box<[u8]> = b"new".as_slice().into();
            let _ = pool.edit().store(Transaction::new(0).with(Record::Name { dir: ROOT, name, ino }));
            let _ = (pool.usage(), pool.commit(pool.newest()), pool.maintain(), pool.reclaim(), pool.close());
        }
    }
}
