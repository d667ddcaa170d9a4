//! Bundles in both places where they can be: sealed in a real database, and in a local server that
//! speaks the API of AWS Secrets Manager (moto, installed into `tests-aws/venv`).

#![expect(clippy::unwrap_used, reason = "a test that cannot unwrap fails")]

mod aws;
mod sealed;

use std::collections::BTreeMap;

use model::{BundleName, OwnerId, SecretText, SecretValues};
use vault::Vault;

fn values(pairs: &[(&str, &str)]) -> SecretValues {
    let pairs = pairs.iter().map(|(key, value)| ((*key).into(), (*value).into()));
    SecretValues::new(pairs.collect()).unwrap()
}

fn name(text: &str) -> BundleName {
    text.parse().unwrap()
}

fn owner(text: &str) -> OwnerId {
    format!("usr_{text}").parse().unwrap()
}

async fn resolved(vault: &Vault, owner: &OwnerId, names: &[&str]) -> BTreeMap<String, String> {
    let names: Vec<_> = names.iter().map(|text| name(text)).collect();
    let all = vault.resolve(owner, &names).await.unwrap();
    all.into_iter().map(|(key, SecretText(value))| (key, value)).collect()
}

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect()
}
