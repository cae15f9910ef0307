//! Files that have grown: going on with one gives what looking at all of it gives, or says that it cannot.

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

use proptest::prelude::*;
use tensorfs_formats::{Format, Front, Location, Recognised, Source, Tensor, recognise, resume_behind};

use super::{Counted, npy, tensor, torch, zip};

fn sample(name: &str) -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/samples").join(name)).unwrap()
}

fn whole(bytes: &[u8]) -> (Recognised, Vec<Tensor>) {
    let mut tensors = Vec::new();
    let found = recognise(&bytes, &mut |tensor| {
        tensors.push(tensor);
        ControlFlow::Continue(())
    });
    (found, tensors)
}

fn behind(source: &dyn Source, at: u64, front: Front) -> (Recognised, Vec<Tensor>) {
    let mut tensors = Vec::new();
    let found = resume_behind(source, at, front, &mut |tensor| {
        tensors.push(tensor);
        ControlFlow::Continue(())
    });
    (found, tensors)
}

/// Goes on with a file at a place. False if that cannot be; what is said is what is said of the whole.
fn goes_on(bytes: &[u8], at: u64, front: Front, before: usize) -> bool {
    let (found, tensors) = behind(&bytes, at, front);
    if found.stopped {
        return false;
    }
    let (expected, all) = whole(bytes);
    assert_eq!(tensors, all[before..], "behind {at}: {front:?}");
    assert_eq!((found.format, found.cut), (expected.format, expected.cut), "behind {at}: {front:?}");
    if front != Front::Nothing {
        let said = (found.end, &found.reason);
        assert_eq!(said, (expected.end, &expected.reason), "behind {at}: {front:?}");
    }
    true
}

/// What is known of a file when it has been looked at, and where it may be gone on with.
fn fronts(bytes: &[u8]) -> Vec<(u64, Front, usize)> {
    let (found, tensors) = whole(bytes);
    let len = bytes.len() as u64;
    match found.format {
        Format::Npy => {
            let plain = tensors.iter().take_while(|tensor| matches!(tensor.location, Location::Raw { .. }));
            let end = |tensor: &Tensor| tensor.range().0 + tensor.range().1;
            plain.enumerate().map(|(n, tensor)| (end(tensor), Front::Arrays(n as u64 + 1), n + 1)).collect()
        }
        Format::Torch if found.reason.is_none() => tensors.last().map_or(Vec::new(), |last| {
            let (last, number) = (last.range().0, last.number());
            let count = tensors.len();
            vec![(len, Front::Checkpoints { tensors: count as u64, last, number }, count)]
        }),
        Format::Npz if found.reason.is_none() => vec![(len, Front::Zips, 0)],
        Format::Opaque if !found.cut => vec![(len, Front::Nothing, 0)],
        _ => Vec::new(),
    }
}

/// Pieces that files are appended to with.
fn pieces() -> Vec<Vec<u8>> {
    let at = |offset: u32| tensor(40, offset, [2, 2], [2, 1]);
    let (dot, list) = (b".".to_vec(), |parts: &[Vec<u8>]| [b"](", &parts.concat()[..], b"e."].concat());
    let named =
        |name: &[u8], value: &[u8]| [b"}X", &(name.len() as u32).to_le_bytes()[..], name, value, b"s."].concat();
    let one = torch(&[at(0), dot.clone()].concat(), &[("0", 160)]);
    let mut long = sample("f4.npy");
    long.extend(sample("aligned.npy"));
    let mut header = 100_u64.to_le_bytes().to_vec();
    header.extend(b"{\"");
    vec![
        one.clone(),
        torch(&list(&[at(4), at(0)]), &[("0", 160)]),
        torch(&named(b"a[7]", &at(1)), &[("0", 160)]),
        torch(b"N.", &[]),
        sample("torch2-tensor.pt"),
        sample("arrays.npz"),
        zip(&[]),
        npy("'<f4'", "(3,)", 12),
        npy("'<f4'", "(0,)", 0),
        npy("'|u1'", "(5000,)", 5000),
        npy("'|O'", "(1,)", 3),
        [npy("'|O'", "(1,)", 0), b"N.".to_vec()].concat(),
        npy("'<f4'", "(3,)", 11),
        long,
        sample("empty.npy"),
        b"\x93NUM".to_vec(),
        vec![7; 40],
        vec![0; 500],
        b"\x89HDF\r\n\x1a\n".to_vec(),
        sample("model.safetensors"),
        header,
        sample("board.tfevents"),
        one[..one.len() - 7].to_vec(),
        one[..60].to_vec(),
        sample("events.pb"),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_gone_on_with_is_what_all_of_it_is(
        first in 0..25_usize,
        same in 0..4_usize,
        more in prop::collection::vec(0..25_usize, 0..4),
        cut in prop_oneof![Just(0_usize), 1..200_usize],
        last in prop::collection::vec(0..25_usize, 0..3),
    ) {
        let all = pieces();
        let mut file = all[first].repeat(same + 1);
        more.iter().for_each(|&piece| file.extend(&all[piece]));
        file.truncate(file.len() - cut.min(file.len() - 1));
        let fronts = fronts(&file);
        last.iter().for_each(|&piece| file.extend(&all[piece]));
        for (at, front, before) in fronts {
            goes_on(&file, at, front, before);
        }
    }
}

#[test]
fn what_can_be_gone_on_with_is_and_little_is_read() {
    let all = pieces();
    let (checkpoint, array) = (&all[0], &all[9]);
    for (piece, more) in [
        (checkpoint, &all[0]),
        (checkpoint, &all[4]),
        (&all[2], &all[1]),
        (array, &all[7]),
        (&all[5], &all[5]),
        (array, &all[12]),
    ] {
        for count in [1, 2, 12, 500] {
            let mut file = piece.repeat(count);
            let (at, front, before) = fronts(&file).pop().unwrap();
            assert_eq!(at, file.len() as u64);
            file.extend(more);
            assert!(goes_on(&file, at, front, before), "{front:?}");
            let counted = Counted { inner: &&file[..], bytes: 0.into(), calls: 0.into() };
            behind(&counted, at, front);
            let read = counted.bytes.get();
            assert!(read <= 4 * more.len() as u64 + 4096, "{read} bytes read of {}", file.len());
        }
    }
    let tensors = sample("model.safetensors");
    let file = tensors.repeat(3);
    assert!(goes_on(&file, 2 * tensors.len() as u64, Front::Nothing, 0));
    // In another place there is none that ends.
    let mut file = checkpoint.repeat(3);
    let (at, front, _) = fronts(&file).pop().unwrap();
    file.extend(checkpoint);
    for wrong in [1, at - 1, at + 1, at - checkpoint.len() as u64 / 2] {
        assert!(behind(&&file[..], wrong, front).0.stopped, "{wrong}");
    }
    // Nor can anything be said of what is in front of something else, nor of one whose number is not known.
    let Front::Checkpoints { tensors, last, .. } = front else { panic!("{front:?}") };
    for front in [
        Front::Checkpoints { tensors, last, number: None },
        Front::Checkpoints { tensors, last: 0, number: Some(2) },
        Front::Checkpoints { tensors: 0, last, number: Some(2) },
        Front::Checkpoints { tensors, last, number: Some(u32::MAX) },
    ] {
        assert!(behind(&&file[..], at, front).0.stopped, "{front:?}");
    }
    file.extend(b"PK");
    assert!(behind(&&file[..], at, front).0.stopped);
}
