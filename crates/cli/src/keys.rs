//! `bastide keys`: API keys over HTTP.

use std::process::ExitCode;

use api::key::{ApiKeys, CreatedKey, Revoked};
use api::{TenantKeyCreated, TenantKeys};
use clap::Subcommand;
use http::Method;
use serde_json::{Map, Value};

use crate::client::{Client, empty};
use crate::failure::Failure;
use crate::out;

/// One's own keys, for any key or token; the operator's commands about others go elsewhere.
const OWN: &str = "/v1/tenants/me/api-keys";
const KEEP: &str = "hint: keep it now, it cannot be shown again";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Create a key; its secret is printed once
    Create {
        /// Whose key it is (operator only); default: your own
        #[arg(long, value_name = "NAME")]
        owner: Option<String>,
        /// The plan of that owner (operator only)
        #[arg(long, value_parser = ["free", "operator"])]
        plan: Option<String>,
    },
    /// List keys, without their secrets
    #[command(visible_alias = "ls")]
    List {
        /// Whose keys (operator only); default: your own
        #[arg(long, value_name = "NAME")]
        owner: Option<String>,
    },
    /// Make a key useless from now on
    Revoke {
        /// As the list shows it: `key_…`
        key_id: String,
        /// Whose key it is (operator only); default: your own
        #[arg(long, value_name = "NAME")]
        owner: Option<String>,
    },
}

pub(crate) async fn execute(
    client: &Client,
    command: Command,
    json: bool,
) -> Result<ExitCode, Failure> {
    match command {
        Command::Create { owner, plan } => create(client, owner.as_deref(), plan, json).await?,
        Command::List { owner } => list(client, owner.as_deref(), json).await?,
        Command::Revoke { key_id, owner } => {
            revoke(client, &key_id, owner.as_deref(), json).await?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn create(
    client: &Client,
    owner: Option<&str>,
    plan: Option<String>,
    json: bool,
) -> Result<(), Failure> {
    if owner.is_none() && plan.is_none() {
        let key: TenantKeyCreated = client.json(Method::POST, OWN, None).await?;
        if json {
            return out::json(&key);
        }
        out::line(&key.api_key);
        out::note(format!("{} on plan {}", key.key_id, key.plan_tier));
        out::note(KEEP);
        return Ok(());
    }
    let mut body = Map::new();
    if let Some(owner) = owner {
        body.insert("owner".into(), owner_id(owner).into());
    }
    if let Some(plan) = plan {
        body.insert("plan".into(), plan.into());
    }
    let body = Value::Object(body);
    let key: CreatedKey = client.json(Method::POST, "/v1/api-keys", Some(&body)).await?;
    if json {
        return out::json(&key);
    }
    out::line(&key.key);
    out::note(format!("{} for {} on plan {}", key.key_id, key.owner, key.plan_tier));
    out::note(KEEP);
    Ok(())
}

async fn list(client: &Client, owner: Option<&str>, json: bool) -> Result<(), Failure> {
    let keys = match owner {
        None => client.json::<TenantKeys>(Method::GET, OWN, None).await?.keys,
        Some(owner) => {
            let path = of_owner("/v1/api-keys", owner);
            client.json::<ApiKeys>(Method::GET, &path, None).await?.api_keys
        }
    };
    if json {
        return out::json(&ApiKeys { api_keys: keys });
    }
    let rows = keys.into_iter().map(|key| {
        let state = if key.revoked { "revoked" } else { "active" };
        vec![key.key_id, key.prefix, state.into(), key.plan_tier, key.created_at.to_string()]
    });
    out::table(&["ID", "PREFIX", "STATE", "PLAN", "CREATED"], rows.collect());
    Ok(())
}

async fn revoke(
    client: &Client,
    key_id: &str,
    owner: Option<&str>,
    json: bool,
) -> Result<(), Failure> {
    let plain = |c: u8| c.is_ascii_alphanumeric() || c == b'_' || c == b'-';
    if key_id.is_empty() || !key_id.bytes().all(plain) {
        return Err(Failure::new(format!("no such key: {key_id}")));
    }
    let path = match owner {
        None => format!("{OWN}/{key_id}"),
        Some(owner) => of_owner(&format!("/v1/api-keys/{key_id}"), owner),
    };
    let request = client.request(Method::DELETE, &path).body(empty());
    let request = request.map_err(|error| Failure::new(error.to_string()))?;
    client.whole(request).await?;
    if json {
        return out::json(&Revoked { status: "revoked".into() });
    }
    out::line(key_id);
    Ok(())
}

/// Owners are `usr_…`; people leave that out.
fn owner_id(name: &str) -> String {
    if name.starts_with("usr_") { name.to_owned() } else { format!("usr_{name}") }
}

fn of_owner(path: &str, owner: &str) -> String {
    let query = form_urlencoded::Serializer::new(String::new())
        .append_pair("owner", &owner_id(owner))
        .finish();
    format!("{path}?{query}")
}
