//! `/v1/billing` (000 *Billing*). Amounts are whole cents.

use jiff::Timestamp;
use model::{Error, OwnerId};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::query::Query;

const PAGE_DEFAULT: u64 = 20;
const PAGE_MAX: u64 = 100;
/// The most that one movement may be.
const CENTS_MAX: i64 = 100_000_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({ "credit_balance": 84750 }))]
pub struct Balance {
    pub credit_balance: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "credit_amount": 1000 }))]
pub struct CheckoutRequest {
    pub credit_amount: i64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({ "url": "https://checkout.stripe.com/…" }))]
pub struct Checkout {
    pub url: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Transactions {
    pub transactions: Vec<Transaction>,
}

/// Below 0 is what was spent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({
    "id": "txn_…", "amount": -25, "description": "Sandbox usage", "timestamp": "2026-04-20T10:00:00Z"
}))]
pub struct Transaction {
    pub id: String,
    pub amount: i64,
    pub description: String,
    pub timestamp: Timestamp,
}

/// Of an organisation, in whole cents.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({
    "credit_balance": 1250,
    "members": [{ "owner": "usr_ann", "credit_balance": 1000 }, { "owner": "usr_bob", "credit_balance": 250 }]
}))]
pub struct OrganisationBalance {
    /// Of all members together.
    pub credit_balance: i64,
    pub members: Vec<MemberBalance>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MemberBalance {
    pub owner: String,
    pub credit_balance: i64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OrganisationTransactions {
    pub transactions: Vec<MemberTransaction>,
}

/// Below 0 is what was spent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MemberTransaction {
    pub owner: String,
    pub id: String,
    pub amount: i64,
    pub description: String,
    pub timestamp: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({ "members": [
    { "owner": "usr_ann", "cpu_seconds": 3600, "running_seconds": 7200, "sandbox_count": 4, "cents": 12 }
] }))]
pub struct OrganisationUsage {
    pub members: Vec<MemberUsage>,
}

/// This month, UTC.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MemberUsage {
    pub owner: String,
    pub cpu_seconds: i64,
    pub running_seconds: i64,
    pub sandbox_count: i64,
    /// What it was charged.
    pub cents: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "enabled": true, "threshold_amount": 100, "topup_amount": 500 }))]
pub struct AutoTopup {
    pub enabled: bool,
    /// A balance of this or less begins a payment.
    pub threshold_amount: i64,
    pub topup_amount: i64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({ "status": "updated" }))]
pub struct Done {
    pub status: String,
}

/// The operator gives credit, or takes it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "owner": "usr_ann", "amount": 5000, "description": "Pilot", "reference": "invoice-7" }))]
pub struct GrantCredit {
    pub owner: String,
    /// Below 0 takes.
    pub amount: i64,
    #[serde(default)]
    pub description: Option<String>,
    /// Told again with the same one, it counts once.
    #[serde(default)]
    pub reference: Option<String>,
}

/// `limit` and `offset`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Page {
    pub limit: u32,
    pub offset: u32,
}

impl Page {
    pub fn parse(query: Option<&str>) -> Result<Self, Error> {
        let mut query = Query::parse(query, &["limit", "offset"])?;
        let limit = query.whole("limit")?.unwrap_or(PAGE_DEFAULT);
        if limit == 0 {
            return Err(Error::invalid("limit", "must be at least 1"));
        }
        let offset = query.whole("offset")?.unwrap_or(0);
        Ok(Self {
            limit: u32::try_from(limit.min(PAGE_MAX)).unwrap_or(1),
            offset: u32::try_from(offset).unwrap_or(u32::MAX),
        })
    }
}

impl CheckoutRequest {
    pub fn check(self, cents_min: i64) -> Result<i64, Error> {
        amount("credit_amount", self.credit_amount, cents_min)
    }
}

impl AutoTopup {
    pub fn check(self, cents_min: i64) -> Result<Self, Error> {
        if !(0..=CENTS_MAX).contains(&self.threshold_amount) {
            let detail = format!("must be 0 to {CENTS_MAX} cents");
            return Err(Error::invalid("threshold_amount", detail));
        }
        amount("topup_amount", self.topup_amount, cents_min)?;
        Ok(self)
    }
}

impl GrantCredit {
    pub fn check(self) -> Result<(OwnerId, i64, String, Option<String>), Error> {
        let owner = self.owner.parse()?;
        let bound = -CENTS_MAX..=CENTS_MAX;
        if self.amount == 0 || !bound.contains(&self.amount) {
            let detail = format!("must be 1 to {CENTS_MAX} cents, or as much below 0");
            return Err(Error::invalid("amount", detail));
        }
        let word = |field: &str, text: &str| {
            if text.is_empty() || text.len() > 200 || text.chars().any(char::is_control) {
                return Err(Error::invalid(field, "must be 1 to 200 printable characters"));
            }
            Ok(())
        };
        self.reference.as_deref().map(|text| word("reference", text)).transpose()?;
        let description = self.description.unwrap_or_else(|| "Granted by the operator".into());
        word("description", &description)?;
        Ok((owner, self.amount, description, self.reference))
    }
}

fn amount(field: &str, cents: i64, cents_min: i64) -> Result<i64, Error> {
    if (cents_min..=CENTS_MAX).contains(&cents) {
        return Ok(cents);
    }
    Err(Error::invalid(field, format!("must be {cents_min} to {CENTS_MAX} cents")))
}
