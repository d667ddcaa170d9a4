//! What a sandbox reached, or tried to: one entry of its access log, and the rule that would allow it.

use std::net::IpAddr;

use ipnet::IpNet;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{Rule, Target};

/// One connection, or one name that was not resolved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Access {
    /// Grows with every entry of a sandbox that has ended; 0 while it is open.
    pub seq: u64,
    /// When it began.
    pub at: Timestamp,
    /// The name that was asked for, or the address when a program wrote a number.
    pub target: String,
    /// `None` for a name that was refused when it was looked up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// The address that was dialled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    pub verdict: Verdict,
    pub bytes_up: u64,
    pub bytes_down: u64,
    /// `None` while it is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// Entries that came too fast to be kept, since the one before.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub omitted: u64,
}

/// How it went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Allowed, and still open (or being dialled).
    Open,
    /// Allowed, and ended by one of its ends.
    Ended,
    /// The policy has no rule for this name or address, and port.
    NotAllowed,
    /// An address of our range that stands for no name, or the listener's own.
    UnknownAddress,
    /// The name resolves only to addresses that are private, or the host's own, and not listed.
    NotPublic,
    /// The name does not resolve, or not in time.
    Unresolved,
    /// No address answered in time.
    Unreachable,
    /// TLS was begun for another name.
    SniDiffers,
    /// TLS was begun for no name at all.
    NoSni,
    /// HTTP was spoken to another host.
    HostDiffers,
    /// It began like TLS or HTTP, but could not be read far enough to compare names.
    Unreadable,
    /// The policy changed, and no longer allows it.
    PolicyChanged,
    /// No byte in either direction for too long.
    Idle,
    /// The sandbox was closed.
    Closed,
}

/// Verdicts in three words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Allowed,
    Denied,
    /// Allowed, but nobody answered.
    Failed,
}

impl Verdict {
    /// As logs and people say it; with `_` for the blanks it is the stable reason of the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Ended => "ended",
            Self::NotAllowed => "not allowed",
            Self::UnknownAddress => "unknown address",
            Self::NotPublic => "not a public address",
            Self::Unresolved => "does not resolve",
            Self::Unreachable => "unreachable",
            Self::SniDiffers => "sni differs",
            Self::NoSni => "no sni",
            Self::HostDiffers => "host differs",
            Self::Unreadable => "unreadable head",
            Self::PolicyChanged => "policy changed",
            Self::Idle => "idle",
            Self::Closed => "closed",
        }
    }

    pub fn outcome(self) -> Outcome {
        match self {
            Self::Open | Self::Ended | Self::Idle | Self::Closed => Outcome::Allowed,
            Self::NotAllowed
            | Self::UnknownAddress
            | Self::NotPublic
            | Self::SniDiffers
            | Self::NoSni
            | Self::HostDiffers
            | Self::Unreadable
            | Self::PolicyChanged => Outcome::Denied,
            Self::Unresolved | Self::Unreachable => Outcome::Failed,
        }
    }
}

impl Access {
    /// The narrowest rule of a policy that would allow what was refused; `None` when no rule would.
    pub fn rule_to_allow(&self) -> Option<Rule> {
        match self.verdict {
            Verdict::NotAllowed | Verdict::PolicyChanged => {}
            Verdict::Open
            | Verdict::Ended
            | Verdict::UnknownAddress
            | Verdict::NotPublic
            | Verdict::Unresolved
            | Verdict::Unreachable
            | Verdict::SniDiffers
            | Verdict::NoSni
            | Verdict::HostDiffers
            | Verdict::Unreadable
            | Verdict::Idle
            | Verdict::Closed => return None,
        }
        let to = match self.target.parse::<IpAddr>() {
            Ok(address) => Target::Net(IpNet::from(address)),
            // `_443._https.name`: a question about a service, of which there are no answers anyway.
            Err(_) if self.target.starts_with('_') => return None,
            Err(_) => Target::Host(crate::host_name(&self.target)?),
        };
        Some(Rule { to, port: self.port })
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands out a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(target: &str, port: Option<u16>, verdict: Verdict) -> Access {
        Access {
            seq: 1,
            at: Timestamp::UNIX_EPOCH,
            target: target.into(),
            port,
            address: None,
            verdict,
            bytes_up: 0,
            bytes_down: 0,
            duration_ms: Some(1),
            omitted: 0,
        }
    }

    #[test]
    fn the_rule_to_allow_is_the_narrowest_and_does_allow_it() {
        for (target, port, rule) in [
            ("git.example.com", Some(443), "git.example.com:443"),
            ("git.example.com", None, "git.example.com"),
            ("10.0.0.7", Some(5432), "10.0.0.7/32:5432"),
        ] {
            let found = access(target, port, Verdict::NotAllowed).rule_to_allow().unwrap();
            assert_eq!(found.to_string(), rule);
            assert_eq!(rule.parse::<Rule>().unwrap(), found);
        }
        assert_eq!(access("a.b", Some(1), Verdict::NotPublic).rule_to_allow(), None);
        assert_eq!(access("a.b", Some(1), Verdict::Ended).rule_to_allow(), None);
    }

    #[test]
    fn an_entry_survives_being_written_down() {
        let entry = access("a.b", Some(1), Verdict::SniDiffers);
        let line = serde_json::to_string(&entry).unwrap();
        assert_eq!(serde_json::from_str::<Access>(&line).unwrap(), entry);
    }
}
