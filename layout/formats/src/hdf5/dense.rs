//! Groups of many links: the links are in a fractal heap, and a tree sorted by the hashes of their names says where.
//!
//! <https://support.hdfgroup.org/documentation/hdf5/latest/_f_m_t3.html>, III.A.2, III.G

use crate::fault::{Result, malformed};
use crate::hdf5::file::File;
use crate::hdf5::link::{Links, link};

/// What a node takes beside its records: signature, version, kind, checksum.
const AROUND: u64 = 10;
/// What stands in the place of an object that is too large for a block.
const HUGE: u8 = 0x10;
/// The kind of a tree of links by their names.
const BY_NAME: u8 = 5;
/// Levels of a tree and of a heap.
const LEVELS_MAX: u64 = 16;

/// Bytes that hold numbers up to this one.
fn width_of(most: u64) -> usize {
    most.max(1).ilog2() as usize / 8 + 1
}

/// The links of the group that has its links in this heap.
pub(crate) fn links(file: &mut File<'_>, heap: u64, names: u64, links: &mut Links) -> Result<()> {
    let heap = Heap::open(file, heap)?;
    let tree = Tree::open(file, names)?;
    let Some((root, count)) = tree.root else { return Ok(()) };
    let mut passed_over = 0;
    node(file, &tree, &heap, (root, count, tree.levels), links, &mut passed_over)?;
    match passed_over {
        0 => Ok(()),
        1 => malformed("a link of it, which is so long that it is kept in another way"),
        count => malformed(format!("{count} links of it, which are so long that they are kept in another way")),
    }
}

/// A tree of the second version.
struct Tree {
    /// Bytes of a record, and of the number of records in a node.
    record: u64,
    count_width: usize,
    /// For each level, the most records below it, and bytes of their number.
    below: Vec<(u64, usize)>,
    levels: u64,
    root: Option<(u64, u64)>,
}

impl Tree {
    fn open(file: &mut File<'_>, at: u64) -> Result<Tree> {
        file.open(at, b"BTHD")?;
        let (version, kind) = (file.u8()?, file.u8()?);
        let (node, record, levels) = (u64::from(file.u32()?), u64::from(file.u16()?), u64::from(file.u16()?));
        file.skip(2)?;
        let root = file.address()?;
        let count = u64::from(file.u16()?);
        if version != 0 || kind != BY_NAME || record < 5 || node < AROUND + record || levels > LEVELS_MAX {
            return malformed("a tree of links that cannot be");
        }
        let (address, _) = file.widths();
        let mut most = (node - AROUND) / record;
        let count_width = width_of(most);
        let mut below = vec![(most, 0)];
        for _ in 0..levels {
            let pointer = (address + count_width + below.last().map_or(0, |(_, width)| *width)) as u64;
            let own = (node - AROUND).saturating_sub(pointer) / (record + pointer);
            most = most.saturating_mul(own + 1).saturating_add(own);
            below.push((most, width_of(most)));
        }
        Ok(Tree { record, count_width, below, levels, root: root.map(|root| (root, count)) })
    }
}

/// A node, with how many records it has and how many levels are below it.
fn node(
    file: &mut File<'_>,
    tree: &Tree,
    heap: &Heap,
    (at, count, levels): (u64, u64, u64),
    links: &mut Links,
    passed_over: &mut u64,
) -> Result<()> {
    file.open(at, if levels == 0 { b"BTLF" } else { b"BTIN" })?;
    file.skip(2)?;
    let records = file.at();
    if records.checked_add(count * tree.record).is_none() {
        return malformed("a tree of links beyond all files");
    }
    for n in 0..count {
        // Behind the hash of the name.
        file.seek(records + n * tree.record + 4);
        let Some((at, len)) = heap.object(file)? else {
            *passed_over += 1;
            continue;
        };
        file.seek(at);
        link(file, at.saturating_add(len), links)?;
    }
    if levels == 0 {
        return Ok(());
    }
    let width = tree.below.get(levels as usize - 1).map_or(0, |(_, width)| *width);
    let (address, _) = file.widths();
    for n in 0..=count {
        file.seek(records + count * tree.record + n * (address + tree.count_width + width) as u64);
        let (child, of) = (file.address()?, file.number(tree.count_width)?);
        let Some(child) = child else { return malformed("a tree of links without a branch") };
        node(file, tree, heap, (child, of, levels - 1), links, passed_over)?;
    }
    Ok(())
}

/// A heap of objects in blocks: so many in a row, of which each is twice as large as in the row before, but the second.
struct Heap {
    /// Bytes of a place in the heap, and of the length of an object.
    place: usize,
    len: usize,
    columns: u64,
    first: u64,
    /// Rows of blocks with objects in them; in those behind it are blocks of blocks.
    direct: u64,
    root: u64,
    /// None if the root is a block with objects in it.
    rows: Option<u64>,
    /// What stands in a block of blocks in front of the addresses.
    head: u64,
}

impl Heap {
    fn open(file: &mut File<'_>, at: u64) -> Result<Heap> {
        file.open(at, b"FRHP")?;
        let (address, length) = file.widths();
        let (version, _id, filters, _flags) = (file.u8()?, file.u16()?, file.u16()?, file.u8()?);
        let largest_object = u64::from(file.u32()?);
        // What large objects there are, what is free, and how many objects of each kind.
        file.skip((2 * address + 10 * length) as u64)?;
        let columns = u64::from(file.u16()?);
        let (first, largest) = (file.length()?, file.length()?);
        let (bits, _rows) = (file.u16()?, file.u16()?);
        let Some(root) = file.address()? else { return malformed("a heap without its root") };
        let rows = u64::from(file.u16()?);
        if version != 0 || filters != 0 || bits == 0 || bits > 64 || largest > u64::MAX / 4 {
            return malformed("a heap of links of another kind");
        }
        if !columns.is_power_of_two() || !first.is_power_of_two() || !largest.is_power_of_two() || largest < first {
            return malformed("a heap of links that cannot be");
        }
        let place = usize::from(bits).div_ceil(8);
        let len = width_of(largest).min(width_of(largest_object));
        let direct = u64::from(largest.ilog2() - first.ilog2()) + 2;
        let head = (5 + address + place) as u64;
        Ok(Heap { place, len, columns, first, direct, root, rows: (rows > 0).then_some(rows), head })
    }

    /// Where the object is, the name of which stands here, and its length. None if it is not in a block.
    fn object(&self, file: &mut File<'_>) -> Result<Option<(u64, u64)>> {
        match file.u8()? & 0xf0 {
            0 => {}
            HUGE => return Ok(None),
            _ => return malformed("a link that is kept in an unknown way"),
        }
        let (place, len) = (file.number(self.place)?, file.number(self.len)?);
        Ok(Some((self.find(file, place)?, len)))
    }

    fn find(&self, file: &mut File<'_>, place: u64) -> Result<u64> {
        let (mut block, mut place, mut rows) = (self.root, place, self.rows);
        for _ in 0..LEVELS_MAX {
            let Some(count) = rows else {
                return block.checked_add(place).map_or_else(|| malformed("a link beyond all files"), Ok);
            };
            let row_of = |row: u64| self.first.checked_shl(u32::try_from(row.saturating_sub(1)).unwrap_or(64));
            let width = self.first.saturating_mul(self.columns);
            let row = if place < width { 0 } else { u64::from(place.ilog2() - width.ilog2()) + 1 };
            let Some(size) = row_of(row).filter(|size| row < count && *size > 0) else {
                return malformed("a link that is not in its heap");
            };
            place -= if row == 0 { 0 } else { size.saturating_mul(self.columns) };
            let entry = row * self.columns + place / size;
            place %= size;
            let (address, _) = file.widths();
            let Some(at) = block.checked_add(self.head + entry * address as u64) else {
                return malformed("a heap beyond all files");
            };
            file.seek(block);
            file.expect(b"FHIB")?;
            file.seek(at);
            let Some(child) = file.address()? else { return malformed("a heap without a block") };
            block = child;
            // As many as there are up to the size of the block.
            rows = (row >= self.direct).then(|| u64::from(size.ilog2().saturating_sub(width.ilog2())) + 1);
        }
        malformed("a heap nested too deep")
    }
}
