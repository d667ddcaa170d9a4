//! What a new session is to be.

use std::path::PathBuf;

use api::Tenant;
use clap::Args;
use http::Method;
use model::BundleName;
use serde_json::{Value, json};

use crate::client::Client;
use crate::failure::Failure;

#[derive(Debug, Args)]
pub(crate) struct StartArgs {
    /// deictic, claude, codex, opencode or mock
    #[arg(long, default_value = "deictic")]
    agent: String,
    /// standard, browser or cua
    #[arg(long, default_value = "standard")]
    template: String,
    /// Whose model: anthropic, openai, google or deepseek
    #[arg(long, default_value = "anthropic")]
    vendor: String,
    /// Instead of the vendor's default
    #[arg(long)]
    model: Option<String>,
    /// Where the model is, instead of at the vendor's
    #[arg(long, value_name = "URL")]
    base_url: Option<String>,
    /// A bundle of secrets; `LLM_API_KEY` in one of them is the model's key
    #[arg(long = "secret", value_name = "BUNDLE")]
    secrets: Vec<BundleName>,
    /// The id of your app; with --set-id it is where files belong
    #[arg(long, value_name = "ID")]
    app_id: Option<String>,
    /// Which of the app's sets it is of
    #[arg(long, value_name = "ID", requires = "app_id")]
    set_id: Option<String>,
    /// A JSON file with the capability sets of your app
    #[arg(long, value_name = "FILE", requires = "app_id")]
    capability_sets: Option<PathBuf>,
    /// How long it may last; at most 7200
    #[arg(long, value_name = "SECONDS")]
    ttl_seconds: Option<u64>,
    /// 2, or 1 for plain frames
    #[arg(long, value_name = "N")]
    wire_version: Option<u8>,
}

impl StartArgs {
    /// The request, in the name of who asks.
    pub(super) async fn body(self, client: &Client) -> Result<Value, Failure> {
        let me: Tenant = client.json(Method::GET, "/v1/tenants/me", None).await?;
        let mut body = json!({
            "agent": { "kind": self.agent },
            "template": self.template,
            "llm": { "vendor": self.vendor, "model": self.model, "base_url": self.base_url },
            "secrets": self.secrets,
            "user_id": me.tenant_id,
            "ttl_seconds": self.ttl_seconds,
            "wire_version": self.wire_version,
        });
        if let Some(id) = self.app_id {
            let sets = self.capability_sets.map(|file| read_json(&file)).transpose()?;
            body["app"] = json!({ "id": id, "set_id": self.set_id, "capability_sets": sets });
        }
        Ok(body)
    }
}

fn read_json(file: &PathBuf) -> Result<Value, Failure> {
    let wrong = |why: String| Failure::new(format!("cannot read {}: {why}", file.display()));
    let text = std::fs::read_to_string(file).map_err(|error| wrong(error.to_string()))?;
    serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))
}
