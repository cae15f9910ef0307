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
