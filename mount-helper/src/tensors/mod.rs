//! Files, in a pool or not, as commands see them: what is recorded of them, their tensors, and the numbers in those.

pub mod account;
pub mod assembled;
pub mod attribute;
pub mod bound;
mod called;
pub mod choice;
pub mod chunks;
pub mod compare;
pub mod database;
pub mod filter;
pub mod glob;
pub mod grid;
pub mod hierarchy;
pub mod listed;
pub mod model;
pub mod numbers;
pub mod place;
pub mod plan;
mod pool_path;
pub mod recorded;
pub mod single;
pub mod statistics;
pub mod tensor_file;
pub mod tiling;
pub mod verdict;
