//! Sealed files: checksums of bytes that may be thawed and changed, while power may go at any moment. The checker reads
//! every sealed byte of every image.

use tensorfs_crash::call::Call;
use tensorfs_crash::case::{Start, TREE};
use tensorfs_crash::disk::Kind;
use tensorfs_crash::explore::Tally;
use tensorfs_crash::scratch::Scratch;

use crate::campaign::{THOROUGH, calls, tell};

const SEAL: Call = Call::Seal("/b");

/// What is done to a sealed file.
const CHANGES: &[&[Call]] = &[
    &[Call::Sync],
    &[Call::Open(1, "/b"), Call::Write(1, 300, 600), Call::Close(1), Call::Sync, SEAL],
    &[Call::Open(1, "/b"), Call::Append(1, 400), Call::Fsync(1), Call::Close(1), SEAL, Call::Sync],
    &[Call::Truncate("/b", 700), Call::Sync, SEAL],
    &[Call::OpenTruncate(1, "/b"), Call::Write(1, 0, 650), Call::Close(1), SEAL, Call::Sync],
    &[Call::Open(1, "/b"), Call::Punch(1, 100, 700), Call::Close(1), Call::Sync, SEAL],
    &[Call::Open(1, "/b"), Call::Write(1, 0, 64), Call::Close(1), SEAL, Call::Open(1, "/b"), Call::Write(1, 64, 64)],
    &[Call::Unlink("/b"), Call::Unlink("/d/l"), Call::Sync],
    &[Call::Rename("/b", "/d/a"), Call::Seal("/d/a"), Call::Round],
];

/// A file that is too long for the log to hold its bytes: it stays sealed while it grows.
const LONG: &[Call] = &[Call::Create(1, "/g"), Call::Write(1, 0, 3000), Call::Close(1), Call::Sync, Call::Seal("/g")];

/// What is done to it.
const GROWTHS: &[&[Call]] = &[
    &[Call::Open(1, "/g"), Call::Append(1, 400), Call::Fsync(1), Call::Append(1, 300), Call::Close(1), Call::Sync],
    &[
        Call::Open(1, "/g"),
        Call::Append(1, 500),
        Call::Close(1),
        Call::Sync,
        Call::Seal("/g"),
        Call::Open(1, "/g"),
        Call::Append(1, 600),
        Call::Fsync(1),
        Call::Close(1),
        Call::Seal("/g"),
    ],
    &[Call::Open(1, "/g"), Call::Append(1, 400), Call::Fsync(1), Call::Write(1, 100, 300), Call::Fsync(1)],
    &[Call::Open(1, "/g"), Call::Append(1, 4000), Call::Fsync(1), Call::Truncate("/g", 3500), Call::Sync],
    &[Call::Open(1, "/g"), Call::Append(1, 400), Call::Truncate("/g", 2000), Call::Append(1, 900), Call::Fsync(1)],
    &[Call::Open(1, "/g"), Call::Append(1, 400), Call::Punch(1, 2500, 700), Call::Fsync(1), Call::Close(1)],
    &[Call::Truncate("/g", 5000), Call::Sync, Call::Seal("/g"), Call::Truncate("/g", 4000), Call::Sync],
    &[Call::Open(1, "/g"), Call::Append(1, 400), Call::Rename("/g", "/h"), Call::Append(1, 100), Call::Round],
    &[Call::Open(1, "/g"), Call::Append(1, 400), Call::Reclaim, Call::Append(1, 100), Call::Idle],
    &[
        Call::OpenTruncate(1, "/g"),
        Call::Write(1, 0, 2500),
        Call::Close(1),
        Call::Sync,
        Call::Seal("/g"),
        Call::Open(1, "/g"),
        Call::Append(1, 400),
        Call::Sync,
    ],
];

/// A file that is sealed while it is open for writing, whoever can write it.
const OPEN: &[&[Call]] = &[
    &[Call::Create(1, "/p"), Call::Write(1, 0, 3000), Call::SealOpen("/p"), Call::Append(1, 400), Call::Fsync(1)],
    &[
        Call::Create(1, "/p"),
        Call::Write(1, 0, 3000),
        Call::SealOpen("/p"),
        Call::Append(1, 400),
        Call::SealOpen("/p"),
        Call::Close(1),
        Call::Seal("/p"),
        Call::Round,
    ],
    &[Call::Create(1, "/p"), Call::Write(1, 0, 900), Call::SealOpen("/p"), Call::Write(1, 100, 300), Call::Fsync(1)],
    &[
        Call::Create(1, "/p"),
        Call::Write(1, 0, 900),
        Call::Fsync(1),
        Call::SealOpen("/p"),
        Call::Append(1, 100),
        Call::Fsync(1),
        Call::Close(1),
        Call::Seal("/p"),
    ],
    &[
        Call::Create(1, "/p"),
        Call::Write(1, 0, 3000),
        Call::SealOpen("/p"),
        Call::Truncate("/p", 800),
        Call::Fsync(1),
        Call::SealOpen("/p"),
        Call::Write(1, 0, 500),
        Call::Close(1),
        Call::Seal("/p"),
    ],
    &[
        Call::Open(1, "/g"),
        Call::Append(1, 400),
        Call::SealOpen("/g"),
        Call::Write(1, 100, 300),
        Call::Close(1),
        Call::Seal("/g"),
    ],
    &[
        Call::Open(1, "/g"),
        Call::Append(1, 400),
        Call::SealOpen("/g"),
        Call::Punch(1, 2000, 1200),
        Call::Close(1),
        Call::Seal("/g"),
    ],
    &[Call::Open(1, "/g"), Call::Append(1, 400), Call::SealOpen("/g"), Call::Reclaim, Call::Append(1, 100), Call::Idle],
];

#[test]
fn sealed_while_open() {
    let mut total = Tally::default();
    for kind in [Kind::Cached, Kind::Dax] {
        let mut scratch = Scratch::new();
        let base: Vec<Call> = TREE.iter().chain(LONG).copied().collect();
        let start = Start::after(kind, &base, &mut scratch);
        for calls_of_one in OPEN {
            total.add(calls("seal while open", &start, calls_of_one, THOROUGH, &mut scratch).0);
        }
    }
    tell("seal while open", total);
}

#[test]
fn sealed_and_grown() {
    let mut total = Tally::default();
    for kind in [Kind::Cached, Kind::Dax] {
        let mut scratch = Scratch::new();
        let base: Vec<Call> = TREE.iter().chain(LONG).copied().collect();
        let start = Start::after(kind, &base, &mut scratch);
        for growth in GROWTHS {
            total.add(calls("seal and grow", &start, growth, THOROUGH, &mut scratch).0);
        }
    }
    tell("seal and grow", total);
}

#[test]
fn sealed_thawed_and_sealed_again() {
    let mut total = Tally::default();
    for kind in [Kind::Cached, Kind::Dax] {
        let mut scratch = Scratch::new();
        let start = Start::after(kind, TREE, &mut scratch);
        for change in CHANGES {
            let all: Vec<Call> = std::iter::once(SEAL).chain(change.iter().copied()).collect();
            total.add(calls("seal and thaw", &start, &all, THOROUGH, &mut scratch).0);
        }
    }
    tell("seal and thaw", total);
}
