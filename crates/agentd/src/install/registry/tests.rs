use std::path::PathBuf;

use tempfile::TempDir;
use url::Url;

use super::{RegistrySettings, checked};

async fn resolved(npmrc: &str) -> Result<super::Registry, super::InstallError> {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join(".npmrc");
    std::fs::write(&path, npmrc).unwrap();
    let settings = RegistrySettings { npmrc: vec![path], ..RegistrySettings::default() };
    settings.resolve().await
}

#[tokio::test]
async fn the_files_name_registries_scopes_and_tokens() {
    let registry = resolved(
        "; a comment\n\
         registry = https://npm.example/main/\n\
         @openai:registry=https://other.example\n\
         //npm.example/main/:_authToken=secret\n\
         ignored=${VARIABLE}\n",
    )
    .await
    .unwrap();
    assert_eq!(registry.to_string(), "https://npm.example/main");
    let plain = registry.address("opencode-ai", Some("1.0.0")).unwrap();
    assert_eq!(plain.as_str(), "https://npm.example/main/opencode-ai/1.0.0");
    let scoped = registry.address("@openai/codex", None).unwrap();
    assert_eq!(scoped.as_str(), "https://other.example/@openai%2fcodex");
    assert_eq!(registry.authorization_for(&plain).as_deref(), Some("Bearer secret"));
    assert_eq!(registry.authorization_for(&scoped), None, "a token is for its own host");
    let elsewhere = Url::parse("https://npm.example/another/x").unwrap();
    assert_eq!(registry.authorization_for(&elsewhere), None, "and for its own path");
}

#[tokio::test]
async fn the_environment_goes_first() {
    let variables = |name: &str| match name {
        "NPM_CONFIG_REGISTRY" => Some("https://env.example".to_owned()),
        "HOME" => Some("/nowhere".to_owned()),
        _ => None,
    };
    let settings = RegistrySettings::from_environment(variables);
    assert_eq!(settings.npmrc[0], PathBuf::from("/nowhere/.npmrc"));
    assert_eq!(settings.resolve().await.unwrap().to_string(), "https://env.example");
}

#[test]
fn checksums_are_taken_from_nobody_who_could_be_anybody() {
    assert!(checked("https://npm.example").is_ok());
    assert!(checked("http://127.0.0.1:4873/").is_ok());
    assert!(checked("http://localhost:4873/").is_ok());
    let error = checked("http://npm.example").unwrap_err();
    assert_eq!(error.to_string(), "the npm registry must be https: http://npm.example");
    assert!(checked("npm.example").is_err());
}
