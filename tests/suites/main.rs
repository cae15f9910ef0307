//! Suites of filesystem tests: public ones, and this project's own, which compares random operations with ext4.

mod model;
mod public;
