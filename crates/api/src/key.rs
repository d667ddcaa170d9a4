//! `/v1/api-keys` (000 *API Keys*).

use jiff::Timestamp;
use model::{Error, OwnerId, Plan};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The body may be left out altogether.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateKey {
    /// Whose key it will be: `usr_…`. Only the operator may name somebody else.
    #[serde(default)]
    pub owner: Option<String>,
    /// The plan of that owner: `free` or `operator`. Only the operator may say it.
    #[serde(default)]
    pub plan: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CreatedKey {
    pub key_id: String,
    /// The whole secret. It is shown here, once, and nowhere else.
    pub key: String,
    pub prefix: String,
    pub owner: String,
    pub plan_tier: String,
    pub created_at: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ApiKeys {
    pub api_keys: Vec<ApiKey>,
}

/// A key without its secret. Revoked ones stay in the list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ApiKey {
    pub key_id: String,
    pub prefix: String,
    pub revoked: bool,
    pub created_at: Timestamp,
    pub plan_tier: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({ "status": "revoked" }))]
pub struct Revoked {
    pub status: String,
}

impl CreateKey {
    pub fn owner(&self) -> Result<Option<OwnerId>, Error> {
        let owner: Option<OwnerId> = self.owner.as_deref().map(str::parse).transpose()?;
        match owner {
            Some(owner) if owner.is_of_code_mode() => {
                Err(Error::invalid("owner", format!("this name is the platform's own: {owner}")))
            }
            owner => Ok(owner),
        }
    }

    pub fn plan(&self) -> Result<Option<Plan>, Error> {
        let Some(text) = self.plan.as_deref() else { return Ok(None) };
        Plan::parse(text)
            .map(Some)
            .ok_or_else(|| Error::invalid("plan", format!("not a plan: {text:?}; try free")))
    }
}
