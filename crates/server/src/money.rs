//! Who takes the money: what requests need to know of it, and the task that buys credit by itself.

pub(crate) mod notice;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use jiff::Timestamp;
use store::Store;

use crate::app::PublicAddress;
use crate::config::Config;
use crate::rate::Rate;
use crate::stripe::{Charged, Stripe};

const LOOK_EVERY: Duration = Duration::from_secs(30);
/// From one address: far more than Stripe tells anybody.
const NOTICES_PER_MINUTE: u32 = 600;

/// Clones share one.
#[derive(Clone)]
pub(crate) struct Cashier {
    /// Absent where the operator grants credit and nobody pays.
    pub(crate) stripe: Option<Arc<Stripe>>,
    pub(crate) cents_min: i64,
    pub(crate) currency: String,
    pub(crate) webhook_rate: Arc<Rate>,
}

impl Cashier {
    pub(crate) fn new(config: &Config, address: &PublicAddress) -> Result<Self> {
        let billing = &config.billing;
        let return_url = billing.return_url.clone().unwrap_or_else(|| address.url.clone());
        let stripe = match config.stripe()? {
            Some(settings) => Some(Arc::new(Stripe::new(settings, &billing.currency, return_url)?)),
            None => None,
        };
        let cents_min = billing.topup_min_cents.into();
        let webhook_rate = Arc::new(Rate::per_minute(NOTICES_PER_MINUTE));
        Ok(Self { stripe, cents_min, currency: billing.currency.clone(), webhook_rate })
    }

    /// Begins the payments that are due, and tries those again whose end is not known. Never ends, unless
    /// nobody takes money.
    pub(crate) async fn keep_topping_up(&self, store: &Store) {
        let Some(stripe) = &self.stripe else { return };
        loop {
            match self.top_up(stripe, store).await {
                Ok(()) => {}
                Err(failure) => {
                    let error = format!("{:#}", anyhow::Error::from(failure));
                    tracing::warn!(error, "could not look for automatic payments");
                }
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    async fn top_up(&self, stripe: &Stripe, store: &Store) -> model::Result<()> {
        for topup in store.due_topups(Timestamp::now()).await? {
            match stripe.charge(&topup, Timestamp::now()).await {
                Charged::Paid => drop(store.end_topup(&topup.id, true, Timestamp::now()).await?),
                Charged::Refused => {
                    store.end_topup(&topup.id, false, Timestamp::now()).await?;
                    tracing::warn!(owner = %topup.owner, "an automatic payment was refused");
                }
                Charged::Unknown => {}
            }
        }
        Ok(())
    }
}
