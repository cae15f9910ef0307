//! Formats that are not looked into, but tell where their files end: HDF5, Parquet, and Arrow's file format.

use crate::fault::Result;
use crate::source::{Source, read_exact, read_up_to};

const HDF5: &[u8] = b"\x89HDF\r\n\x1a\n";
/// What Parquet begins with, and the first byte of a header in Thrift's compact protocol behind it: so no text begins.
const PARQUET: &[u8] = b"PAR1\x15";
const PARQUET_END: &[u8] = b"PAR1";
const ARROW: &[u8] = b"ARROW1\0\0";
const ARROW_END: &[u8] = b"ARROW1";

/// Where the superblock of an HDF5 file is: at 0, or behind a user block at 512, 1024, 2048, ...
pub(crate) fn hdf5(source: &dyn Source, size: u64) -> Result<Option<u64>> {
    let mut at = 0_u64;
    while at.saturating_add(8) <= size {
        let mut magic = [0; 8];
        if read_up_to(source, at, &mut magic)? == 8 && magic == HDF5 {
            return Ok(Some(at));
        }
        at = (at * 2).max(512);
    }
    Ok(None)
}

/// How long an HDF5 file is at least, as its superblock says; it may be longer. None if it does not say, as where there
/// are several files of one.
///
/// <https://support.hdfgroup.org/documentation/hdf5/latest/_f_m_t3.html>, II.A
pub(crate) fn hdf5_len(source: &dyn Source, at: u64) -> Result<Option<u64>> {
    let mut block = [0; 96];
    let len = read_up_to(source, at, &mut block)?;
    let block = &block[..len];
    // The addresses of the base, of something, of the end, and of something; what says that there are several files.
    let (width, first, driver) = match block.get(8) {
        Some(0) => (13, 24, 3),
        Some(1) => (13, 28, 3),
        Some(2 | 3) => (9, 12, 1),
        _ => return Ok(None),
    };
    // One more than there is, if it ends inside the superblock.
    let beyond = (at + block.len() as u64).saturating_add(1);
    let width = match block.get(width) {
        Some(width @ (2 | 4 | 8)) => usize::from(*width),
        Some(_) => return Ok(None),
        None => return Ok(Some(beyond)),
    };
    let address = |number: usize| {
        let bytes = block.get(first + number * width..first + (number + 1) * width)?;
        Some(bytes.iter().rev().fold(0_u64, |address, byte| address << 8 | u64::from(*byte)))
    };
    let nowhere = u64::MAX >> (64 - 8 * width);
    match (address(0), address(2), address(driver)) {
        // If somebody has put a user block in front of it, the base is not where it was.
        (Some(base), Some(end), Some(driver)) if driver == nowhere && end != nowhere => {
            Ok(end.checked_sub(base).and_then(|len| len.checked_add(at)))
        }
        (_, None, _) | (_, _, None) => Ok(Some(beyond)),
        _ => Ok(None),
    }
}

/// What a file is that begins so, and does not end as all do that do: where to look at them is at their end.
pub(crate) fn without_end(source: &dyn Source, head: &[u8], size: u64) -> Result<Option<&'static str>> {
    let (what, begin, end) = if head.starts_with(PARQUET) {
        ("a Parquet file", PARQUET, PARQUET_END)
    } else if head.starts_with(ARROW) {
        ("an Arrow file", ARROW, ARROW_END)
    } else {
        return Ok(None);
    };
    if size < (begin.len() + end.len()) as u64 {
        return Ok(Some(what));
    }
    let mut last = vec![0; end.len()];
    read_exact(source, size - end.len() as u64, &mut last)?;
    Ok((last != end).then_some(what))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn len(block: &[u8]) -> Option<u64> {
        let file = [HDF5, block, &[0; 200]].concat();
        hdf5_len(&&file[..], 0).unwrap()
    }

    #[test]
    fn superblocks_say_how_long_files_are() {
        let rest = |width: u8| [0, 0, 0, 0, 0, width, 8, 0, 4, 0, 16, 0, 0, 0, 0, 0];
        let addresses = |all: [u64; 4]| all.map(u64::to_le_bytes).concat();
        let v0 = |all| len(&[&rest(8)[..], &addresses(all)].concat());
        assert_eq!(v0([0, u64::MAX, 2128, u64::MAX]), Some(2128));
        assert_eq!(v0([512, u64::MAX, 2640, u64::MAX]), Some(2128));
        // A file of several has a driver.
        assert_eq!(v0([0, u64::MAX, 2128, 96]), None);
        assert_eq!(v0([0, u64::MAX, u64::MAX, u64::MAX]), None);
        assert_eq!(v0([5, u64::MAX, 4, u64::MAX]), None);
        let narrow = [0_u32, u32::MAX, 77, u32::MAX].map(u32::to_le_bytes).concat();
        assert_eq!(len(&[&rest(4)[..], &narrow].concat()), Some(77));
        assert_eq!(len(&[&rest(3)[..], &narrow].concat()), None);
        let mut v1 = rest(8).to_vec();
        v1[0] = 1;
        v1.extend([32, 0, 0, 0]);
        assert_eq!(len(&[v1, addresses([0, u64::MAX, 99, u64::MAX])].concat()), Some(99));
        for version in [2, 3] {
            let v2 = |extension| len(&[&[version, 8, 8, 0][..], &addresses([0, extension, 55, 0])].concat());
            assert_eq!((v2(u64::MAX), v2(48)), (Some(55), None));
        }
        assert_eq!(len(&[4, 8, 8, 0]), None);
    }
}
