//! A model-based test: random operations on tensorfs and on ext4, and what must hold of them. `tests/suites/model.rs`
//! says what is proved.

pub mod fill;
pub mod generate;
pub mod history;
pub mod lockstep;
pub mod op;
pub mod play;
pub mod reference;
pub mod shared;
pub mod shrink;
pub mod system;
pub mod users;
