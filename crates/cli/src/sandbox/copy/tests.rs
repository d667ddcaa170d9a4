use super::*;

#[track_caller]
fn check(text: &str, expected: &Place) {
    assert_eq!(text.parse::<Place>().unwrap(), *expected);
}

#[test]
fn a_place_in_a_sandbox_has_its_name_and_an_absolute_path() {
    check(
        "my-box:/workspace/a b",
        &Place::Sandbox { id: "my-box".parse().unwrap(), path: "/workspace/a b".into() },
    );
    assert!("my-box:relative".parse::<Place>().is_err());
}

#[test]
fn what_cannot_be_a_sandbox_is_a_local_path() {
    check("data.csv", &Place::Local("data.csv".into()));
    check("./a:b", &Place::Local("./a:b".into()));
    check("/tmp/x:y", &Place::Local("/tmp/x:y".into()));
}

#[test]
fn a_final_slash_means_into_that_directory() {
    assert_eq!(into_directory("/w/".into(), Some("a.csv")).unwrap(), "/w/a.csv");
    assert_eq!(into_directory("/w/b".into(), Some("a.csv")).unwrap(), "/w/b");
    assert!(into_directory("/w/".into(), None).is_err());
}
