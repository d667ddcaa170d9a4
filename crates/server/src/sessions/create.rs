//! Making a session, and the launch that a create, a resume and a fork have in common: a sandbox with the
//! session's workspace and a sealed order for its model, the agent in it, and the task that follows it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use api::create::Secret;
use api::session::CheckedSession;
use engine::Caller;
use jiff::Timestamp;
use model::{
    AgentSpec, Clocks, Error, NewAgent, NewSandbox, Result, SandboxRef, SecretText, SessionId,
    SessionSpec, SessionStatus, Source,
};
use serde_json::json;
use store::SessionRecord;

use super::daemon::{self, Past};
use super::end::gone;
use super::{Live, Started, pump};
use crate::app::App;
use crate::config::DefaultModels;
use crate::order::{ModelAccess, Order};

/// The universal name of a model's key in bundles.
pub(super) const KEY: &str = "LLM_API_KEY";

/// What bundles give an agent: the key of its model, which stays here, and the rest.
pub(super) struct Values {
    pub(super) key: Secret,
    pub(super) others: BTreeMap<String, String>,
}

pub(super) async fn create(app: &App, caller: &Caller, wanted: CheckedSession) -> Result<Started> {
    if let Some(url) = &wanted.base_url {
        app.upstream.check("llm.base_url", url).await?;
    }
    let (spec, ttl_seconds) = spec(wanted, &app.sessions.default_models)?;
    let values = values(app, caller, &spec).await?;
    let record = new_record(caller, spec, ttl_seconds)?;
    let (app, caller) = (Arc::clone(app), caller.clone());
    // It is made, or undone, also if the caller goes away.
    let made = app.clone().tasks.spawn(async move { make(&app, &caller, record, values).await });
    made.await.context("make a session")?
}

pub(super) async fn make(
    app: &App,
    caller: &Caller,
    record: SessionRecord,
    values: Values,
) -> Result<Started> {
    app.store.create_session(record.clone()).await?;
    let launched = launch(app, caller, (&record, values), Past::Nothing).await;
    if launched.is_err() {
        app.store.delete_session(record.id).await?;
        app.store.delete_session_log(record.id).await?;
    }
    launched.map(|record| Started { record })
}

/// The record of a session of which nothing is there yet.
pub(super) fn new_record(
    caller: &Caller,
    spec: SessionSpec,
    ttl_seconds: u64,
) -> Result<SessionRecord> {
    let id = SessionId::generate();
    // A name that is too long for a workspace is the caller's mistake, before anything is made.
    spec.workspace(&id)?;
    Ok(SessionRecord {
        id,
        owner: caller.owner.clone(),
        spec,
        status: SessionStatus::Running,
        reason: None,
        sandbox: None,
        life: 1,
        native_session_id: None,
        created_at: whole(Timestamp::now())?,
        expires_at: expiry(ttl_seconds)?,
        input_tokens: 0,
        output_tokens: 0,
        tool_calls: 0,
        resumed_at: None,
        previous_status: None,
    })
}

/// Of a life that begins now, in whole seconds as tokens have it.
pub(super) fn expiry(ttl_seconds: u64) -> Result<Timestamp> {
    let expires_at = Timestamp::now().checked_add(Duration::from_secs(ttl_seconds));
    whole(expires_at.context("add to the time")?)
}

/// What the bundles of a session have now. `NotFound` names the one that is not there.
pub(super) async fn values(app: &App, caller: &Caller, spec: &SessionSpec) -> Result<Values> {
    let all = app.vault.resolve(&caller.owner, &spec.bundles).await?;
    let mut others: BTreeMap<_, _> =
        all.into_iter().map(|(name, SecretText(value))| (name, value)).collect();
    let vendors = others.remove(spec.vendor.key_variable());
    let key = Secret(others.remove(KEY).or(vendors).unwrap_or_default());
    Ok(Values { key, others })
}

/// Makes the sandbox of a life, starts its agent and follows that. What fails is undone, but for the
/// record.
pub(super) async fn launch(
    app: &App,
    caller: &Caller,
    (record, values): (&SessionRecord, Values),
    past: Past,
) -> Result<SessionRecord> {
    let wanted = sandbox(app, record, &values)?;
    let _launch = app.sessions.launches.begin(record.id);
    let made = app.engine.create(caller, wanted, None).await?;
    let sandbox = made.sandbox.spec.id;
    let begun = async {
        if !app.store.place_session(record.id, record.life, sandbox).await? {
            return Err(Error::wrong_state("the session was ended or resumed meanwhile"));
        }
        let (live, appender) = Live::new(&app.store, record, sandbox).await?;
        let live = Arc::new(live);
        let told = daemon::begin(app, &live, &values.others, past).await?;
        if let Some(native) = told.native_session_id {
            app.store.name_session(record.id, native).await?;
        }
        app.sessions.remember(&live);
        app.tasks.spawn(pump::run(Arc::clone(app), live, appender));
        let none = || Error::NotFound { what: "session", id: record.id.to_string() };
        app.store.session(record.id).await?.ok_or_else(none)
    };
    let begun = begun.await;
    if begun.is_err() {
        let deleted = app.engine.delete(caller, &SandboxRef::Id(sandbox)).await;
        if let Err(error) = gone(deleted) {
            let error = error.to_string();
            tracing::warn!(sandbox.id = %sandbox, error, "could not undo the start of a session");
        }
    }
    begun
}

/// What is asked for in a life of a session.
pub(super) fn sandbox(app: &App, record: &SessionRecord, values: &Values) -> Result<NewSandbox> {
    let spec = &record.spec;
    let order = Order {
        model: ModelAccess {
            vendor: spec.vendor,
            base_url: spec.base_url.clone(),
            key: values.key.clone(),
        },
        relay: true,
        task: None,
        session_id: None,
        agent_cmd: None,
        env: values.others.clone(),
        app_json: None,
        wire_version: u32::from(spec.wire_version),
        persistence: None,
    };
    let agent = AgentSpec {
        kind: spec.agent,
        vendor: spec.vendor,
        model: spec.model.clone(),
        one_shot: false,
        relay: true,
        own_program: false,
        session: Some(record.id),
    };
    let lives = record.expires_at.as_second() - Timestamp::now().as_second();
    let clocks = Clocks {
        max_lifetime_seconds: Some(u64::try_from(lives).unwrap_or_default().max(1)),
        ..Clocks::default()
    };
    let mut metadata = serde_json::Map::new();
    metadata.insert("session_id".into(), json!(record.id.to_string()));
    Ok(NewSandbox {
        source: Source::Template(spec.template.clone()),
        name: None,
        tier: None,
        disk_gb: None,
        asked_clocks: clocks,
        policy: None,
        // Where the model is the engine adds itself.
        env: BTreeMap::new(),
        metadata,
        vcpu: None,
        cpu_fraction: None,
        memory_mib: None,
        workspace: Some(spec.workspace(&record.id)?),
        agent: Some(NewAgent { sealed: order.sealed(&app.vault, &record.owner)?, spec: agent }),
    })
}

fn spec(wanted: CheckedSession, default_models: &DefaultModels) -> Result<(SessionSpec, u64)> {
    if let Some(version) = &wanted.agent_version
        && version != "latest"
        && version != env!("CARGO_PKG_VERSION")
    {
        let known = env!("CARGO_PKG_VERSION");
        let detail = format!("unknown: {version:?}; leave it out, or say latest or {known}");
        return Err(Error::invalid("agent.version", detail));
    }
    let vendor = wanted.vendor;
    let app_json = wanted.app.map(serde_json::to_value).transpose().context("write an app")?;
    let spec = SessionSpec {
        agent: wanted.kind,
        agent_version: wanted.agent_version,
        template: wanted.template.to_owned(),
        vendor,
        model: Some(wanted.model.unwrap_or_else(|| default_models.of(vendor).to_owned())),
        base_url: wanted.base_url.map(String::from),
        bundles: wanted.secrets,
        app_id: wanted.app_id,
        set_id: wanted.set_id,
        app_json,
        wire_version: wanted.wire_version,
        forked_from: None,
    };
    Ok((spec, wanted.ttl_seconds))
}

fn whole(at: Timestamp) -> Result<Timestamp> {
    Ok(Timestamp::from_second(at.as_second()).context("read the clock")?)
}
