//! The layout of the code stays at least as good as it is: `tests/house --check` (ARCHITECTURE.md,
//! docs/house.md).

use crate::common;

use std::process::Command;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/house");

#[test]
fn folders_functions_loops_and_arrows_are_within_their_limits() {
    if !common::installed("python3") {
        return common::skip("python3 is not installed");
    }
    let output = Command::new("python3").args([SCRIPT, "--check"]).output().expect("the script");
    let (figures, over) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{over}{figures}");
    // It has measured something.
    assert!(figures.contains("median function") && figures.lines().count() > 10, "{figures}");
}
