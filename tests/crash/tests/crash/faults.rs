//! Faults that crash images showed, each with the case that showed it. Those of the layout alone are in
//! layout/tests/pool.

use tensorfs_crash::case::Case;

use crate::campaign::{THOROUGH, run};

fn survives(case: &str) {
    let parsed = Case::parse(case).unwrap_or_else(|| panic!("{case:?} is no case"));
    run(case, vec![parsed], THOROUGH);
}

/// The truncation had been recorded and done, but no record said that it was: recovery did it again.
#[test]
fn bytes_appended_behind_a_truncation_outlive_a_killed_server() {
    survives("cached:fsync:tree:unlink,save,cut,append-open,append-open");
    survives("dax:close:tree:save,cut,append-open,mkdir");
}

/// A quarantine entry got its name before its note: a recovery that was interrupted in between left it without one.
#[test]
fn an_interrupted_recovery_leaves_no_quarantine_entry_without_a_note() {
    survives("cached:fsync:edge:save");
    survives("dax:close:tree:create-fsync");
    survives("dax:close:tree:replace");
}

/// Taking an entry back was interrupted when its note was gone and its name was not: no recovery got past that.
#[test]
fn an_entry_without_a_note_does_not_stop_recovery() {
    survives("dax:fsync:tree:replace-open");
    survives("cached:fsync:edge:replace-open");
}
