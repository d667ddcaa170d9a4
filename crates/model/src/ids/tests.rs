use proptest::prelude::*;

use super::*;

#[test]
fn an_id_reads_back_in_any_case_with_and_without_its_prefix() {
    let id = SandboxId::generate();
    assert_eq!(id.to_string().parse::<SandboxId>().unwrap(), id);
    assert_eq!(id.bare().parse::<SandboxId>().unwrap(), id);
    assert_eq!(id.to_string().to_uppercase().parse::<SandboxId>().unwrap(), id);
    assert_eq!(id.to_string().len(), 29);
}

#[test]
fn ids_sort_by_time() {
    let first = SandboxId::generate();
    let second = SandboxId::generate();
    assert!(first.to_string() < second.to_string());
}

#[test]
fn a_reference_is_an_id_or_a_name_or_not_found() {
    assert!(matches!("fragrant-bird-7x2".parse(), Ok(SandboxRef::Name(_))));
    assert!(matches!(SandboxId::generate().to_string().parse(), Ok(SandboxRef::Id(_))));
    for bad in ["sb-short", "", "../etc", "UPPER", "sb-!!!!!!!!!!!!!!!!!!!!!!!!!!"] {
        assert!(matches!(bad.parse::<SandboxRef>(), Err(Error::NotFound { .. })), "{bad}");
    }
}

proptest! {
    #[test]
    fn parsing_an_id_never_panics_and_is_canonical(text in "\\PC{0,40}") {
        if let Ok(id) = text.parse::<SandboxId>() {
            prop_assert_eq!(id.bare().parse::<SandboxId>().unwrap(), id);
        }
    }
}
