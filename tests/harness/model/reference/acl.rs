//! Access lists, as the kernel stores them in an extended attribute.

pub(super) const OWNER: u16 = 0x01;
pub(super) const NAMED_USER: u16 = 0x02;
pub(super) const GROUP: u16 = 0x04;
pub(super) const NAMED_GROUP: u16 = 0x08;
pub(super) const MASK: u16 = 0x10;
pub(super) const OTHER: u16 = 0x20;

pub(super) struct Entry {
    pub(super) tag: u16,
    pub(super) bits: u16,
    pub(super) id: u32,
}

pub(super) fn entries(value: &[u8]) -> Vec<Entry> {
    let entry = |bytes: &[u8]| Entry {
        tag: u16::from_le_bytes([bytes[0], bytes[1]]),
        bits: u16::from_le_bytes([bytes[2], bytes[3]]),
        id: u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
    };
    value.get(4..).unwrap_or_default().chunks_exact(8).map(entry).collect()
}

pub(super) fn value(entries: &[Entry]) -> Vec<u8> {
    let mut value = 2u32.to_le_bytes().to_vec();
    for entry in entries {
        value.extend(entry.tag.to_le_bytes());
        value.extend(entry.bits.to_le_bytes());
        value.extend(entry.id.to_le_bytes());
    }
    value
}
