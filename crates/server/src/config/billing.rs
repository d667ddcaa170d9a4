//! The settings of money.

use model::Prices;
use serde::{Deserialize, Serialize};

use super::Secret;

/// What things cost, and what happens to those who cannot pay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Billing {
    pub enforce: bool,
    pub signup_credit_cents: u32,
    pub topup_min_cents: u32,
    pub cpu_second_micro_cents: u32,
    pub gib_second_micro_cents: u32,
    pub stripe_secret_key: Option<Secret>,
    pub stripe_webhook_secret: Option<Secret>,
    pub stripe_url: String,
}

impl Default for Billing {
    fn default() -> Self {
        let Prices { cpu_second_micro_cents, gib_second_micro_cents } = Prices::default();
        Self {
            enforce: false,
            signup_credit_cents: 0,
            topup_min_cents: 500,
            cpu_second_micro_cents,
            gib_second_micro_cents,
            stripe_secret_key: None,
            stripe_webhook_secret: None,
            stripe_url: "https://api.stripe.com".into(),
        }
    }
}

impl Billing {
    pub(super) fn prices(&self) -> Prices {
        Prices {
            cpu_second_micro_cents: self.cpu_second_micro_cents,
            gib_second_micro_cents: self.gib_second_micro_cents,
        }
    }
}
