//! What recognising a file may take, whatever the file says.

/// The most memory that recognising a file takes, in bytes.
pub const MEMORY: usize = 64 << 20;
/// The most dimensions of a tensor.
pub const DIMENSIONS_MAX: usize = 64;
/// The longest name of a tensor, in bytes.
pub const NAME_MAX: usize = 65_535;
/// The most tensors in a file, event files excepted.
pub const TENSORS_MAX: usize = 1 << 20;

/// So many characters of what a file says are repeated where it is said what is wrong with it.
const EXCERPT: usize = 200;

/// The beginning of a text from a file, to be repeated.
pub(crate) fn excerpt(text: &str) -> &str {
    text.char_indices().nth(EXCERPT).map_or(text, |(end, _)| &text[..end])
}

/// `Vec::push` that grows by half rather than doubling, so that memory stays near what is counted.
pub(crate) fn push<T>(vec: &mut Vec<T>, value: T) {
    if vec.len() == vec.capacity() {
        vec.reserve_exact((vec.len() / 2).max(16));
    }
    vec.push(value);
}
