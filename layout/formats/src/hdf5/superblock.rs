//! The superblock: where an HDF5 file begins, how wide its numbers are, how long it is, and where its root is.
//!
//! <https://support.hdfgroup.org/documentation/hdf5/latest/_f_m_t3.html>, II.A

use crate::fault::{Result, malformed, short};
use crate::source::{Source, read_up_to};

const MAGIC: &[u8] = b"\x89HDF\r\n\x1a\n";

/// Where the superblock of an HDF5 file is: at 0, or behind a user block at 512, 1024, 2048, ...
pub(crate) fn find(source: &dyn Source, size: u64) -> Result<Option<u64>> {
    let mut at = 0_u64;
    while at.saturating_add(8) <= size {
        let mut magic = [0; 8];
        if read_up_to(source, at, &mut magic)? == 8 && magic == MAGIC {
            return Ok(Some(at));
        }
        at = (at * 2).max(512);
    }
    Ok(None)
}

/// How long an HDF5 file is at least, as its superblock says; it may be longer. None if it does not say, as where there
/// are several files of one.
pub(crate) fn len(source: &dyn Source, at: u64) -> Result<Option<u64>> {
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
        Some(self::number(bytes))
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

/// What the rest of the file is read with.
pub(crate) struct Superblock {
    /// Bytes of an address and of a length.
    pub address: usize,
    pub length: usize,
    /// Where the object header of the root group is, from the superblock on.
    pub root: u64,
}

/// Reads the superblock of a file that has one there.
pub(crate) fn read(source: &dyn Source, at: u64) -> Result<Superblock> {
    let mut block = [0; 96];
    let len = read_up_to(source, at, &mut block)?;
    let block = &block[..len];
    // Where the widths are, where addresses begin, and which of them is the root's.
    let (widths, first, root) = match block.get(8) {
        Some(0) => (13, 24, 5),
        Some(1) => (13, 28, 5),
        Some(2 | 3) => (9, 12, 3),
        Some(version) => return malformed(format!("an HDF5 superblock of the unknown version {version}")),
        None => return short("an HDF5 file that ends in its superblock"),
    };
    let (address, length) = match block.get(widths..widths + 2) {
        Some(&[address @ (2 | 4 | 8), length @ (2 | 4 | 8)]) => (usize::from(address), usize::from(length)),
        Some(_) => return malformed("an HDF5 file of numbers of another width than 2, 4 or 8 bytes"),
        None => return short("an HDF5 file that ends in its superblock"),
    };
    match block.get(first + root * address..first + (root + 1) * address) {
        Some(bytes) => Ok(Superblock { address, length, root: number(bytes) }),
        None => short("an HDF5 file that ends in its superblock"),
    }
}

/// The number that these bytes are, least significant first.
pub(crate) fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn len(block: &[u8]) -> Option<u64> {
        let file = [MAGIC, block, &[0; 200]].concat();
        super::len(&&file[..], 0).unwrap()
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
