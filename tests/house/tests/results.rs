//! What tests/run says of a run: `tests/results` reads what cargo said.

use std::fs;
use std::path::Path;
use std::process::Command;

const PROGRAMS: &str = "    Finished `test` profile in 0.1s
  Executable unittests src/lib.rs (target/debug/deps/tensorfs_fs-1)
  Executable contract/main.rs (target/debug/deps/contract-2)
  Executable suites/main.rs (target/debug/deps/suites-3)
";

/// As cargo says it of one program.
fn told(name: &str, result: &str) -> String {
    format!("     Running {name}\n\nrunning 3 tests\ntest a ... ok\n{result}\n")
}

const WHOLE: &str = "test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s\n";
const FAILED: &str = "test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1s\n";
const FS: &str = "unittests src/lib.rs (target/debug/deps/tensorfs_fs-1)";
const CONTRACT: &str = "contract/main.rs (target/debug/deps/contract-2)";
const SUITES: &str = "suites/main.rs (target/debug/deps/suites-3)";

/// The lines that come of it.
fn results(name: &str, log: &str, status: i32) -> Vec<String> {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::create_dir_all(&dir).unwrap();
    let (programs, said) = (dir.join("programs"), dir.join("log"));
    fs::write(&programs, PROGRAMS).unwrap();
    fs::write(&said, log).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../results");
    let output = Command::new(script).args([programs, said]).arg(status.to_string()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn a_whole_run_is_the_sum_of_its_programs() {
    let log = [told(FS, WHOLE), told(CONTRACT, WHOLE), told(SUITES, WHOLE)].concat();
    assert_eq!(results("whole", &log, 0), ["6 0 3"]);
    let log = [told(FS, WHOLE), told(CONTRACT, FAILED), told(SUITES, WHOLE)].concat();
    assert_eq!(results("failed", &log, 101), ["6 1 2"]);
    // What did not compile is no test, and the documentation has tests, too.
    assert_eq!(
        results("documentation", &[told(FS, WHOLE), told(CONTRACT, WHOLE), told(SUITES, WHOLE)].concat(), 101),
        ["6 1 3"]
    );
    let log = [told(FS, WHOLE), told(CONTRACT, WHOLE), told(SUITES, WHOLE), "   Doc-tests x\n\n".into()].concat();
    assert_eq!(results("words", &log, 101), ["6 1 3", "NO RESULT: x"]);
}

#[test]
fn a_run_that_was_cut_names_what_gave_no_result_and_has_failed() {
    // In the middle of one; the last one never began.
    let log = [told(FS, WHOLE), told(CONTRACT, "")].concat();
    for status in [124, 137] {
        let lines = results(&format!("cut-{status}"), &log, status);
        assert_eq!(lines[0], "2 3 1");
        assert!(lines[1].starts_with("CUT: "), "{lines:?}");
        assert_eq!(lines[2..], [format!("NO RESULT: {CONTRACT}"), format!("NO RESULT: {SUITES}")]);
    }
    // Also if all had been told: one that failed and passed alone must not make up for it.
    let log = [told(FS, FAILED), told(CONTRACT, WHOLE), told(SUITES, WHOLE)].concat();
    assert_eq!(results("cut-late", &log, 124)[0], "6 2 2");
}

#[test]
fn a_program_of_tests_that_ends_without_a_result_has_failed() {
    let log = [told(FS, WHOLE), told(CONTRACT, ""), told(SUITES, FAILED)].concat();
    assert_eq!(results("crashed", &log, 101), ["4 2 1".to_owned(), format!("NO RESULT: {CONTRACT}")]);
}
