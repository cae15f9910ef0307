//! One case again, as a failure prints it.

use tensorfs_crash::case::Case;

use crate::campaign::{THOROUGH, run};

#[test]
fn replay() {
    let Ok(text) = std::env::var("TENSORFS_CRASH_CASE") else { return };
    let case = Case::parse(&text).unwrap_or_else(|| panic!("{text:?} is no case"));
    run("replay", vec![case], THOROUGH);
}
