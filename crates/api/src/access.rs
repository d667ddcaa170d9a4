//! `GET /v1/sandboxes/{id}/egress`: what a sandbox reached and what was refused.

use std::net::IpAddr;

use jiff::Timestamp;
use model::{Access, Error, Outcome, Verdict};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::query::Query;

pub const LIMIT_DEFAULT: usize = 100;
pub const LIMIT_MAX: usize = 1000;

/// Which part of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EgressQuery {
    /// Only what ended after this entry; without it the last ones.
    pub after: Option<u64>,
    pub limit: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EgressLog {
    /// In the order of their ends.
    pub entries: Vec<EgressEntry>,
    /// Connections that are open now.
    pub open: Vec<EgressEntry>,
    /// To send as `after` for what comes next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// One connection, or one name that was refused when it was looked up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({
    "id": "1768000000000000",
    "at": "2026-01-10T00:00:00Z",
    "target": "git.example.com",
    "port": 443,
    "verdict": "denied",
    "reason": "not_allowed",
    "bytes_up": 0,
    "bytes_down": 0,
    "duration_ms": 0,
    "hint": "a policy with the rule git.example.com:443 would allow it"
}))]
pub struct EgressEntry {
    /// Absent while it is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// When it began.
    pub at: Timestamp,
    /// The name that was asked for, or the address when a program wrote a number.
    pub target: String,
    /// Absent for a name that was refused when it was looked up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// The address that was dialled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub address: Option<IpAddr>,
    /// `allowed`, `denied` by the policy, or `failed`: allowed, and nobody answered.
    pub verdict: String,
    /// Stable: `ended`, `open`, `idle`, `closed`; `not_allowed`, `not_a_public_address`,
    /// `unknown_address`, `sni_differs`, `no_sni`, `host_differs`, `unreadable_head`,
    /// `policy_changed`; `does_not_resolve`, `unreachable`.
    pub reason: String,
    pub bytes_up: u64,
    pub bytes_down: u64,
    /// Absent while it is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// What would make it work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// Entries before this one that came too fast to be kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub omitted: Option<u64>,
}

impl EgressQuery {
    pub fn parse(query: Option<&str>) -> Result<Self, Error> {
        let mut query = Query::parse(query, &["after", "limit"])?;
        let after = query.whole("after")?;
        let limit = match query.whole("limit")? {
            Some(0) => return Err(Error::invalid("limit", "must be at least 1")),
            Some(limit) => usize::try_from(limit).unwrap_or(LIMIT_MAX).min(LIMIT_MAX),
            None => LIMIT_DEFAULT,
        };
        Ok(Self { after, limit })
    }
}

impl EgressLog {
    /// `after` is what was asked for, so that an empty answer can be continued.
    pub fn new(ended: &[Access], open: &[Access], after: Option<u64>) -> Self {
        let next = ended.last().map(|last| last.seq).or(after);
        Self {
            entries: ended.iter().map(EgressEntry::from).collect(),
            open: open.iter().map(EgressEntry::from).collect(),
            next: next.map(|seq| seq.to_string()),
        }
    }
}

impl From<&Access> for EgressEntry {
    fn from(access: &Access) -> Self {
        let verdict = match access.verdict.outcome() {
            Outcome::Allowed => "allowed",
            Outcome::Denied => "denied",
            Outcome::Failed => "failed",
        };
        Self {
            id: (access.seq > 0).then(|| access.seq.to_string()),
            at: access.at,
            target: access.target.clone(),
            port: access.port,
            address: access.address,
            verdict: verdict.into(),
            reason: access.verdict.as_str().replace(' ', "_"),
            bytes_up: access.bytes_up,
            bytes_down: access.bytes_down,
            duration_ms: access.duration_ms,
            hint: hint(access),
            omitted: (access.omitted > 0).then_some(access.omitted),
        }
    }
}

fn hint(access: &Access) -> Option<String> {
    let target = &access.target;
    if let Some(rule) = access.rule_to_allow() {
        return Some(format!("a policy with the rule {rule} would allow it"));
    }
    let text = match access.verdict {
        Verdict::NotPublic => format!(
            "{target} has no public address; a policy must list its address beside the name"
        ),
        Verdict::UnknownAddress => {
            "this address stood for a name, or never did; look the name up again".to_owned()
        }
        Verdict::SniDiffers => {
            format!("TLS was begun for another server name than {target}; connect to that name")
        }
        Verdict::NoSni => format!("TLS must name its server (SNI): {target}"),
        Verdict::HostDiffers => {
            format!("HTTP was spoken to another host than {target}; connect to that name")
        }
        Verdict::Unreadable => {
            "it began like TLS or HTTP and was not; HTTP/2 without TLS is such a case".to_owned()
        }
        Verdict::Unresolved => format!("the server cannot resolve {target}"),
        Verdict::Unreachable => format!("{target} is allowed, and does not answer the server"),
        Verdict::Open
        | Verdict::Ended
        // Questions about services, which nobody needs answered.
        | Verdict::NotAllowed
        | Verdict::PolicyChanged
        | Verdict::Idle
        | Verdict::Closed => return None,
    };
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(verdict: Verdict) -> Access {
        Access {
            seq: 7,
            at: Timestamp::UNIX_EPOCH,
            target: "a.test".into(),
            port: Some(443),
            address: None,
            verdict,
            bytes_up: 1,
            bytes_down: 2,
            duration_ms: Some(3),
            omitted: 0,
        }
    }

    #[test]
    fn a_denied_entry_says_what_would_allow_it() {
        let log = EgressLog::new(&[access(Verdict::NotAllowed)], &[], None);
        let entry = &log.entries[0];
        assert_eq!((entry.verdict.as_str(), entry.reason.as_str()), ("denied", "not_allowed"));
        assert_eq!(entry.hint.as_deref(), Some("a policy with the rule a.test:443 would allow it"));
        assert_eq!(log.next.as_deref(), Some("7"));
        assert_eq!(EgressLog::new(&[], &[], Some(9)).next.as_deref(), Some("9"));
    }

    #[test]
    fn every_refusal_has_a_hint_and_no_success_has_one() {
        for verdict in [
            Verdict::NotPublic,
            Verdict::UnknownAddress,
            Verdict::SniDiffers,
            Verdict::NoSni,
            Verdict::HostDiffers,
            Verdict::Unreadable,
            Verdict::Unresolved,
            Verdict::Unreachable,
            Verdict::PolicyChanged,
        ] {
            assert!(hint(&access(verdict)).is_some(), "{verdict:?}");
        }
        for verdict in [Verdict::Open, Verdict::Ended, Verdict::Idle, Verdict::Closed] {
            assert_eq!(hint(&access(verdict)), None);
        }
    }

    #[test]
    fn a_query_has_bounds() {
        let parse = |query| EgressQuery::parse(Some(query));
        assert_eq!(
            parse("after=5&limit=9999").unwrap(),
            EgressQuery { after: Some(5), limit: 1000 }
        );
        assert_eq!(parse("").unwrap(), EgressQuery { after: None, limit: 100 });
        for bad in ["limit=0", "after=x", "from=1"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
