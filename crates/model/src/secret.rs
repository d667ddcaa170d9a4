//! Bundles of secrets (000 *Secrets*): what one may be called, and what may be in it.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{Error, reserved};

/// Bundles of one owner.
pub const BUNDLES_MAX: usize = 50;
/// Keys of one bundle.
pub const BUNDLE_KEYS_MAX: usize = 50;
/// Of one value.
pub const SECRET_BYTES_MAX: usize = 64 * 1024;
/// Of a key's name.
const KEY_BYTES_MAX: usize = 128;

/// `^[a-z0-9][a-z0-9-]{0,62}$`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct BundleName(String);

/// Text that never shows up in a log.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretText(pub String);

/// What is in a bundle, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretValues(BTreeMap<String, SecretText>);

impl BundleName {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for BundleName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let good = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
        let length = (1..=63).contains(&text.len());
        if !length || !text.bytes().all(good) || text.starts_with('-') {
            let detail = "must be 1 to 63 of a-z, 0-9 and -, and not begin with -";
            return Err(Error::invalid("name", detail));
        }
        Ok(Self(text.to_owned()))
    }
}

impl TryFrom<String> for BundleName {
    type Error = Error;

    fn try_from(text: String) -> Result<Self, Error> {
        text.parse()
    }
}

impl From<BundleName> for String {
    fn from(name: BundleName) -> Self {
        name.0
    }
}

impl fmt::Display for BundleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretText(…)")
    }
}

impl SecretValues {
    /// No refusal repeats a value.
    pub fn new(values: BTreeMap<String, String>) -> Result<Self, Error> {
        if values.is_empty() {
            return Err(Error::invalid("values", "at least one key"));
        }
        if values.len() > BUNDLE_KEYS_MAX {
            return Err(Error::invalid("values", format!("at most {BUNDLE_KEYS_MAX} keys")));
        }
        for (name, value) in &values {
            check_key(name)?;
            if value.len() > SECRET_BYTES_MAX {
                let detail = format!("at most {SECRET_BYTES_MAX} bytes");
                return Err(Error::invalid(format!("values.{name}"), detail));
            }
            if value.contains('\0') {
                let detail = "must not contain a NUL byte";
                return Err(Error::invalid(format!("values.{name}"), detail));
            }
        }
        Ok(Self(values.into_iter().map(|(name, value)| (name, SecretText(value))).collect()))
    }

    pub fn key_names(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }

    pub fn into_map(self) -> BTreeMap<String, SecretText> {
        self.0
    }
}

/// Keys become variables of an agent's environment. `LLM_API_KEY` is for bundles (ruling 16).
fn check_key(name: &str) -> Result<(), Error> {
    let first_is_digit = name.bytes().next().is_none_or(|c| c.is_ascii_digit());
    let good = |c: u8| c.is_ascii_alphanumeric() || c == b'_';
    if first_is_digit || !name.bytes().all(good) || name.len() > KEY_BYTES_MAX {
        let detail = format!(
            "a key must be 1 to {KEY_BYTES_MAX} letters, digits and _, no digit first: {:?}",
            name.chars().take(KEY_BYTES_MAX).collect::<String>()
        );
        return Err(Error::invalid("values", detail));
    }
    if reserved::is_reserved(name) {
        return Err(Error::invalid(format!("values.{name}"), "this name is reserved"));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
