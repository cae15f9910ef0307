//! What a reader says that was taken over: nothing of it makes the server panic, and what it believes can be.
//!
//! | bytes | what |
//! |---|---|
//! | 1 | what was asked: see [`question`] |
//! | 1 | which file it was asked about, which need not be the one that was looked into |
//! | 2 | the length of a message; 65535 stands for eight bytes that say it, and how much comes with it, as they like |
//! | 2 | how much comes with it |
//! | so many | both |
//! | | and so on |

use std::cell::RefCell;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;

use tempfile::TempDir;
use tensorfs_formats::ocdbt::{Asked, Tail};
use tensorfs_formats::{Metadata, Recognised, copy_stored, is_stored_as_read, npy_header, npy_len, tensor_len};
use tensorfs_fs::testing::{Heard, Question, heard, said_of};
use tensorfs_layout::check::fault_of_run;
use tensorfs_layout::segment::{Before, examine};

use super::formats;

/// The length of a message that says it itself.
const AS_THEY_LIKE: u16 = u16::MAX;
/// So much of a tensor is read at once.
const LONGEST: usize = 1 << 16;

fn question(byte: u8) -> Question {
    match byte % 15 {
        0 | 1 => Question::Tensors,
        2 => Question::First,
        3 => Question::From(0),
        4 => Question::From(50),
        5 => Question::Shards,
        6 => Question::Pieces,
        n @ 7..=11 => Question::Nodes(Metadata::ALL[usize::from(n - 7)]),
        12 => Question::Tree(Asked::Manifest),
        13 => Question::Tree(Asked::Node { at: 0, len: 100, height: 0, tail: Tail::default(), with_values: true }),
        _ => Question::Decoded,
    }
}

/// Files that are asked about: none of any bytes, a few, one whose last tensor is packed, and one that is a hole.
fn files() -> &'static [File] {
    static FILES: OnceLock<(TempDir, Vec<File>)> = OnceLock::new();
    &FILES
        .get_or_init(|| {
            let dir = tempfile::tempdir().unwrap();
            let packed = formats::npz().into_iter().max_by_key(Vec::len).unwrap_or_default();
            let contents = [Vec::new(), vec![7; 100], packed, vec![1; 4096]];
            let files = contents.iter().enumerate().map(|(n, bytes)| {
                let path = dir.path().join(n.to_string());
                std::fs::write(&path, bytes).unwrap();
                File::options().read(true).write(true).open(path).unwrap()
            });
            let files: Vec<File> = files.collect();
            // Not so long that its checksum takes a while.
            files[3].set_len(1 << 30).unwrap();
            (dir, files)
        })
        .1
}

pub fn run(bytes: &[u8]) {
    let [asked, about, said @ ..] = bytes else { return };
    let said = on_the_wire(said);
    let file = &files()[usize::from(*about) % files().len()];
    let question = question(*asked);
    let Ok(answer) = heard(file, question, &said) else { return };
    judge(file, &answer);
    if !matches!(question, Question::Tensors) {
        return;
    }
    // A file is sealed by what a reader says of it.
    let size = file.metadata().unwrap().len();
    let told = RefCell::new(Some(answer));
    let runs = examine(file, size, 1 << 14, &Before::default(), &|| true, &|_, sink| {
        let Some(Heard { found: Some(found), tensors, .. }) = told.take() else {
            return Recognised::unread(std::io::ErrorKind::InvalidData.into());
        };
        let _ = tensors.into_iter().try_for_each(sink);
        found
    });
    let Ok(Some(runs)) = runs else { return };
    let mut at = 0;
    for run in &runs {
        assert_eq!(run.offset, at);
        at += run.len;
        if run.len < 1 << 20 {
            assert_eq!(fault_of_run(file, run.offset, run.len, run.seal.crc, &|_| {}), None);
        }
    }
    assert_eq!(at, size);
}

/// What is believed can be, and what is done with it in the server does no harm.
fn judge(file: &File, answer: &Heard) {
    let size = file.metadata().unwrap().len();
    if let Some(found) = &answer.found {
        assert_eq!(found.tensors, answer.tensors.len() as u64);
        assert!(found.end <= size.max(50) && found.metadata.len() <= 1 << 17 && found.calls.len() <= 32);
    }
    assert!(answer.bytes.len() <= 4096);
    for tensor in &answer.tensors {
        let (offset, len) = tensor.range();
        assert!(offset.checked_add(len).is_some_and(|end| end <= size), "{tensor:?}");
        assert_eq!(tensor.fault(size), None, "{tensor:?}");
        let (header, whole, bytes) = (npy_header(tensor), npy_len(tensor), tensor_len(tensor));
        if let (Some(header), Some(whole), Some(bytes)) = (&header, whole, bytes) {
            assert_eq!(header.len() as u64 + bytes, whole, "{tensor:?}");
        }
        if is_stored_as_read(tensor) {
            let mut buffer = vec![0; LONGEST];
            for from in [0, 1, bytes.unwrap_or(0) / 2, bytes.unwrap_or(0), u64::MAX] {
                let left = bytes.unwrap_or(0).saturating_sub(from);
                if let Ok(read) = copy_stored(file, tensor, from, &mut buffer) {
                    assert_eq!(read as u64, left.min(LONGEST as u64), "{tensor:?} from {from}");
                }
            }
        }
    }
}

/// As it goes over the socket.
fn on_the_wire(mut said: &[u8]) -> Vec<u8> {
    let mut wire = Vec::new();
    while let [a, b, rest @ ..] = said {
        let len = u16::from_le_bytes([*a, *b]);
        if len == AS_THEY_LIKE {
            let (raw, rest) = rest.split_at(rest.len().min(8));
            wire.extend(raw);
            said = rest;
            continue;
        }
        let [a, b, rest @ ..] = rest else { break };
        let with = u16::from_le_bytes([*a, *b]);
        let (both, rest) = rest.split_at(rest.len().min(usize::from(len) + usize::from(with)));
        wire.extend(u32::from(len).to_le_bytes());
        wire.extend(u32::from(with).to_le_bytes());
        wire.extend(both);
        said = rest;
    }
    wire
}

/// As it is in an input; none if a message is too long for that.
fn as_input(asked: u8, about: u8, mut wire: &[u8]) -> Option<Vec<u8>> {
    let mut input = vec![asked, about];
    while let [a, b, c, d, e, f, g, h, rest @ ..] = wire {
        let len = u16::try_from(u32::from_le_bytes([*a, *b, *c, *d])).ok().filter(|len| *len < AS_THEY_LIKE)?;
        let with = u16::try_from(u32::from_le_bytes([*e, *f, *g, *h])).ok()?;
        input.extend(len.to_le_bytes());
        input.extend(with.to_le_bytes());
        let (both, rest) = rest.split_at_checked(usize::from(len) + usize::from(with))?;
        input.extend(both);
        wire = rest;
    }
    Some(input)
}

/// What readers say of files of each format, to each question.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut contents: Vec<Vec<u8>> = Vec::new();
    let of_a_format: [fn() -> Vec<Vec<u8>>; 13] = [
        formats::tfrecords,
        formats::safetensors,
        formats::npy,
        formats::npz,
        formats::indexes,
        formats::plans,
        formats::hierarchies,
        formats::databases,
        formats::gguf,
        formats::hdf5,
        formats::arrow,
        formats::bare,
        formats::torch,
    ];
    for seeds in of_a_format {
        contents.extend(seeds().into_iter().filter(|bytes| bytes.len() < 200_000).take(6));
    }
    let dir = tempfile::tempdir().unwrap();
    let file = File::options().read(true).write(true).create(true).truncate(false).open(dir.path().join("f")).unwrap();
    let mut all = Vec::new();
    for bytes in contents {
        file.set_len(0).unwrap();
        file.write_all_at(&bytes, 0).unwrap();
        for asked in 0..15 {
            let Ok(said) = said_of(&file, question(asked)) else { continue };
            for about in [2, 3] {
                all.extend(as_input(asked, about, &said).filter(|input| input.len() < 100_000));
            }
        }
    }
    all.sort_unstable();
    all.dedup();
    all
}
