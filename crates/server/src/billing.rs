//! Money that comes: through Stripe where it is configured, else from the operator alone.

mod signature;
mod stripe;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use jiff::Timestamp;
use store::Store;
use tokio_util::sync::CancellationToken;

pub(crate) use self::stripe::Stripe;
use crate::config;

/// How often balances that are to be filled up are looked for.
const TOPUPS_EVERY: Duration = Duration::from_secs(60);
/// Owners whose balance is filled up at once; the others come next.
const TOPUPS_AT_ONCE: u32 = 100;

#[derive(Clone)]
pub(crate) struct Billing {
    pub(crate) topup_min_cents: i64,
    pub(crate) signup_credit_cents: i64,
    pub(crate) stripe: Option<Arc<Stripe>>,
}

impl Billing {
    /// # Errors
    /// One of Stripe's two secrets without the other.
    pub(crate) fn open(config: &config::Billing) -> Result<Self> {
        let stripe = match (&config.stripe_secret_key, &config.stripe_webhook_secret) {
            (Some(key), Some(webhook)) => Some(Arc::new(
                Stripe::new(&config.stripe_url, key.clone(), webhook.clone())
                    .context("billing.stripe_url")?,
            )),
            (None, None) => None,
            _ => bail!("billing.stripe_secret_key and billing.stripe_webhook_secret go together"),
        };
        Ok(Self {
            topup_min_cents: i64::from(config.topup_min_cents.max(1)),
            signup_credit_cents: i64::from(config.signup_credit_cents),
            stripe,
        })
    }
}

/// Asks for the payments that owners want made when their balance is low. What was paid is credited when
/// Stripe says so; a payment that was asked for and not heard of is asked for again after an hour.
pub(crate) async fn fill_up(stripe: Arc<Stripe>, store: Store, until: CancellationToken) {
    while until.run_until_cancelled(tokio::time::sleep(TOPUPS_EVERY)).await.is_some() {
        let due = match store.claim_topups(TOPUPS_AT_ONCE, Timestamp::now()).await {
            Ok(due) => due,
            Err(error) => {
                tracing::warn!(error = error.to_string(), "could not look for balances to fill up");
                continue;
            }
        };
        for topup in due {
            if let Err(error) = stripe.pay(&topup).await {
                let (owner, error) = (topup.owner.as_str(), format!("{error:#}"));
                tracing::warn!(owner, error, "could not fill up a balance");
            }
        }
    }
}
