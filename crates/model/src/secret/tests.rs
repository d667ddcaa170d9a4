use super::*;

#[test]
fn names_of_bundles_are_as_documented() {
    for good in ["a", "0", "my-llm-keys", "a-", &"a".repeat(63)] {
        assert_eq!(good.parse::<BundleName>().unwrap().as_str(), good);
    }
    for bad in ["", "-a", "A", "a_b", "a.b", "a/b", "../a", "a b", "é", "a\n", &"a".repeat(64)] {
        assert!(bad.parse::<BundleName>().is_err(), "{bad:?}");
    }
}

#[track_caller]
fn refused(values: impl IntoIterator<Item = (String, String)>, field: &str) {
    match SecretValues::new(values.into_iter().collect()) {
        Err(Error::Invalid { field: named, detail }) => {
            assert_eq!(named, field, "{detail}");
            assert!(!detail.contains("hush"), "{detail}");
        }
        other => panic!("{other:?}"),
    }
}

fn one(name: &str, value: &str) -> Vec<(String, String)> {
    vec![(name.into(), value.into())]
}

#[test]
fn keys_and_values_have_their_bounds() {
    refused([], "values");
    refused((0..51).map(|i| (format!("K{i}"), "hush".into())), "values");
    assert!(SecretValues::new((0..50).map(|i| (format!("K{i}"), String::new())).collect()).is_ok());
    refused(one("K", &"hush".repeat(16 * 1024 + 1)), "values.K");
    assert!(SecretValues::new(one("K", &"x".repeat(64 * 1024)).into_iter().collect()).is_ok());
    for bad in ["", "1A", "A-B", "A=B", "é", "A\n", &"K".repeat(129)] {
        refused(one(bad, "hush"), "values");
    }
    refused(one("K", "hush\0"), "values.K");
}

#[test]
fn reserved_names_are_refused_and_the_models_key_is_not() {
    for name in ["AGENT_TYPE", "LLM_KEY", "LLM_MODEL", "TASK", "SESSION_ID", "AGENT_CMD"] {
        refused(one(name, "hush"), &format!("values.{name}"));
    }
    refused(one("E2A_PERSISTENCE_AUTH_HEADER", "hush"), "values.E2A_PERSISTENCE_AUTH_HEADER");
    assert!(SecretValues::new(one("LLM_API_KEY", "hush").into_iter().collect()).is_ok());
}

#[test]
fn a_value_is_not_shown() {
    let values = SecretValues::new(one("K", "hush").into_iter().collect()).unwrap();
    assert!(!format!("{values:?}").contains("hush"));
}
