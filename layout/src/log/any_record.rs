//! Tests: records of every kind.

use proptest::prelude::*;

use crate::ids::{Ino, NUMBER_LIMIT, SegmentId, TxId};
use crate::log::origin::Origin;
use crate::log::record::{Attributes, Record};
use crate::log::seal::Seal;
use crate::log::shutdown::Shutdown;
use crate::log::tier::Tier;
use crate::time::Timestamp;

/// Numbers of all sizes, and the ones at which counting goes wrong.
pub(crate) fn number() -> impl Strategy<Value = u64> {
    prop_oneof![0..40u64, any::<u64>(), Just(u64::MAX), Just(NUMBER_LIMIT - 1), Just(NUMBER_LIMIT)]
}

fn bytes(max: usize) -> impl Strategy<Value = Box<[u8]>> {
    prop::collection::vec(any::<u8>(), 0..max).prop_map(Into::into)
}

fn attributes() -> impl Strategy<Value = Attributes> {
    let time = || (any::<i64>(), 0..1_000_000_000u32).prop_map(|(sec, nsec)| Timestamp::new(sec, nsec));
    let mode = prop_oneof![Just(libc::S_IFDIR), Just(libc::S_IFREG), Just(libc::S_IFLNK), any::<u32>()];
    let segment = number().prop_map(|id| Some(SegmentId(id)).filter(|_| id != 0));
    (mode, any::<[u32; 3]>(), time(), time(), time(), time(), segment, any::<bool>()).prop_map(
        |(mode, [uid, gid, rdev], atime, mtime, ctime, btime, segment, damaged)| Attributes {
            mode,
            uid,
            gid,
            rdev,
            atime,
            mtime,
            ctime,
            btime,
            segment,
            damaged,
        },
    )
}

fn tier() -> impl Strategy<Value = Tier> {
    let away = prop_oneof![
        Just(None),
        Just(Some(Shutdown::Clean)),
        Just(Some(Shutdown::ServerKilled)),
        Just(Some(Shutdown::PowerLoss))
    ];
    ("[a-zA-Z0-9_-]{0,40}", bytes(100), any::<bool>(), any::<[u8; 16]>(), away, any::<bool>()).prop_map(
        |(name, directory, volatile, nonce, away, remote)| {
            let directory = if volatile { [b"/", &*directory].concat().into() } else { directory };
            let remote = remote && !volatile && away.is_none();
            Tier { name: name.into(), directory, volatile, nonce, away, remote }
        },
    )
}

/// Where a record may come from.
fn origin() -> impl Strategy<Value = Origin> {
    prop_oneof![
        Just(Origin::default()),
        (number(), 1..i64::MAX).prop_map(|(transaction, nanoseconds)| Origin { transaction, nanoseconds })
    ]
}

/// Records of every kind, possible and impossible.
pub(crate) fn record() -> impl Strategy<Value = Record> {
    let ino = || number().prop_map(Ino);
    let segment = || number().prop_map(SegmentId);
    let run = || (ino(), segment(), number(), number(), number());
    let seal = (any::<u32>(), bytes(40)).prop_map(|(crc, description)| Seal { crc, description });
    prop_oneof![
        (ino(), attributes()).prop_map(|(ino, attributes)| Record::Attributes { ino, attributes }),
        (ino(), bytes(300), ino()).prop_map(|(dir, name, ino)| Record::Name { dir, name, ino }),
        (ino(), bytes(300)).prop_map(|(dir, name)| Record::Removal { dir, name }),
        (ino(), bytes(5000)).prop_map(|(ino, target)| Record::Target { ino, target }),
        (run(), origin()).prop_map(|((ino, segment, offset, len, allocated), origin)| Record::Data {
            ino,
            segment,
            offset,
            len,
            allocated,
            origin
        }),
        (run(), number()).prop_map(|((ino, segment, offset, len, allocated), cut_from)| Record::Truncation {
            ino,
            segment,
            offset,
            len,
            allocated,
            cut_from
        }),
        (run(), seal, origin()).prop_map(|((ino, segment, offset, len, allocated), seal, origin)| Record::Sealed {
            ino,
            segment,
            offset,
            len,
            allocated,
            seal,
            origin
        }),
        run().prop_map(|(ino, segment, offset, len, _)| Record::Thaw { ino, segment, offset, len }),
        (ino(), segment(), number()).prop_map(|(ino, segment, from)| Record::Provisional { ino, segment, from }),
        (ino(), segment()).prop_map(|(ino, segment)| Record::Replace { ino, segment }),
        (ino(), segment(), bytes(5000)).prop_map(|(ino, segment, bytes)| Record::Value { ino, segment, bytes }),
        (ino(), bytes(300), bytes(3000)).prop_map(|(ino, name, value)| Record::Xattr { ino, name, value }),
        (ino(), bytes(300)).prop_map(|(ino, name)| Record::XattrRemoval { ino, name }),
        (number(), number()).prop_map(|(first, last)| Record::Retired { first: TxId(first), last: TxId(last) }),
        (any::<u8>(), tier()).prop_map(|(number, tier)| Record::Tier { number, tier }),
        "[a-z*/ \n]{0,60}".prop_map(|text| Record::Placement { text: text.into() }),
    ]
}
