//! Files, in a pool or not, as commands see them: what is recorded of them, their tensors, and the numbers in those.

pub mod attribute;
pub mod choice;
pub mod compare;
pub mod filter;
pub mod glob;
pub mod numbers;
pub mod place;
mod pool_path;
pub mod recorded;
pub mod statistics;
pub mod tensor_file;
pub mod verdict;
