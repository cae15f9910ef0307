//! Bytes of records on media, header and padding included, by what they hold.

use crate::log::codec::padded;

/// Bytes of a record's header.
pub(crate) const HEADER: usize = 24;

const fn with_body(body: usize) -> usize {
    HEADER + padded(body)
}

pub(crate) const ATTRIBUTES: usize = with_body(80);
pub(crate) const DATA: usize = with_body(DATA_BODY);
pub(crate) const TRUNCATION: usize = with_body(40);
pub(crate) const THAW: usize = with_body(24);
pub(crate) const PROVISIONAL: usize = with_body(16);
pub(crate) const REPLACE: usize = with_body(8);
pub(crate) const RETIRED: usize = with_body(16);

const DATA_BODY: usize = 32;

/// Where a run comes from, behind the rest of its record.
pub(crate) const ORIGIN: usize = 16;

/// A name in a directory.
pub(crate) const fn name(name: usize) -> usize {
    with_body(8 + 2 + name)
}

/// The removal of a name, or of an extended attribute.
pub(crate) const fn removal(name: usize) -> usize {
    with_body(2 + name)
}

/// The target of a symbolic link.
pub(crate) const fn target(target: usize) -> usize {
    with_body(2 + target)
}

/// An extended attribute.
pub(crate) const fn xattr(name: usize, value: usize) -> usize {
    with_body(2 + name + 4 + value)
}

/// A sealed run with a description.
pub(crate) const fn sealed(description: usize) -> usize {
    with_body(DATA_BODY + 8 + description)
}

/// All bytes of a small file.
pub(crate) const fn value(bytes: usize) -> usize {
    with_body(8 + 4 + bytes)
}

/// A tier.
pub(crate) const fn tier(name: usize, directory: usize) -> usize {
    with_body(24 + 2 + name + 2 + directory)
}

/// A placement map.
pub(crate) const fn placement(text: usize) -> usize {
    with_body(4 + text)
}
