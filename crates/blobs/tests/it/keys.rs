//! No key leads out of its scope.

use blobs::Key;

#[test]
fn what_could_lead_elsewhere_is_no_key() {
    for bad in [
        "", "/", "/a", "a/", "a//b", ".", "..", "../a", "a/../b", "a/./b", "a/..", "a\0b", "a\nb",
        "a\\..\\b", "\u{7f}",
    ] {
        assert!(bad.parse::<Key>().is_err(), "{bad:?}");
    }
    assert!("x".repeat(256).parse::<Key>().is_err());
    assert!("é".repeat(100).parse::<Key>().is_err(), "as it is stored");
    assert!("abc/".repeat(300).trim_end_matches('/').parse::<Key>().is_err());
}

#[test]
fn what_people_call_files_is_a_key() {
    for good in ["a", "a/b.txt", "..a", "a..", "...", "-", "a b", "ü/日本", "100%", "#x?y&z=*", "~"]
    {
        assert_eq!(good.parse::<Key>().unwrap().as_str(), good);
    }
}
