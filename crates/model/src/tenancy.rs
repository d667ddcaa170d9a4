//! Organisations: owners who belong together, and what each of them may do there.

use std::fmt;
use std::str::FromStr;

use crate::Error;

/// `org_` + 1 to 64 of `[a-z0-9_-]`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OrganisationId(String);

impl OrganisationId {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for OrganisationId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let tail = text.strip_prefix("org_").unwrap_or_default();
        let good = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'_' || c == b'-';
        if tail.is_empty() || tail.len() > 64 || !tail.bytes().all(good) {
            return Err(Error::NotFound { what: "organisation", id: text.to_owned() });
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for OrganisationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a member may do in its organisation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Also changes roles and removes members.
    Owner,
    Member,
    /// Also sees and pays what the organisation costs.
    Billing,
}

impl Role {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Owner => "owner",
            Self::Member => "member",
            Self::Billing => "billing",
        }
    }
}

impl FromStr for Role {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text {
            "owner" => Ok(Self::Owner),
            "member" => Ok(Self::Member),
            "billing" => Ok(Self::Billing),
            _ => Err(Error::invalid("role", format!("must be owner, member or billing: {text}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back_and_nothing_else_is_one() {
        for role in [Role::Owner, Role::Member, Role::Billing] {
            assert_eq!(role.as_str().parse::<Role>().unwrap(), role);
        }
        assert!("Owner".parse::<Role>().is_err());
        assert_eq!("org_a-1".parse::<OrganisationId>().unwrap().to_string(), "org_a-1");
        for text in ["", "org_", "usr_a", "org_A", "org_a b", "org_'; --"] {
            assert!(text.parse::<OrganisationId>().is_err(), "{text}");
        }
    }
}
