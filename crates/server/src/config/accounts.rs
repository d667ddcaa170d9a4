//! The settings of accounts: codes, mail, tokens.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How people sign in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Auth {
    /// Of one address, over everything that takes no credential.
    pub attempts_per_minute: u32,
    pub token_seconds: u64,
}

/// How codes are sent; without any way, they are files in the data directory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MailSettings {
    pub from: String,
    pub smtp_url: Option<Secret>,
    pub ses_region: Option<String>,
    pub ses_endpoint: Option<String>,
    pub ses_access_key_id: Option<String>,
    pub ses_secret_access_key: Option<Secret>,
    pub log_codes: bool,
}

/// An issuer whose tokens are taken besides ours.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OidcSettings {
    pub issuer: Option<String>,
    pub audience: Option<String>,
    pub jwks_url: Option<String>,
}

/// Text that no log shows.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

impl Default for Auth {
    fn default() -> Self {
        Self { attempts_per_minute: 60, token_seconds: 3600 }
    }
}

impl Default for MailSettings {
    fn default() -> Self {
        Self {
            from: "Bastide <bastide@localhost>".into(),
            smtp_url: None,
            ses_region: None,
            ses_endpoint: None,
            ses_access_key_id: None,
            ses_secret_access_key: None,
            log_codes: false,
        }
    }
}
