//! What a seal says of the tensors in its run.
//!
//! A description is a version byte, a [`Summary`] of the file in the run at offset 0, and an [`TensorEntry`] for each
//! tensor that starts in the run, in postcard's encoding (<https://postcard.jamesmunns.com/wire-format>). One that
//! cannot be read, or is of a later version, is as none: the file's tensors can be recognised again.

use serde::{Deserialize, Serialize};
use tensorfs_formats::{Format, Tensor};

/// The version of the encoding.
const VERSION: u8 = 1;
/// The version where the summary is of a file that ends too early. Only then it is written, so that an older program
/// goes without the descriptions of these files alone.
const VERSION_CUT: u8 = 2;

/// What a whole file was recognised as.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// Its format.
    pub format: Format,
    /// The tensors that the seals of its runs describe.
    pub tensors: u64,
    /// True if these are all there are.
    pub complete: bool,
    /// Event files: frames that are damaged.
    pub bad_frames: u64,
    /// Why the file is opaque, or what in it is wrong.
    pub reason: Option<String>,
    /// True if the file ends before what it promises itself. It is not in the encoding of the summary, but in the
    /// version of the description.
    #[serde(skip)]
    pub cut: bool,
}

/// One tensor of a sealed file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TensorEntry {
    /// Its place in the file's own order, from 0.
    pub index: u64,
    /// CRC32C of its [range](Tensor::range). None if that is a run of its own, or several: their checksums say it.
    pub crc: Option<u32>,
    /// The tensor.
    pub tensor: Tensor,
}

/// Bytes that an entry takes beyond its encoded tensor, at most.
pub(crate) const ENTRY_OVERHEAD: usize = 10 + 6;
/// Bytes that the version and the summary take at most, with a reason cut to [`REASON_MAX`].
pub(crate) const SUMMARY_MAX: usize = 64 + REASON_MAX;
/// The longest reason that is kept, in bytes.
pub(crate) const REASON_MAX: usize = 200;

/// Appends a value. What is encoded here has no part that could fail to be.
pub(crate) fn put<T: Serialize>(out: &mut Vec<u8>, value: &T) {
    if let Ok(whole) = postcard::to_extend(value, std::mem::take(out)) {
        *out = whole;
    }
}

/// Starts a description.
pub(crate) fn start(summary: Option<&Summary>) -> Vec<u8> {
    let cut = summary.is_some_and(|summary| summary.cut);
    let mut out = vec![if cut { VERSION_CUT } else { VERSION }];
    put(&mut out, &summary);
    out
}

/// Appends the entry of a tensor that is already encoded.
pub(crate) fn put_entry(out: &mut Vec<u8>, index: u64, crc: Option<u32>, tensor: &[u8]) {
    put(out, &index);
    put(out, &crc);
    out.extend_from_slice(tensor);
}

/// Reads a tensor that is encoded.
pub(crate) fn tensor(encoded: &[u8]) -> Option<Tensor> {
    postcard::from_bytes(encoded).ok()
}

/// Reads the summary of a description, if it has one.
pub(crate) fn summary(description: &[u8]) -> Option<Summary> {
    open(description)?.0
}

/// Reads the entries of a description. What cannot be read ends them.
pub(crate) fn entries(description: &[u8]) -> impl Iterator<Item = TensorEntry> {
    let mut rest = open(description).map_or(&[][..], |(_, rest)| rest);
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let (entry, behind) = postcard::take_from_bytes(std::mem::take(&mut rest)).ok()?;
        rest = behind;
        Some(entry)
    })
}

fn open(description: &[u8]) -> Option<(Option<Summary>, &[u8])> {
    let (&version, body) = description.split_first()?;
    let (mut summary, rest): (Option<Summary>, _) = match version {
        VERSION | VERSION_CUT => postcard::take_from_bytes(body).ok()?,
        _ => return None,
    };
    if let Some(summary) = &mut summary {
        summary.cut = version == VERSION_CUT;
    }
    Some((summary, rest))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use tensorfs_formats::{Dtype, Kind, Location, Mode, Order, Storage};

    fn entry(index: u64, location: Location) -> TensorEntry {
        let tensor = Tensor {
            name: b"layer/0.weight".to_vec(),
            dtype: Dtype::Bf16,
            item_size: 2,
            descr: Some("'<V2'".into()),
            big_endian: false,
            shape: vec![3, 1 << 40],
            order: Order::Strides(vec![1, 7]),
            kind: Kind::Histogram,
            step: Some(-5),
            mode: Some(Mode::Predict),
            mode_step: None,
            location,
            storage: Some(Storage { key: "0".into(), offset: 64, len: 128 }),
        };
        TensorEntry { index, crc: (index == 1).then_some(0xdead_beef), tensor }
    }

    fn all() -> Vec<TensorEntry> {
        vec![
            entry(0, Location::Raw { offset: 64, len: 12 }),
            entry(1, Location::Inline { offset: 80, len: 9, bytes: vec![1, 2, 3, 4] }),
            entry(2, Location::Deflated { offset: 100, len: 5, skip: 80 }),
            entry(3, Location::Encoded { offset: u64::MAX, len: 0 }),
            entry(4, Location::Negated { offset: 7, len: 6, parts: 2 }),
        ]
    }

    fn summarised() -> Summary {
        Summary {
            format: Format::Torch,
            tensors: 4,
            complete: true,
            bad_frames: 0,
            reason: Some("why".into()),
            cut: false,
        }
    }

    fn encoded() -> Vec<u8> {
        let mut out = start(Some(&summarised()));
        for entry in all() {
            let mut tensor = Vec::new();
            put(&mut tensor, &entry.tensor);
            let before = out.len();
            put_entry(&mut out, entry.index, entry.crc, &tensor);
            assert!(out.len() - before <= tensor.len() + ENTRY_OVERHEAD);
        }
        out
    }

    #[test]
    fn a_description_is_read_back_as_it_was_written() {
        let bytes = encoded();
        assert_eq!(summary(&bytes), Some(summarised()));
        assert_eq!(entries(&bytes).collect::<Vec<_>>(), all());
        let cut = Summary { cut: true, ..summarised() };
        assert_eq!(summary(&start(Some(&cut))), Some(cut));
        assert_eq!(summary(&start(None)), None);
        assert_eq!(entries(&[]).count(), 0);
    }

    /// The bytes of pools that exist: this may never change.
    #[test]
    fn the_encoding_stays_as_it_is() {
        let mut out = start(Some(&summarised()));
        assert_eq!(out, [&[1, 1, 5, 4, 1, 0, 1, 3][..], b"why"].concat());
        let cut = Summary { cut: true, ..summarised() };
        assert_eq!(start(Some(&cut)), [&[2, 1, 5, 4, 1, 0, 1, 3][..], b"why"].concat());
        out.clear();
        put(&mut out, &all()[1].tensor);
        let expected = [
            &[14][..],
            b"layer/0.weight",
            &[10, 2, 1, 5],
            b"'<V2'",
            &[0, 2, 3, 128, 128, 128, 128, 128, 32, 2, 2, 1, 7, 2, 1, 9, 1, 2, 0, 1, 80, 9, 4, 1, 2, 3, 4],
            &[1, 1],
            b"0",
            &[64, 128, 1],
        ];
        assert_eq!(out, expected.concat());
    }

    #[test]
    fn the_longest_summary_fits() {
        let summary = Summary {
            format: Format::Hdf5,
            tensors: u64::MAX,
            complete: false,
            bad_frames: u64::MAX,
            reason: Some("x".repeat(REASON_MAX)),
            cut: true,
        };
        assert!(start(Some(&summary)).len() <= SUMMARY_MAX);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn no_bytes_make_reading_fail(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            at in 0..100usize,
            bit in 0..8u8,
        ) {
            let _ = (summary(&bytes), entries(&bytes).count());
            let mut bytes = encoded();
            let at = at % bytes.len();
            bytes[at] ^= 1 << bit;
            let _ = (summary(&bytes), entries(&bytes).count());
        }
    }
}
