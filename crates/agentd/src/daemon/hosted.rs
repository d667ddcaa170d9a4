//! Sessions of a server: it makes them here, follows them by the contract's own routes, and changes what
//! they have in memory. The routes below `/internal` are for it alone, and no part of the contract.
//!
//! `PUT /internal/sessions/{id}` makes a session, or says how it is: who was restarted, or never heard an
//! answer, asks again. What is asked of one that is there already is ignored, but for what is kept in
//! memory alone (`secrets`, `api_key`), which replaces what is there.
//!
//! ```json
//! {"agent": "claude", "agent_mode": "build", "permission_mode": "default", "model": "claude-sonnet-4-5",
//!  "variant": "high", "vendor": "anthropic", "base_url": "http://198.19.255.254:4010",
//!  "api_key": "bastide-relay", "app_json": {}, "wire_version": 2, "directory": "/workspace",
//!  "state_dir": "/workspace/.bastide/agent", "native_session_id": "…", "history": "User: …",
//!  "env": {"A": "b"}, "secrets": {"TOKEN": "…"}, "mcp": {}}
//! ```
//!
//! Only `agent` has to be there. `vendor`, `base_url` and `api_key` become what each agent looks at.
//! `state_dir` is where the agent keeps what a conversation is gone on with: in the workspace, it is there
//! again in another sandbox. `native_session_id` is gone on with if the agent knows it; if it does not,
//! `history` comes before the first message. Who would have to look for that asks without it, and again with it
//! if the answer is that the session is `resumed` by nothing. The answer:
//!
//! ```json
//! {"created": true, "resumed": "native", "native_session_id": "…", "ended": false, "busy": false,
//!  "event_count": 3, "secrets": ["TOKEN"]}
//! ```
//!
//! `resumed` is `native`, `history` or `no`. `PUT /internal/sessions/{id}/env` with `{"secrets": {…},
//! "api_key": "…"}` gives it the whole of its secrets anew (a key that is not said stays), and is answered
//! with `{"keys": ["TOKEN"], "applies": "next_turn"}`: the names that changed, and when: `next_tool_call`,
//! `next_turn`, or `never` for a session that has ended. No turn is cut off for it.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use deictic::Vendor;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Daemon, Making};
use crate::adapter::McpServer;
use crate::agents::launch;
use crate::api::CreateSessionRequest;
use crate::error::{Error, Result};
use crate::secrets::{Secrets, is_variable};
use crate::session::{Applies, Resumed, Session};

/// What is put before the first message.
const HISTORY_BYTES_MAX: usize = 256 * 1024;
/// Of an agent's own id.
const NATIVE_ID_BYTES_MAX: usize = 128;
/// Of a vendor's address.
const BASE_URL_BYTES_MAX: usize = 2048;
/// Where a session works of which nothing else is said, if there is such a place.
const WORKSPACE: &str = "/workspace";

/// What a server asks for.
#[derive(Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Wanted {
    pub(crate) agent: String,
    agent_mode: Option<String>,
    permission_mode: Option<String>,
    model: Option<String>,
    variant: Option<String>,
    vendor: Option<String>,
    base_url: Option<String>,
    api_key: Option<String>,
    app_json: Option<Value>,
    wire_version: Option<u32>,
    directory: Option<String>,
    state_dir: Option<PathBuf>,
    native_session_id: Option<String>,
    history: Option<String>,
    env: BTreeMap<String, String>,
    secrets: BTreeMap<String, String>,
    mcp: BTreeMap<String, McpServer>,
}

/// What it has in memory, anew.
#[derive(Deserialize)]
pub(crate) struct NewSecrets {
    #[serde(default)]
    secrets: BTreeMap<String, String>,
    #[serde(default)]
    api_key: Option<String>,
}

/// How a session is.
#[derive(Debug, Serialize)]
pub(crate) struct Told {
    created: bool,
    resumed: Resumed,
    #[serde(skip_serializing_if = "Option::is_none")]
    native_session_id: Option<String>,
    ended: bool,
    busy: bool,
    event_count: u64,
    secrets: Vec<String>,
}

/// What became of other secrets.
#[derive(Debug, Serialize)]
pub(crate) struct Changed {
    keys: Vec<String>,
    applies: Applies,
}

impl Daemon {
    /// Makes a session, or says how it is. It is made also if whoever asks goes away.
    pub(crate) async fn put(self: &Arc<Self>, id: &str, wanted: Wanted) -> Result<Told> {
        let (daemon, id) = (Arc::clone(self), id.to_owned());
        let made = self.host.tasks.spawn(async move { daemon.put_in_turn(&id, wanted).await });
        made.await.map_err(|_| Error::stream("the session was not made: the daemon stops"))?
    }

    async fn put_in_turn(self: &Arc<Self>, id: &str, wanted: Wanted) -> Result<Told> {
        // Who asks again while it is made waits for that.
        let _turn = self.puts.acquire().await.map_err(|_| Error::stream("the daemon stops"))?;
        let secrets = secrets_of(&wanted)?;
        if let Ok(session) = self.session(id) {
            if session.agent() != wanted.agent {
                let message = format!("agent: another one was asked for: {}", session.agent());
                return Err(Error::invalid(message));
            }
            session.change_secrets(secrets);
            if let Some(history) = past_of(None, wanted.history)?.history {
                session.remember(history);
            }
            return Ok(tell(&session, false));
        }
        let adapter = Arc::clone(self.adapter(&wanted.agent)?);
        let mut env = wanted.env.clone();
        env.extend(variables_of(&wanted)?);
        if let (Some(name), Some(dir)) =
            (adapter.description().state_variable, wanted.state_dir.as_deref())
        {
            let dir = dir.join(adapter.description().id);
            make_state_dir(wanted.state_dir.as_deref().unwrap_or(&dir), &dir).map_err(|error| {
                Error::invalid(format!("state_dir: {error}: {}", dir.display()))
            })?;
            env.insert(name.to_owned(), dir.to_string_lossy().into_owned());
        }
        let request = CreateSessionRequest {
            agent: wanted.agent,
            agent_mode: wanted.agent_mode,
            permission_mode: wanted.permission_mode,
            model: wanted.model,
            variant: wanted.variant,
            directory: wanted
                .directory
                .or_else(|| Path::new(WORKSPACE).is_dir().then(|| WORKSPACE.to_owned())),
            env: Some(env),
            mcp: Some(wanted.mcp),
            ..CreateSessionRequest::default()
        };
        let past = past_of(wanted.native_session_id, wanted.history)?;
        let extra = Making { secrets, app: wanted.app_json, past };
        let session = self.create_with(id, request, extra).await?;
        Ok(tell(&session, true))
    }

    /// What its agent gets from now on.
    pub(crate) fn change_secrets(&self, id: &str, new: NewSecrets) -> Result<Changed> {
        let session = self.session(id)?;
        let mut all = new.secrets;
        let spec = session.spec();
        for name in key_variables(spec.env.get(launch::VENDOR).map(String::as_str))? {
            let value = new.api_key.as_ref().or_else(|| spec.secrets.get(name));
            if let Some(value) = value {
                all.insert(name.to_owned(), value.clone());
            }
        }
        let (keys, applies) = session.change_secrets(Secrets::new(all)?);
        Ok(Changed { keys, applies })
    }
}

fn tell(session: &Session, created: bool) -> Told {
    let (info, spec) = (session.info(), session.spec());
    Told {
        created,
        resumed: session.resumed(),
        native_session_id: info.native_session_id,
        ended: info.ended,
        busy: session.is_busy(),
        event_count: info.event_count,
        secrets: spec.secrets.names(),
    }
}

/// What a session goes on from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Past {
    pub(crate) native_session_id: Option<String>,
    pub(crate) history: Option<String>,
}

fn past_of(native: Option<String>, history: Option<String>) -> Result<Past> {
    let native = native.filter(|id| !id.is_empty());
    let plain = |id: &String| {
        id.len() <= NATIVE_ID_BYTES_MAX
            && id.starts_with(|first: char| first.is_ascii_alphanumeric())
            && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
    };
    if native.as_ref().is_some_and(|id| !plain(id)) {
        return Err(Error::invalid("native_session_id: not the id of a session"));
    }
    let history = history.filter(|history| !history.trim().is_empty());
    if history.as_ref().is_some_and(|history| history.len() > HISTORY_BYTES_MAX) {
        let message =
            format!("history: longer than {HISTORY_BYTES_MAX} bytes; leave out its begin");
        return Err(Error::invalid(message));
    }
    Ok(Past { native_session_id: native, history })
}

/// What of the model, and of the wire, is no secret.
fn variables_of(wanted: &Wanted) -> Result<BTreeMap<String, String>> {
    let mut all = BTreeMap::new();
    if let Some(version) = wanted.wire_version {
        all.insert("WIRE_VERSION".to_owned(), version.to_string());
    }
    let Some(vendor) = &wanted.vendor else {
        return match wanted.base_url.is_some() || wanted.api_key.is_some() {
            true => Err(Error::invalid("vendor: is needed with base_url and api_key")),
            false => Ok(all),
        };
    };
    let (base_url, _) = Vendor::parse(vendor).map_err(Error::invalid)?.variables();
    all.insert(launch::VENDOR.to_owned(), vendor.clone());
    if let Some(model) = &wanted.model {
        all.insert(launch::MODEL.to_owned(), model.clone());
    }
    if let Some(url) = wanted.base_url.as_ref().filter(|url| !url.is_empty()) {
        if url.len() > BASE_URL_BYTES_MAX || url::Url::parse(url).is_err() {
            return Err(Error::invalid("base_url: not an address"));
        }
        all.extend(base_url.map(|name| (name.to_owned(), url.clone())));
        all.insert(launch::BASE_URL.to_owned(), url.clone());
    }
    match all.iter().find(|(name, value)| !is_variable(name, value)) {
        Some((name, _)) => Err(Error::invalid(format!("env: not a variable: {name:?}"))),
        None => Ok(all),
    }
}

fn secrets_of(wanted: &Wanted) -> Result<Secrets> {
    let mut all = wanted.secrets.clone();
    if let Some(key) = &wanted.api_key {
        let names = key_variables(wanted.vendor.as_deref())?;
        all.extend(names.into_iter().map(|name| (name.to_owned(), key.clone())));
    }
    Secrets::new(all)
}

/// In which variables programs look for the key of a vendor's model.
fn key_variables(vendor: Option<&str>) -> Result<Vec<&'static str>> {
    let Some(vendor) = vendor else { return Ok(Vec::new()) };
    let (_, key) = Vendor::parse(vendor).map_err(Error::invalid)?.variables();
    Ok([launch::KEY].into_iter().chain(key).collect())
}

/// Nobody else's, and no part of what the agent works on.
fn make_state_dir(root: &Path, dir: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let ignore = root.join(".gitignore");
    if ignore.exists() { Ok(()) } else { std::fs::write(ignore, "*\n") }
}

#[cfg(test)]
mod tests;
