//! AWS Secrets Manager. The values of a bundle are written under a name of their own each time, in the
//! tenant's namespace (`PREFIX/usr_…/BUNDLE/VERSION`), and what was there before is deleted once the
//! store refers to the new ones: so a bundle changes as a whole, whoever writes at the same time.
//!
//! A secret there holds 64 KiB, a bundle may hold more: it is cut into as many as needed.

use std::fmt;
use std::time::Duration;

use anyhow::Context;
use aws_sdk_secretsmanager::Client;
use aws_sdk_secretsmanager::config::retry::RetryConfig;
use aws_sdk_secretsmanager::config::timeout::TimeoutConfig;
use aws_sdk_secretsmanager::config::{BehaviorVersion, Region};
use aws_sdk_secretsmanager::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_secretsmanager::primitives::Blob;
use aws_smithy_http_client::Builder;
use aws_smithy_http_client::tls::{Provider, rustls_provider::CryptoMode};
use model::{BundleName, Error, OwnerId, Result};

/// A little less than what one secret may hold.
const PART_BYTES_MAX: usize = 64_000;
/// For one call with all that is tried again.
const CALL_MAX: Duration = Duration::from_secs(20);
const CONNECT_MAX: Duration = Duration::from_secs(5);
const ATTEMPTS_MAX: u32 = 3;

/// Where it is, and as whom.
#[derive(Debug, Clone)]
pub struct AwsConfig {
    pub region: String,
    /// Other than AWS's own.
    pub endpoint: Option<String>,
    /// What the names of all secrets begin with.
    pub prefix: String,
    pub credentials: Credentials,
}

#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    pub access_key_id: String,
    pub secret_access_key: String,
    pub session_token: Option<String>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Credentials");
        shown.field("access_key_id", &self.access_key_id).finish_non_exhaustive()
    }
}

#[derive(Clone)]
pub(crate) struct Manager {
    client: Client,
    prefix: String,
}

impl Manager {
    pub(crate) fn new(config: AwsConfig) -> Self {
        let Credentials { access_key_id, secret_access_key, session_token } = config.credentials;
        let credentials = aws_sdk_secretsmanager::config::Credentials::new(
            access_key_id,
            secret_access_key,
            session_token,
            None,
            "bastide",
        );
        let http = Builder::new().tls_provider(Provider::Rustls(CryptoMode::Ring)).build_https();
        let timeouts = TimeoutConfig::builder()
            .connect_timeout(CONNECT_MAX)
            .operation_timeout(CALL_MAX)
            .build();
        let mut settings = aws_sdk_secretsmanager::Config::builder()
            .behavior_version(BehaviorVersion::latest())
            .region(Region::new(config.region))
            .credentials_provider(credentials)
            .retry_config(RetryConfig::standard().with_max_attempts(ATTEMPTS_MAX))
            .timeout_config(timeouts)
            .http_client(http);
        if let Some(endpoint) = config.endpoint {
            settings = settings.endpoint_url(endpoint);
        }
        let prefix = config.prefix.trim_end_matches('/').to_owned();
        Self { client: Client::from_conf(settings.build()), prefix }
    }

    /// What finds values again that are to be written.
    pub(crate) fn place_for(&self, owner: &OwnerId, name: &BundleName, plain: &[u8]) -> String {
        let parts = plain.len().div_ceil(PART_BYTES_MAX);
        let version = uuid::Uuid::now_v7().simple();
        format!("{parts} {}/{owner}/{name}/{version}", self.prefix)
    }

    pub(crate) async fn put(&self, found_at: &str, plain: &[u8]) -> Result<()> {
        let parts = plain.chunks(PART_BYTES_MAX);
        for (id, part) in ids(found_at)?.into_iter().zip(parts) {
            let made = self.client.create_secret().name(id).secret_binary(Blob::new(part)).send();
            made.await.map_err(|error| unavailable("write", &error))?;
        }
        Ok(())
    }

    pub(crate) async fn get(&self, found_at: &str) -> Result<Vec<u8>> {
        let mut plain = Vec::new();
        for id in ids(found_at)? {
            let answer = self.client.get_secret_value().secret_id(id).send().await;
            let answer = answer.map_err(|error| unavailable("read", &error))?;
            let part = answer.secret_binary.context("the secret in AWS has no bytes")?;
            plain.extend_from_slice(part.as_ref());
        }
        Ok(plain)
    }

    /// What is gone already is fine.
    pub(crate) async fn delete(&self, found_at: &str) -> Result<()> {
        for id in ids(found_at)? {
            let deleted =
                self.client.delete_secret().secret_id(id).force_delete_without_recovery(true);
            match deleted.send().await {
                Err(error)
                    if !error
                        .as_service_error()
                        .is_some_and(|error| error.is_resource_not_found_exception()) =>
                {
                    return Err(unavailable("delete", &error));
                }
                Ok(_) | Err(_) => {}
            }
        }
        Ok(())
    }
}

/// The names of all parts.
fn ids(found_at: &str) -> Result<Vec<String>> {
    let (count, name) = found_at.split_once(' ').context("read where a bundle is")?;
    let count: usize = count.parse().context("read where a bundle is")?;
    Ok((0..count).map(|part| format!("{name}/{part}")).collect())
}

/// The caller is told that it does not work, the log why; but never what was answered, which may be
/// a value.
fn unavailable<E: ProvideErrorMetadata, R>(what: &str, error: &SdkError<E, R>) -> Error {
    let why = match error {
        SdkError::ServiceError(said) => {
            let said = said.err();
            format!("{}: {}", said.code().unwrap_or("?"), said.message().unwrap_or("?"))
        }
        SdkError::DispatchFailure(failure) => {
            let cause = failure.as_connector_error().map(|error| chain(error));
            cause.unwrap_or_else(|| "not sent".into())
        }
        SdkError::TimeoutError(_) => "it took too long".into(),
        _ => "the request or the answer is not as it should be".into(),
    };
    tracing::warn!(error = why, "could not {what} a secret in AWS Secrets Manager");
    Error::unavailable("AWS Secrets Manager does not answer as it should; try again")
}

fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
