//! Which paths are refused.

use proptest::prelude::{prop, proptest};

use super::check_path;

proptest! {
    #[test]
    fn a_path_that_is_taken_never_leads_up(parts in prop::collection::vec("[.a/]{0,4}", 0..6)) {
        let path = parts.join("/");
        if check_path("path", &path).is_ok() {
            let climbs = |part| matches!(part, std::path::Component::ParentDir);
            assert!(path.starts_with('/') && !std::path::Path::new(&path).components().any(climbs));
        }
    }
}

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
