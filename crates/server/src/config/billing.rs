//! What running costs, and who takes the money.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use model::OwnerId;
use model::pricing::Prices;
use serde::{Deserialize, Serialize};
use store::Tariff;
use url::Url;

use crate::config::Config;
use crate::config::check::check_url;

const STRIPE: &str = "https://api.stripe.com";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Billing {
    pub enforce: bool,
    pub prices: Prices,
    pub signup_credit_cents: u32,
    pub topup_min_cents: u32,
    pub currency: String,
    pub return_url: Option<String>,
    pub stripe_url: String,
    pub stripe_key_file: Option<PathBuf>,
    pub stripe_webhook_secret_file: Option<PathBuf>,
}

/// How Stripe is spoken to, with what its files hold.
pub(crate) struct StripeSettings {
    pub(crate) url: Url,
    pub(crate) secret_key: String,
    pub(crate) webhook_secret: String,
}

impl Default for Billing {
    fn default() -> Self {
        Self {
            enforce: false,
            prices: Prices::default(),
            signup_credit_cents: 0,
            topup_min_cents: 100,
            currency: "usd".into(),
            return_url: None,
            stripe_url: STRIPE.into(),
            stripe_key_file: None,
            stripe_webhook_secret_file: None,
        }
    }
}

impl Config {
    pub(crate) fn tariff(&self) -> Tariff {
        Tariff {
            prices: self.billing.prices,
            signup_credit_cents: self.billing.signup_credit_cents.into(),
        }
    }

    /// The operator's own sandboxes are never ended for want of credit.
    pub(super) fn credit(&self, operator: OwnerId) -> engine::Credit {
        engine::Credit { enforced: self.billing.enforce, exempt: vec![operator] }
    }

    pub(crate) fn stripe(&self) -> Result<Option<StripeSettings>> {
        let billing = &self.billing;
        let (Some(key), Some(secret)) =
            (&billing.stripe_key_file, &billing.stripe_webhook_secret_file)
        else {
            return Ok(None);
        };
        Ok(Some(StripeSettings {
            url: Url::parse(&billing.stripe_url).context("billing.stripe_url")?,
            secret_key: first_line("billing.stripe_key_file", key)?,
            webhook_secret: first_line("billing.stripe_webhook_secret_file", secret)?,
        }))
    }

    pub(super) fn check_billing(&self) -> Result<()> {
        let billing = &self.billing;
        check_url("billing.stripe_url", &billing.stripe_url, &["http", "https"])?;
        if let Some(url) = &billing.return_url {
            check_url("billing.return_url", url, &["http", "https"])?;
        }
        ensure!(
            billing.stripe_key_file.is_some() == billing.stripe_webhook_secret_file.is_some(),
            "billing.stripe_webhook_secret_file: required with billing.stripe_key_file, and vice versa"
        );
        ensure!(billing.topup_min_cents >= 1, "billing.topup_min_cents: must be at least 1");
        let letters = billing.currency.bytes().all(|c| c.is_ascii_lowercase());
        ensure!(
            letters && billing.currency.len() == 3,
            "billing.currency: must be three letters like usd: {:?}",
            billing.currency
        );
        Ok(())
    }
}

fn first_line(key: &str, file: &Path) -> Result<String> {
    let text =
        std::fs::read_to_string(file).with_context(|| format!("{key}: read {}", file.display()))?;
    let line = text.lines().next().unwrap_or_default().trim().to_owned();
    ensure!(!line.is_empty(), "{key}: {} is empty", file.display());
    Ok(line)
}
