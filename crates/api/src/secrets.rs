//! `/v1/tenants/me/secrets` (000 *Secrets*). Values come in and never go out.

use std::collections::BTreeMap;

use jiff::Timestamp;
use model::{BundleName, Error, SecretValues};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// A new bundle.
#[derive(Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "name": "my-llm-keys", "values": { "LLM_API_KEY": "sk-ant-…" } }))]
pub struct CreateBundle {
    /// `^[a-z0-9][a-z0-9-]{0,62}$`
    pub name: String,
    /// At most 50 keys, of letters, digits and `_`; at most 64 KiB a value.
    #[schema(value_type = BTreeMap<String, String>)]
    pub values: Value,
}

/// All values of a bundle, to replace those that it has.
#[derive(Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "values": { "LLM_API_KEY": "sk-ant-…" } }))]
pub struct RotateBundle {
    /// At most 50 keys, of letters, digits and `_`; at most 64 KiB a value.
    #[schema(value_type = BTreeMap<String, String>)]
    pub values: Value,
}

/// Everything about a bundle but its values.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({
    "name": "my-llm-keys",
    "key_names": ["LLM_API_KEY"],
    "created_at": "2026-05-01T12:00:00Z",
    "last_rotated_at": "2026-05-01T14:00:00Z"
}))]
pub struct Bundle {
    pub name: String,
    pub key_names: Vec<String>,
    pub created_at: Timestamp,
    /// Absent until it is rotated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_rotated_at: Option<Timestamp>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Bundles {
    pub bundles: Vec<Bundle>,
}

/// What a rotation answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RotatedBundle {
    pub name: String,
    pub key_names: Vec<String>,
    pub last_rotated_at: Timestamp,
}

/// That something is gone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({ "status": "deleted" }))]
pub struct Deleted {
    pub status: String,
}

impl Default for Deleted {
    fn default() -> Self {
        Self { status: "deleted".into() }
    }
}

impl CreateBundle {
    pub fn check(self) -> Result<(BundleName, SecretValues), Error> {
        Ok((self.name.parse()?, values(self.values)?))
    }
}

impl RotateBundle {
    pub fn check(self) -> Result<SecretValues, Error> {
        values(self.values)
    }
}

/// By hand: what a parser says of a wrong value repeats it.
fn values(given: Value) -> Result<SecretValues, Error> {
    let Value::Object(given) = given else {
        return Err(Error::invalid("values", "must be an object of keys and their values"));
    };
    let mut texts = BTreeMap::new();
    for (name, value) in given {
        let Value::String(text) = value else {
            return Err(Error::invalid("values", "every value must be a string"));
        };
        texts.insert(name, text);
    }
    SecretValues::new(texts)
}
