//! Identifiers. Holding one proves that it was checked; the only way in is `FromStr` or `generate`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::Error;
use crate::Name;

const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
const BARE_LEN: usize = 26;

/// `sb-` + a `UUIDv7` in lower-case Crockford base32 (DESIGN 2.1). Sorts by creation time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SandboxId(u128);

impl SandboxId {
    pub fn generate() -> Self {
        Self(Uuid::now_v7().as_u128())
    }

    /// The 26 characters without `sb-`, as used in host names, paths and cgroup names.
    pub fn bare(&self) -> String {
        in_base32(self.0)
    }
}

impl fmt::Display for SandboxId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sb-{}", self.bare())
    }
}

impl fmt::Debug for SandboxId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for SandboxId {
    type Err = Error;

    /// Any case, with or without `sb-`.
    fn from_str(text: &str) -> Result<Self, Error> {
        let lower = text.to_ascii_lowercase();
        let bare = lower.strip_prefix("sb-").unwrap_or(&lower);
        let wrong = || Error::invalid("id", format!("not a sandbox id: {text}"));
        of_base32(bare).map(Self).ok_or_else(wrong)
    }
}

impl Serialize for SandboxId {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for SandboxId {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// What a caller writes for `{id}` in a path: the id or the name (DESIGN 2.1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SandboxRef {
    Id(SandboxId),
    Name(Name),
}

impl FromStr for SandboxRef {
    type Err = Error;

    /// An id is tried first; names cannot begin with `sb-`. What is neither cannot exist: `NotFound`.
    fn from_str(text: &str) -> Result<Self, Error> {
        if let Ok(id) = text.parse() {
            return Ok(Self::Id(id));
        }
        text.parse().map(Self::Name).map_err(|_| Error::no_sandbox(text))
    }
}

impl fmt::Display for SandboxRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(id) => id.fmt(f),
            Self::Name(name) => name.fmt(f),
        }
    }
}

/// `usr_…`: whom sandboxes, keys and quotas belong to.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct OwnerId(String);

impl OwnerId {
    /// The platform itself, to which the sandboxes of code mode belong. Nobody has a key of it.
    pub fn of_code_mode() -> Self {
        Self(Self::CODE_MODE.into())
    }

    pub fn is_of_code_mode(&self) -> bool {
        self.0 == Self::CODE_MODE
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    const CODE_MODE: &str = "usr_code-mode";
}

impl FromStr for OwnerId {
    type Err = Error;

    /// `usr_` + 1 to 64 of `[a-z0-9_-]`.
    fn from_str(text: &str) -> Result<Self, Error> {
        let tail = text.strip_prefix("usr_").unwrap_or_default();
        let good = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'_' || c == b'-';
        if tail.is_empty() || tail.len() > 64 || !tail.bytes().all(good) {
            return Err(Error::invalid("owner", format!("not an owner id: {text}")));
        }
        Ok(Self(text.to_owned()))
    }
}

impl TryFrom<String> for OwnerId {
    type Error = Error;

    fn try_from(text: String) -> Result<Self, Error> {
        text.parse()
    }
}

impl From<OwnerId> for String {
    fn from(owner: OwnerId) -> Self {
        owner.0
    }
}

impl fmt::Display for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// `ex-` + a `UUIDv7` in hex: one command started by `exec/stream` (ruling 18).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ExecId(String);

impl ExecId {
    pub fn generate() -> Self {
        Self(format!("ex-{}", Uuid::now_v7().simple()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ExecId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let hex = text.strip_prefix("ex-").unwrap_or_default();
        if hex.len() != 32 || !hex.bytes().all(|c| c.is_ascii_hexdigit()) {
            return Err(Error::NotFound { what: "exec", id: text.to_owned() });
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for ExecId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// `ses_` + a `UUIDv7` in lower-case Crockford base32. Sorts by creation time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(u128);

impl SessionId {
    pub fn generate() -> Self {
        Self(Uuid::now_v7().as_u128())
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ses_{}", in_base32(self.0))
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for SessionId {
    type Err = Error;

    /// Exactly as it is written. What is no id cannot exist: `NotFound`.
    fn from_str(text: &str) -> Result<Self, Error> {
        let none = || Error::NotFound { what: "session", id: text.to_owned() };
        text.strip_prefix("ses_").and_then(of_base32).map(Self).ok_or_else(none)
    }
}

impl Serialize for SessionId {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for SessionId {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

fn in_base32(value: u128) -> String {
    let mut text = String::with_capacity(BARE_LEN);
    for shift in (0..BARE_LEN).rev() {
        let digit = (value >> (shift * 5)) & 31;
        text.push(char::from(ALPHABET[usize::try_from(digit).expect("five bits")]));
    }
    text
}

fn of_base32(text: &str) -> Option<u128> {
    if text.len() != BARE_LEN {
        return None;
    }
    let mut value: u128 = 0;
    for byte in text.bytes() {
        let digit = ALPHABET.iter().position(|&c| c == byte)?;
        value = value.checked_mul(32)? | digit as u128;
    }
    Some(value)
}

#[cfg(test)]
mod tests;
