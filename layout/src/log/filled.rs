//! Where a log holds something. What its host says is a hole counts as zeroes, and is not read: a log may be as long as
//! a superblock says without that any of it is there. The host is asked only of a log of which little is there.

use std::io;
use std::ops::Range;

use crate::log::codec::ALIGN;
use crate::log::superblock::{BLOCKS_OFFSET, Superblock};
use crate::medium::domain::Medium;

/// Shorter holes are read with what is around them. No record has as many zeroes: a frame that a server has stored has
/// no hole as long as this, even where the host makes holes of zeroes.
const LONG: u64 = 128 << 10;

/// Holes begin and end at pages. Frames stand at smaller steps, and so does all that is looked for in a block.
const PAGE: u64 = 4096;

/// Ranges of the log file, in order, between which there are only long holes.
#[derive(Debug)]
pub(crate) struct Filled(Vec<Range<u64>>);

impl Filled {
    /// What the host says of all blocks, or all of them, where it is not asked.
    pub fn of_all(medium: &dyn Medium, superblock: &Superblock) -> io::Result<Self> {
        let all = BLOCKS_OFFSET..superblock.log_len();
        match medium.is_sparse() {
            true => Self::within(medium, all),
            false => Ok(Self(std::iter::once(all).filter(|all| !all.is_empty()).collect())),
        }
    }

    fn within(medium: &dyn Medium, of: Range<u64>) -> io::Result<Self> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        let mut at = of.start;
        while let Some(found) = medium.data(at..of.end)? {
            at = found.end;
            let (start, end) = (found.start / PAGE * PAGE, found.end.next_multiple_of(PAGE).min(of.end));
            match ranges.last_mut() {
                Some(last) if start.saturating_sub(last.end) < LONG => last.end = end,
                _ => ranges.push(start..end),
            }
        }
        Ok(Self(ranges))
    }

    /// What of a block is filled, from its start.
    pub fn in_block(&self, superblock: &Superblock, index: usize) -> Vec<Range<usize>> {
        let Range { start, end } = place(superblock, index);
        let first = self.0.partition_point(|range| range.end <= start);
        let ranges = self.0[first..].iter().take_while(|range| range.start < end);
        ranges.map(|range| (range.start.max(start) - start) as usize..(range.end.min(end) - start) as usize).collect()
    }

    /// The blocks of which something is filled, in order.
    pub fn blocks(&self, superblock: &Superblock) -> Vec<usize> {
        let index = |offset: u64| ((offset - BLOCKS_OFFSET) / u64::from(superblock.block_size)) as usize;
        let mut blocks: Vec<usize> = Vec::new();
        for range in &self.0 {
            let next = blocks.last().map_or(0, |last| last + 1);
            blocks.extend(index(range.start).max(next)..=index(range.end - 1));
        }
        blocks
    }
}

fn place(superblock: &Superblock, index: usize) -> Range<u64> {
    let size = u64::from(superblock.block_size);
    let start = BLOCKS_OFFSET + index as u64 * size;
    start..start + size
}

/// Stores what a block holds once more.
pub(crate) fn store_again(
    medium: &dyn Medium,
    superblock: &Superblock,
    index: usize,
    filled: &Filled,
) -> io::Result<()> {
    for range in filled.in_block(superblock, index) {
        let mut bytes = vec![0; range.len()];
        let at = place(superblock, index).start + range.start as u64;
        medium.read(at, &mut bytes)?;
        medium.store(at, &bytes)?;
    }
    Ok(())
}

/// Stores zeroes over what a block holds from a place on. Its holes stay.
pub(crate) fn zero_behind(
    medium: &dyn Medium,
    superblock: &Superblock,
    index: usize,
    from: usize,
    filled: &Filled,
) -> io::Result<()> {
    for range in filled.in_block(superblock, index).into_iter().filter(|range| range.end > from) {
        let start = range.start.max(from);
        medium.store(place(superblock, index).start + start as u64, &vec![0; range.end - start])?;
    }
    Ok(())
}

/// The bytes of a block.
#[derive(Debug)]
pub(crate) struct BlockBytes {
    len: usize,
    /// Those that are no hole, each with the beginning of the hole behind it, and where they stand, in order.
    pieces: Vec<(usize, Vec<u8>)>,
}

impl BlockBytes {
    /// Reads all of a block.
    pub fn whole(medium: &dyn Medium, superblock: &Superblock, index: usize) -> io::Result<Self> {
        let Range { start, end } = place(superblock, index);
        Self::read(medium, superblock, index, &Filled(std::iter::once(start..end).collect()))
    }

    /// Reads what of a block is filled.
    pub fn read(medium: &dyn Medium, superblock: &Superblock, index: usize, filled: &Filled) -> io::Result<Self> {
        let (start, len) = (place(superblock, index).start, superblock.block_size as usize);
        let read = |range: Range<usize>| {
            // A frame may end with zeroes.
            let mut bytes = vec![0; range.len() + (len - range.end).min(LONG as usize)];
            medium.read(start + range.start as u64, &mut bytes[..range.len()])?;
            Ok((range.start, bytes))
        };
        let pieces = filled.in_block(superblock, index).into_iter().map(read).collect::<io::Result<_>>()?;
        Ok(Self { len, pieces })
    }

    /// What stands in front of `len`.
    pub fn cut(mut self, len: usize) -> Self {
        self.len = self.len.min(len);
        self.pieces.retain(|(start, _)| *start < len);
        if let Some((start, bytes)) = self.pieces.last_mut() {
            bytes.truncate(len - *start);
        }
        self
    }

    /// So many there are, with the holes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there are only zeroes.
    pub fn is_zero(&self) -> bool {
        self.is_zero_behind(0)
    }

    /// The bytes of a range; nothing if a long hole is in it.
    pub fn get(&self, range: Range<usize>) -> Option<&[u8]> {
        let (start, bytes) = self.piece_behind(range.start)?;
        bytes.get(range.start.checked_sub(start)?..range.end.checked_sub(start)?)
    }

    /// What stands at a place, with zeroes for what is not there.
    pub fn head<const LEN: usize>(&self, at: usize) -> [u8; LEN] {
        let mut head = [0; LEN];
        let end = at.saturating_add(LEN).min(self.len);
        // No more than one piece: it ends with a page, and the hole behind it is longer than a head.
        if let Some((start, bytes)) = self.piece_behind(at).filter(|(start, _)| *start <= at) {
            let there = &bytes[at - start..end.min(start + bytes.len()) - start];
            head[..there.len()].copy_from_slice(there);
        }
        head
    }

    /// The next place at or behind `at`, in steps of [`ALIGN`], at which these bytes stand, which are no longer.
    pub fn find(&self, what: &[u8], at: usize) -> Option<usize> {
        self.pieces_behind(at).iter().find_map(|(start, bytes)| {
            let from = at.max(*start);
            let found = bytes[from - start..].chunks(ALIGN).position(|chunk| chunk.starts_with(what))?;
            Some(from + found * ALIGN)
        })
    }

    /// True if there are only zeroes from a place on.
    pub fn is_zero_behind(&self, at: usize) -> bool {
        self.pieces_behind(at).iter().all(|(start, bytes)| is_zero(&bytes[at.saturating_sub(*start)..]))
    }

    fn pieces_behind(&self, at: usize) -> &[(usize, Vec<u8>)] {
        &self.pieces[self.pieces.partition_point(|(start, bytes)| start + bytes.len() <= at)..]
    }

    fn piece_behind(&self, at: usize) -> Option<(usize, &[u8])> {
        self.pieces_behind(at).first().map(|(start, bytes)| (*start, bytes.as_slice()))
    }
}

fn is_zero(bytes: &[u8]) -> bool {
    // In words: blocks are aligned to them, and most of a young log is zeroes.
    let (words, rest) = bytes.as_chunks::<8>();
    words.iter().all(|word| u64::from_ne_bytes(*word) == 0) && rest.iter().all(|byte| *byte == 0)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use proptest::prelude::*;

    use super::*;
    use crate::ids::ROOT;
    use crate::log::block;
    use crate::log::frame;
    use crate::log::record::Record;
    use crate::log::scan::{ScannedBlock, scan, scan_block};
    use crate::medium;

    const SIZE: u32 = 1 << 20;

    /// Something in a block, behind a hole.
    #[derive(Clone, Debug)]
    enum Part {
        Frame { records: usize, len: usize },
        Torn { len: usize },
        Garbage(Vec<u8>),
    }

    fn part() -> impl Strategy<Value = (usize, Part)> {
        let part = prop_oneof![
            (1..3_usize, 0..60_000_usize).prop_map(|(records, len)| Part::Frame { records, len }),
            (5000..300_000_usize).prop_map(|len| Part::Torn { len }),
            prop::collection::vec(any::<u8>(), 1..100).prop_map(Part::Garbage),
        ];
        let hole = prop_oneof![3 => Just(0), 1 => 0..20_000_usize, 2 => 0..500_000_usize];
        (hole, part)
    }

    fn frame_of(number: u64, records: usize, len: usize, seed: u32) -> Vec<u8> {
        let mut frame = vec![0; frame::HEADER];
        for one in 0..records {
            // Zeroes: a host may make a hole of them.
            let name = vec![b'x'; one + 1].into();
            Record::Xattr { ino: ROOT, name, value: vec![0; len].into() }.encode(16 + one as u64, &mut frame);
        }
        let header = frame::Header { id: number, records: records as u16, ..frame::Header::default() };
        frame::finish(&mut frame, &header, seed);
        frame
    }

    fn block_of(superblock: &Superblock, with_header: bool, parts: &[(usize, Part)]) -> Vec<u8> {
        let seed = superblock.seed(1);
        let mut bytes = vec![0; block::HEADER];
        if with_header {
            bytes.copy_from_slice(&block::encode(block::Header { incarnation: 1, first: 1, index: 0 }, seed));
        }
        for (number, (hole, part)) in parts.iter().enumerate() {
            bytes.resize((bytes.len() + hole).next_multiple_of(ALIGN), 0);
            match part {
                Part::Frame { records, len } => bytes.extend(frame_of(number as u64 + 1, *records, *len, seed)),
                Part::Torn { len } => {
                    let mut torn = frame_of(number as u64 + 1, 1, (*len).min(65_536), seed);
                    torn[frame::HEADER + 8..].fill(0);
                    bytes.extend(torn);
                }
                Part::Garbage(garbage) => bytes.extend(garbage),
            }
        }
        bytes.resize(SIZE as usize, 0);
        bytes
    }

    fn told(block: &ScannedBlock) -> String {
        format!("{block:?}")
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

        /// What is in a block is the same whether its host tells of holes or not.
        #[test]
        fn holes_change_nothing_of_what_is_found(
            with_header in prop::bool::weighted(0.8),
            parts in prop::collection::vec(part(), 0..8),
            cut in 0..SIZE as usize,
        ) {
            let superblock = Superblock::new("x".into(), SIZE, 1, None).unwrap();
            let bytes = block_of(&superblock, with_header, &parts);
            let whole = BlockBytes { len: bytes.len(), pieces: vec![(0, bytes.clone())] };
            let log = tempfile::tempfile().unwrap();
            log.set_len(superblock.log_len()).unwrap();
            for (page, of) in bytes.chunks(PAGE as usize).enumerate().filter(|(_, page)| !is_zero(page)) {
                log.write_all_at(of, BLOCKS_OFFSET + page as u64 * PAGE).unwrap();
            }
            let medium = medium::open(log).unwrap();
            let filled = Filled::within(&*medium, place(&superblock, 0)).unwrap();
            let sparse = BlockBytes::read(&*medium, &superblock, 0, &filled).unwrap();
            prop_assert_eq!(told(&scan_block(&sparse, 0, &superblock)), told(&scan_block(&whole, 0, &superblock)));
            let read = BlockBytes::whole(&*medium, &superblock, 0).unwrap();
            prop_assert_eq!(told(&scan_block(&read, 0, &superblock)), told(&scan_block(&whole, 0, &superblock)));
            prop_assert_eq!(told(&scan(&*medium, &superblock).unwrap()[0]), told(&scan_block(&whole, 0, &superblock)));
            let cut = cut.max(block::HEADER);
            let (sparse, whole) = (sparse.cut(cut), whole.cut(cut));
            prop_assert_eq!(told(&scan_block(&sparse, 0, &superblock)), told(&scan_block(&whole, 0, &superblock)));
            zero_behind(&*medium, &superblock, 0, cut, &filled).unwrap();
            let mut left = vec![0; SIZE as usize];
            medium.read(BLOCKS_OFFSET, &mut left).unwrap();
            prop_assert!(left[..cut] == bytes[..cut] && is_zero(&left[cut..]));
        }
    }

    #[test]
    fn blocks_that_are_holes_are_not_read() {
        let superblock = Superblock::new("x".into(), 16 << 20, 1 << 18, None).unwrap();
        let log = tempfile::tempfile().unwrap();
        log.set_len(superblock.log_len()).unwrap();
        let seed = superblock.seed(1);
        let header = block::Header { incarnation: 1, first: 1, index: 5 };
        let mut bytes = block::encode(header, seed).to_vec();
        bytes.extend(frame_of(1, 1, 10, seed));
        let place = place(&superblock, 5).start;
        log.write_all_at(&bytes, place).unwrap();
        // At the end of one that is a hole but for this.
        log.write_all_at(b"x", superblock.log_len() - 1).unwrap();
        let medium = medium::open(log).unwrap();
        let filled = Filled::of_all(&*medium, &superblock).unwrap();
        if filled.0.len() == 1 {
            return eprintln!("SKIPPED: the host tells of no holes");
        }
        assert_eq!(filled.blocks(&superblock), [5, (1 << 18) - 1]);
        let read: usize = (0..1 << 18).flat_map(|index| filled.in_block(&superblock, index)).map(|one| one.len()).sum();
        assert!(read <= 256 << 10, "{read} bytes");
        let found = scan(&*medium, &superblock).unwrap();
        assert_eq!((found.len(), found[5].frames.len()), (1 << 18, 1));
        assert!(found[0].empty && found[6].empty && !found[5].empty);
        assert!(found[(1 << 18) - 1].garbage);
    }

    #[test]
    fn a_log_that_is_too_short_is_no_hole() {
        for blocks in [4, 4096] {
            let superblock = Superblock::new("x".into(), SIZE, blocks, None).unwrap();
            let log = tempfile::tempfile().unwrap();
            log.set_len(superblock.log_len() - 1).unwrap();
            let medium = medium::open(log).unwrap();
            let found = scan(&*medium, &superblock);
            assert_eq!(found.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        }
    }

    /// Hosts have been wrong about holes, and the log of a server has none that is worth it.
    #[test]
    fn of_holes_of_a_log_that_is_short_or_mostly_there_the_host_is_not_asked() {
        for (blocks, is_asked) in [(1000, false), (2000, true)] {
            let superblock = Superblock::new("x".into(), SIZE, blocks, None).unwrap();
            let log = tempfile::tempfile().unwrap();
            log.set_len(superblock.log_len()).unwrap();
            let medium = medium::open(log.try_clone().unwrap()).unwrap();
            assert_eq!(medium.is_sparse(), is_asked, "{blocks} blocks");
            let filled = Filled::of_all(&*medium, &superblock).unwrap();
            assert_eq!(filled.blocks(&superblock).len(), if is_asked { 0 } else { blocks as usize });
            // Most of it takes space, and is not written.
            let most = superblock.log_len() as i64 * 2 / 3;
            let flags = nix::fcntl::FallocateFlags::empty();
            if let Err(errno) = nix::fcntl::fallocate(&log, flags, 0, most) {
                eprintln!("SKIPPED: {errno}");
                continue;
            }
            assert!(!medium.is_sparse());
            assert_eq!(Filled::of_all(&*medium, &superblock).unwrap().blocks(&superblock).len(), blocks as usize);
        }
    }
}
