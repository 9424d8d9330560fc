//! The summary at the end of `make test`, from the output of cargo and libtest.

use std::process::Command;

const PRINTED: &str = "\
Compiling a
     Running unittests src/lib.rs (target/debug/deps/a-1)
running 6 tests
skipped tests::b: no cgroup: Permission denied
skipped tests::b: no loop device
test tests::a ... ok
test tests::b ... ok
test tests::c ... FAILED
test result: FAILED. 2 passed; 1 failed; 3 ignored; 0 measured; 0 filtered out; finished in 0.00s
     Running tests/it/main.rs (target/debug/deps/it-1)
running 2 tests
test x ... ok
error: test failed, to rerun pass `-p b --test it`
   Doc-tests flowstone_x
running 2 tests
test crates/x/src/lib.rs - y (line 3) ... FAILED
test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
";

const SAID: &str = "
3 long ones are left to `make soak`.
Skipped, wholly or in part:
    tests::b: no cgroup: Permission denied
    tests::b: no loop device
Failed:
    tests::c (unittests src/lib.rs (target/debug/deps/a-1))
    tests/it/main.rs (target/debug/deps/it-1), which ended early
    crates/x/src/lib.rs - y (line 3) (Doc-tests flowstone_x)
2 passed, 3 failed, 1 skipped
";

/// A binary ended by a signal printed no result, and was not counted.
#[test]
fn the_end_of_make_test_counts_what_passed_failed_and_was_skipped() {
    let log = format!("{}/printed.log", env!("CARGO_TARGET_TMPDIR"));
    std::fs::write(&log, PRINTED).unwrap();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/run-tests");
    let output = Command::new(script).args(["--summary", &log]).output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), SAID);
}
