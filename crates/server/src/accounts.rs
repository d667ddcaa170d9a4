//! What signing in needs: codes by e-mail, the tokens of accounts, and a bound on attempts.

mod code;
mod mail;
mod oidc;
pub(crate) mod proxies;
mod token;

use std::sync::Arc;

use anyhow::Result;
use jiff::SignedDuration;
use model::Email;
use store::Rate;

pub(crate) use self::code::Codes;
pub(crate) use self::mail::Mailer;
pub(crate) use self::oidc::Oidc;
pub(crate) use self::proxies::Proxies;
pub(crate) use self::token::Tokens;
use crate::config::Config;
use crate::signing_key::SigningKey;

/// Addresses of this domain get their code in the answer, in test mode.
const TEST_DOMAIN: &str = "e2a-qa.test";

/// Codes that one address is sent in an hour.
pub(crate) const CODES_PER_EMAIL: Rate = Rate { count: 3, per: SignedDuration::from_hours(1) };

#[derive(Clone)]
pub(crate) struct Accounts {
    pub(crate) codes: Codes,
    pub(crate) mailer: Arc<Mailer>,
    pub(crate) tokens: Tokens,
    pub(crate) proxies: Proxies,
    /// Of one address, over everything that takes no credential.
    pub(crate) attempts: Rate,
    /// Whose tokens are taken besides ours.
    pub(crate) oidc: Option<Arc<Oidc>>,
    test_mode: bool,
}

impl Accounts {
    pub(crate) fn open(config: &Config, key: &SigningKey) -> Result<Self> {
        if config.test_mode {
            tracing::warn!("test mode: codes for addresses of {TEST_DOMAIN} are in the answer");
        }
        Ok(Self {
            codes: Codes::new(key),
            mailer: Arc::new(Mailer::open(&config.mail, &config.data_dir)?),
            tokens: Tokens::new(key, config.auth.token_seconds),
            proxies: Proxies::new(config.trusted_proxies.clone()),
            attempts: Rate {
                count: config.auth.attempts_per_minute,
                per: SignedDuration::from_mins(1),
            },
            oidc: Oidc::open(&config.oidc)?.map(Arc::new),
            test_mode: config.test_mode,
        })
    }

    /// Whether a code for it is in the answer, and not sent.
    pub(crate) fn is_for_tests(&self, email: &Email) -> bool {
        self.test_mode && email.domain() == TEST_DOMAIN
    }
}
