//! Which paths are refused.

use super::check_path;

#[test]
fn paths_are_absolute_and_never_climb() {
    for good in ["/", "/workspace/a b.csv", "/tmp/..a", "/tmp/a..", "/tmp/...", "/ü"] {
        assert!(check_path("path", good).is_ok(), "{good}");
    }
    let long = format!("/{}", "a".repeat(4096));
    for bad in ["", "a", "./a", "/..", "/a/../b", "/a/..", "..", "/a\0b", long.as_str()] {
        assert!(check_path("path", bad).is_err(), "{bad}");
    }
}
