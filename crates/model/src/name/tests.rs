use super::*;

#[test]
fn a_generated_name_is_a_valid_name() {
    for _ in 0..200 {
        let name = Name::generate();
        assert_eq!(name.as_str().parse::<Name>().unwrap(), name);
    }
}

#[test]
fn bad_names_are_refused_with_the_field() {
    for bad in ["", "-a", "a-", "sb-a", "A", "a_b", "a.b", "ä", &"x".repeat(64)] {
        let error = bad.parse::<Name>().unwrap_err();
        assert!(matches!(error, Error::Invalid { ref field, .. } if field == "name"), "{bad}");
    }
}
