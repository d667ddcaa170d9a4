//! What a caller reads when a body is wrong.

use model::Error;
use serde::Deserialize;

use super::{from_value, parse};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Outer {
    #[expect(dead_code, reason = "only its type matters")]
    count: u32,
    #[serde(default)]
    #[expect(dead_code, reason = "only its type matters")]
    inner: Vec<Inner>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Inner {
    #[expect(dead_code, reason = "only its type matters")]
    name: String,
}

#[track_caller]
fn check(body: &str, field: &str, says: &str) {
    let error = parse::<Outer>(body.as_bytes()).unwrap_err();
    let Error::Invalid { field: named, detail } = error else { panic!("{error:?}") };
    assert_eq!(named, field, "{detail}");
    assert!(detail.contains(says), "{detail}");
}

#[test]
fn the_field_is_named() {
    check("", "body", "is empty");
    check("{", "body", "EOF");
    check("[]", "body", "must be a JSON object");
    check("[1]", "body", "must be a JSON object");
    check("{]", "body", "key must be a string");
    check("{}", "count", "missing");
    check("{} x", "count", "missing");
    check(r#"{"count": 1} {}"#, "body", "more than one value");
    check(r#"{"count": "1"}"#, "count", "invalid type");
    check(r#"{"count": -1}"#, "count", "invalid value");
    check(r#"{"count": 1, "count": 2}"#, "count", "duplicate field");
    check(r#"{"count": 1, "size": 2}"#, "size", "unknown field");
    check(r#"{"count": 1, "inner": [{"name": 1}]}"#, "inner[0].name", "invalid type");
    check(r#"{"count": 1, "inner": [{}]}"#, "inner[0].name", "missing field");
    check(r#"{"count": 1, "inner": [{"name": "x", "y": 1}]}"#, "inner[0].y", "unknown field");
}

#[test]
fn a_nested_value_is_named_from_its_parent() {
    let value = serde_json::json!({ "count": 1, "inner": [{ "name": 7 }] });
    let error = from_value::<Outer>("app_json", value).unwrap_err();
    let Error::Invalid { field, .. } = error else { panic!("{error:?}") };
    assert_eq!(field, "app_json.inner[0].name");
}
