//! Which part of the guest answers a request.

use std::sync::Arc;

use ::http::{HeaderValue, Method, header};
use guest_proto::{HEADER_NONCE, HEADER_VERSION, Init, PREFIX};

use super::{Peer, Request, Response, gate, json, no_content, refused};
use crate::refusal::{Code, Refusal, Result};
use crate::state::State;
use crate::{connect, extension, files, metrics, process, rpc};

pub(super) async fn route(state: Arc<State>, request: Request, peer: Peer) -> Response {
    if request.method() == Method::OPTIONS {
        return no_content();
    }
    if let Err(refusal) = gate::check(&state, &request, peer) {
        return refused(&refusal);
    }
    let path = request.uri().path();
    if let Some(route) = path.strip_prefix(PREFIX) {
        let route = route.to_owned();
        return extension::route(state, request, &route)
            .await
            .unwrap_or_else(|refusal| refused(&refusal));
    }
    if let Some(procedure) = path.strip_prefix("/process.Process/") {
        let procedure = procedure.to_owned();
        return rpc::process(state, request, &procedure).await;
    }
    if let Some(procedure) = path.strip_prefix("/filesystem.Filesystem/") {
        let procedure = procedure.to_owned();
        return rpc::filesystem(state, request, &procedure).await;
    }
    plain(state, request).await.unwrap_or_else(|refusal| refused(&refusal))
}

/// What envd serves beside its services.
async fn plain(state: Arc<State>, request: Request) -> Result<Response> {
    let method = request.method().clone();
    match (request.uri().path(), &method) {
        ("/health", &Method::GET | &Method::HEAD) => Ok(health(&state)),
        ("/init", &Method::POST) => init(state, request).await,
        ("/envs", &Method::GET) => Ok(json(&state.environment())),
        ("/metrics", &Method::GET) => metrics::sample(&state).map(|sample| json(&sample)),
        ("/files", &Method::GET | &Method::HEAD) => files::download(state, request).await,
        ("/files", &Method::POST) => files::upload(state, request).await,
        ("/files/compose", &Method::POST) => files::compose(state, request).await,
        ("/health" | "/init" | "/envs" | "/metrics" | "/files" | "/files/compose", _) => {
            let message = format!("{method} is not a method of this route");
            Err(Refusal::new(Code::MethodNotAllowed, message))
        }
        (path, _) => Err(Refusal::not_found(format!("no such route: {path}"))),
    }
}

fn health(state: &State) -> Response {
    let mut response = no_content();
    let headers = response.headers_mut();
    headers.insert(HEADER_VERSION, HeaderValue::from_static(env!("CARGO_PKG_VERSION")));
    if let Ok(nonce) = HeaderValue::from_str(&state.nonce) {
        headers.insert(HEADER_NONCE, nonce);
    }
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

async fn init(state: Arc<State>, request: Request) -> Result<Response> {
    let token = gate::given(&request).map(str::to_owned);
    let body = super::read_all(request.into_body(), guest_proto::JSON_BYTES_MAX).await?;
    let init: Init = match body.is_empty() {
        true => Init::default(),
        false => serde_json::from_slice(&body)
            .map_err(|error| Refusal::invalid(format!("body: {error}")))?,
    };
    apply(&state, init, token.as_deref())?;
    let answer = health(&state);
    // A command comes next, but the answer goes first.
    let tasks = state.tasks.clone();
    tasks.spawn(async move { process::get_ready(&state) });
    Ok(answer)
}

/// What is absent stays. The token can be set once; to change it, one has to know it.
fn apply(state: &State, init: Init, given: Option<&str>) -> Result<()> {
    let mut settings = state.settings();
    let new = init.access_token.as_deref().filter(|token| !token.is_empty());
    if let (Some(old), Some(new)) = (&settings.token, new) {
        let knows = |token: &str| gate::same(token.as_bytes(), old.as_bytes());
        if !knows(new) && !given.is_some_and(knows) {
            let message = "access token already set, and the new one is not it";
            return Err(Refusal::new(Code::Unauthenticated, message));
        }
    }
    if let (Some(last), Some(sent)) = (&settings.timestamp, &init.timestamp)
        && connect::time::parse(sent) < connect::time::parse(last)
    {
        // An older one that was overtaken.
        return Ok(());
    }
    let set = |value: Option<String>, place: &mut String| {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            *place = value;
        }
    };
    set(init.default_user, &mut settings.user);
    set(init.default_workdir, &mut settings.workdir);
    settings.env.extend(init.env_vars.unwrap_or_default());
    settings.token = new.map(str::to_owned).or_else(|| settings.token.take());
    settings.timestamp = init.timestamp.or_else(|| settings.timestamp.take());
    Ok(())
}
