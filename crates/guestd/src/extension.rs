//! What envd lacks, under [`guest_proto::PREFIX`]: commands that can be re-attached, whole files for
//! the control plane, tar archives, log tails, flushing, and tunnels. Only the host calls it.

mod commands;
mod export;
mod handover;
mod import;
mod placing;
mod tail;
mod tree;
mod tunnel;
mod walk;
mod whole_file;

pub(crate) use tunnel::connect as connect_to;

use std::sync::Arc;

use http::Method;
use tokio::sync::Semaphore;

use crate::files::Query;
use crate::http::{Request, Response, no_content};
use crate::refusal::{Code, Refusal, Result};
use crate::state::State;

/// Archives that are read or written at once. Each holds a thread for as long as its client takes.
static ARCHIVES: Semaphore = Semaphore::const_new(4);

/// `route` is what follows the prefix.
pub(crate) async fn route(state: Arc<State>, request: Request, route: &str) -> Result<Response> {
    if let Some(id) = route.strip_prefix("exec/") {
        return match *request.method() {
            Method::GET => commands::attach(&state, &request, id),
            Method::DELETE => commands::kill(&state, id).await,
            _ => Err(wrong_method()),
        };
    }
    match (route, request.method()) {
        ("exec", &Method::POST) => commands::start(&state, request).await,
        ("exec", &Method::GET) => Ok(commands::list(&state)),
        ("file", &Method::GET) => whole_file::read(state, request).await,
        ("file", &Method::PUT) => whole_file::write(state, request).await,
        ("open", &Method::POST) => handover::to_write(state, request).await,
        ("export", &Method::GET) => export::export(&state, &request),
        ("tree", &Method::GET) => tree::tree(&state, &request),
        ("import", &Method::POST) => import::import(&state, request).await,
        ("tail", &Method::GET) => tail::tail(&state, &request).await,
        ("sync", &Method::POST) => sync(&state, &request).await,
        ("agents", &Method::POST) => tunnel::to_agents(state, request).await,
        ("tunnel", &Method::POST) => tunnel::open(state, request).await,
        (
            "exec" | "file" | "open" | "export" | "tree" | "import" | "tail" | "sync" | "tunnel"
            | "agents",
            _,
        ) => Err(wrong_method()),
        _ => Err(Refusal::not_found(format!("no such route: {route}"))),
    }
}

fn wrong_method() -> Refusal {
    Refusal::new(Code::MethodNotAllowed, "not a method of this route")
}

/// The path of a request. The host has checked it by its own rules; here it must only be absolute.
fn path_of(request: &Request) -> Result<String> {
    let path = Query::of(request).take("path").unwrap_or_default();
    if !path.starts_with('/') {
        return Err(Refusal::invalid(format!("path: not absolute: {path}")));
    }
    Ok(path)
}

async fn sync(state: &State, request: &Request) -> Result<Response> {
    let path = path_of(request)?;
    let synced = state.tasks.spawn_blocking(move || {
        let flags =
            rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC | rustix::fs::OFlags::NONBLOCK;
        let file = rustix::fs::open(&path, flags, rustix::fs::Mode::empty())
            .map_err(|errno| Refusal::errno(&path, errno))?;
        rustix::fs::syncfs(&file).map_err(|errno| Refusal::errno("sync", errno))
    });
    synced.await.unwrap_or_else(|error| Err(Refusal::internal(error.to_string())))?;
    Ok(no_content())
}
