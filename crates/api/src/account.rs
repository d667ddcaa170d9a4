//! `/v1/tenants` (000 *Tenants*) and `/v1/auth` (000 *Auth*): accounts, and how one signs in.

use jiff::Timestamp;
use model::{Email, Error};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

#[derive(Debug, Clone, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "email": "you@example.com" }))]
pub struct SignIn {
    /// Where the code is sent.
    pub email: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({ "message": "OTP sent" }))]
pub struct CodeSent {
    /// Always `OTP sent`.
    pub message: String,
    /// The code itself: in test mode, for addresses of its domain alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verify_code: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "email": "you@example.com", "code": "123456" }))]
pub struct VerifyCode {
    pub email: String,
    /// Six digits, as they were sent.
    pub code: String,
}

/// An account with a new key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TenantCreated {
    /// `usr_…`
    pub tenant_id: String,
    pub key_id: String,
    pub prefix: String,
    /// The whole secret. It is shown here, once, and nowhere else.
    pub api_key: String,
    pub plan_tier: String,
    pub created_at: Timestamp,
    /// The account's own token, for what takes no API key.
    pub token: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Tenant {
    /// `usr_…`
    pub tenant_id: String,
    /// `null` for an owner whom the operator made.
    pub email: Option<String>,
    pub created_at: Timestamp,
    pub plan: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SignedIn {
    /// The account's own token.
    pub token: String,
    /// `usr_…`
    pub user_id: String,
    pub email: String,
}

/// A key just made, as `/v1/tenants/me/api-keys` shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TenantKeyCreated {
    pub key_id: String,
    pub prefix: String,
    /// The whole secret. It is shown here, once, and nowhere else.
    pub api_key: String,
    pub plan_tier: String,
    pub created_at: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TenantKeys {
    /// Newest first, revoked ones too.
    pub keys: Vec<crate::ApiKey>,
}

impl SignIn {
    pub fn email(&self) -> Result<Email, Error> {
        self.email.parse()
    }
}

impl VerifyCode {
    pub fn email(&self) -> Result<Email, Error> {
        self.email.parse()
    }
}
