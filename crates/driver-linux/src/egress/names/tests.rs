//! The map of names and addresses.

use super::*;

#[test]
fn a_name_keeps_its_address_also_in_a_new_map() {
    let mut names = Names::default();
    let first = names.address("example.com");
    let other = names.address("example.org");
    assert_ne!(first, other);
    assert_eq!(names.address("example.com"), first);
    assert_eq!(names.name(first).as_deref(), Some("example.com"));
    assert!(Names::covers(first) && Names::covers(other));
    assert!(!Names::covers(Ipv4Addr::new(198, 20, 0, 0)));
    assert!(!Names::covers(Ipv4Addr::new(198, 17, 255, 255)));
    assert_eq!(Names::default().address("example.com"), first);
}

#[test]
fn names_of_the_policy_stand_from_the_start() {
    let mut names = Names::default();
    let expected = Names::default().address("db.example.com");
    assert_eq!(names.name(expected), None);
    names.enter(&Policy::parse(&["db.example.com:5432".into(), "public".into()]).unwrap());
    assert_eq!(names.name(expected).as_deref(), Some("db.example.com"));
}

#[test]
fn the_least_recently_used_name_makes_room() {
    let mut names = Names::default();
    let kept = names.address("kept");
    let lost = names.address("lost");
    for i in 0..NAMES_MAX {
        names.address(&format!("n{i}"));
        names.name(kept).unwrap();
    }
    assert_eq!(names.by_name.len(), NAMES_MAX);
    assert_eq!(names.by_address.len(), NAMES_MAX);
    assert_eq!(names.by_use.len(), NAMES_MAX);
    assert_eq!(names.name(kept).as_deref(), Some("kept"));
    assert_ne!(names.name(lost).as_deref(), Some("lost"));
}

#[test]
fn no_address_is_that_of_the_listener_or_stands_for_two_names() {
    let mut names = Names::default();
    let mut seen = std::collections::HashSet::new();
    for i in 0..NAMES_MAX {
        let address = names.address(&format!("host-{i}.example.com"));
        assert_ne!(address, *keeper::egress::LISTENER.ip());
        assert!(seen.insert(address), "{address} stands for two names");
    }
}
