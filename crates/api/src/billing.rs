//! `/v1/billing` (000 *Billing*): the balance and how it changes. All amounts are cents.

use jiff::Timestamp;
use model::{Error, Result};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// No payment is larger: it would be a mistake.
const AMOUNT_CENTS_MAX: i64 = 10_000_000;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({ "credit_balance": 84_750 }))]
pub struct Balance {
    /// Below zero when more was used than paid for.
    pub credit_balance: i64,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "credit_amount": 1000 }))]
pub struct Checkout {
    /// What to pay.
    pub credit_amount: i64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CheckoutStarted {
    /// Where to pay.
    pub url: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Transactions {
    /// One page, the newest first.
    pub transactions: Vec<Transaction>,
    /// On all pages.
    pub total: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({
    "id": "txn_01998f", "amount": -25, "balance": 975, "description": "Sandbox usage",
    "timestamp": "2026-04-01T10:00:00Z"
}))]
pub struct Transaction {
    pub id: String,
    /// Below zero for what was used.
    pub amount: i64,
    /// The balance after it.
    pub balance: i64,
    pub description: String,
    pub timestamp: Timestamp,
}

/// When and by how much the balance is filled up by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "enabled": true, "threshold_amount": 100, "topup_amount": 500 }))]
pub struct AutoTopup {
    pub enabled: bool,
    /// Below this balance.
    pub threshold_amount: i64,
    pub topup_amount: i64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Updated {
    /// Always `updated`.
    pub status: String,
}

/// Credit that the operator gives.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({
    "owner": "usr_abc", "amount": 500, "description": "Welcome", "reference": "invoice 17"
}))]
pub struct Grant {
    /// `usr_…`
    pub owner: String,
    /// Below zero takes away.
    pub amount: i64,
    /// What the owner reads.
    #[serde(default)]
    pub description: Option<String>,
    /// 1 to 200 printable characters; the same one again changes nothing.
    pub reference: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Granted {
    pub credit_balance: i64,
    /// `false` when this reference was entered before.
    pub entered: bool,
}

impl Checkout {
    /// At least the deployment's smallest payment.
    pub fn check(&self, min: i64) -> Result<i64> {
        bounded("credit_amount", self.credit_amount, min)
    }
}

impl AutoTopup {
    /// A top-up is a payment like any other; the threshold may be anything that is not below zero.
    pub fn check(self, min: i64) -> Result<Self> {
        if !(0..=AMOUNT_CENTS_MAX).contains(&self.threshold_amount) {
            let detail =
                format!("must be 0 to {AMOUNT_CENTS_MAX} cents: {}", self.threshold_amount);
            return Err(Error::invalid("threshold_amount", detail));
        }
        bounded("topup_amount", self.topup_amount, min)?;
        Ok(self)
    }
}

impl Grant {
    pub fn check(&self) -> Result<()> {
        let printable = |text: &str| !text.chars().any(char::is_control);
        let length = self.reference.chars().count();
        if !(1..=200).contains(&length) || !printable(&self.reference) {
            return Err(Error::invalid("reference", "must be 1 to 200 printable characters"));
        }
        let description = self.description.as_deref().unwrap_or_default();
        if description.chars().count() > 200 || !printable(description) {
            return Err(Error::invalid("description", "must be at most 200 printable characters"));
        }
        if self.amount == 0 || self.amount.unsigned_abs() > AMOUNT_CENTS_MAX.unsigned_abs() {
            let detail = format!("must be 1 to {AMOUNT_CENTS_MAX} cents, or as much below zero");
            return Err(Error::invalid("amount", detail));
        }
        Ok(())
    }
}

fn bounded(field: &str, amount: i64, min: i64) -> Result<i64> {
    if (min..=AMOUNT_CENTS_MAX).contains(&amount) {
        return Ok(amount);
    }
    Err(Error::invalid(field, format!("must be {min} to {AMOUNT_CENTS_MAX} cents: {amount}")))
}
