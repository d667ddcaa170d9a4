//! The programs under test. A registry on loopback offers the packages that npm fetched; our own
//! installer takes them from there, once for all test processes.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use agentd::Host;
use agentd::install::{Wanted, install, package_of};
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub(crate) const AGENTS: [&str; 3] = ["claude", "codex", "opencode"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned()
}

/// Where the programs are, with all of them in place.
pub(crate) async fn programs() -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("agents");
    std::fs::create_dir_all(&dir).unwrap();
    let lock = File::create(dir.join("lock")).unwrap();
    let lock = tokio::task::spawn_blocking(move || {
        lock.lock().unwrap();
        lock
    });
    let _lock = lock.await.unwrap();
    if AGENTS.iter().all(|agent| is_current(&dir, agent)) {
        return dir;
    }
    fetch(&dir).await;
    let stop = CancellationToken::new();
    let address = serve(&dir, stop.clone()).await;
    let registry = (OsString::from("npm_config_registry"), OsString::from(address));
    let host = Arc::new(Host {
        data_dir: dir.clone(),
        environment: BTreeMap::from([registry]),
        directory: dir.clone(),
        tasks: TaskTracker::new(),
        stop: CancellationToken::new(),
        mock_delay: std::time::Duration::ZERO,
    });
    for agent in AGENTS {
        let wanted = Wanted { agent, version: None, reinstall: true };
        install(&host, wanted).await.unwrap();
    }
    stop.cancel();
    dir
}

/// The pinned version is what is installed.
fn is_current(dir: &Path, agent: &str) -> bool {
    let version = package_of(agent).unwrap().version;
    let program = std::fs::read_link(dir.join("bin").join(agent));
    program.is_ok_and(|path| path.iter().any(|part| part == version))
        && dir.join("bin").join(agent).exists()
}

/// Asks npm for the packages, unless they were fetched before.
async fn fetch(dir: &Path) {
    let mut specs = Vec::new();
    for agent in AGENTS {
        specs.push(spec_of(agent));
    }
    let dir = dir.join("packages");
    let fetched = tokio::task::spawn_blocking(move || {
        let script = root().join("scripts/fetch-agents.sh");
        Command::new(script).arg(dir).args(specs).status().unwrap()
    });
    assert!(fetched.await.unwrap().success(), "npm could not fetch the agents' packages");
}

fn arch() -> &'static str {
    if cfg!(target_arch = "x86_64") { "x64" } else { "arm64" }
}

/// The package of this platform, as npm names it.
fn spec_of(agent: &str) -> String {
    let (version, arch) = (package_of(agent).unwrap().version, arch());
    match agent {
        "claude" => format!("@anthropic-ai/claude-code-linux-{arch}@{version}"),
        "codex" => format!("@openai/codex@{version}-linux-{arch}"),
        "opencode" => format!("opencode-linux-{arch}@{version}"),
        other => panic!("not tested with its program: {other}"),
    }
}

/// What the main package of an agent calls the one of this platform.
fn dependency_of(agent: &str) -> (String, String) {
    let spec = spec_of(agent);
    let (name, version) = spec.rsplit_once('@').unwrap();
    match agent {
        "codex" => (format!("@openai/codex-linux-{}", arch()), format!("npm:{spec}")),
        _ => (name.to_owned(), version.to_owned()),
    }
}

/// npm's name of the file.
fn file_of(spec: &str) -> String {
    let (name, version) = spec.rsplit_once('@').unwrap();
    format!("{}-{version}.tgz", name.trim_start_matches('@').replace('/', "-"))
}

async fn serve(dir: &Path, stop: CancellationToken) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let state = (address.clone(), dir.join("packages"));
    let router = axum::Router::new().fallback(answer).with_state(state);
    TaskTracker::new().spawn(async move {
        tokio::select! {
            () = stop.cancelled() => {}
            served = axum::serve(listener, router) => served.unwrap(),
        }
    });
    address
}

async fn answer(State((base, dir)): State<(String, PathBuf)>, request: Request) -> Response {
    let path = request.uri().path().trim_start_matches('/').replace("%2f", "/");
    if let Some(file) = path.strip_prefix("files/") {
        return Body::from(std::fs::read(dir.join(file)).unwrap()).into_response();
    }
    let (name, version) = path.rsplit_once('/').unwrap();
    for agent in AGENTS {
        let package = package_of(agent).unwrap();
        if name == package.name && version == package.version {
            let (key, value) = dependency_of(agent);
            let nothing = json!({"tarball": base, "integrity": ""});
            let optional = json!({key: value});
            let manifest =
                json!({"version": version, "dist": nothing, "optionalDependencies": optional});
            return manifest.to_string().into_response();
        }
        if format!("{name}@{version}") == spec_of(agent) {
            return json!({"version": version, "dist": dist(&base, &dir, agent)})
                .to_string()
                .into_response();
        }
    }
    StatusCode::NOT_FOUND.into_response()
}

/// With the checksum that the registry gave npm.
fn dist(base: &str, dir: &Path, agent: &str) -> Value {
    let file = file_of(&spec_of(agent));
    let integrity = std::fs::read_to_string(dir.join(format!("{file}.integrity"))).unwrap();
    json!({"tarball": format!("{base}/files/{file}"), "integrity": integrity.trim()})
}
