//! The programs under test. A registry on loopback offers the packages that npm fetched; our own
//! installer takes them from there, once for all test processes.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

use agentd::Host;
use agentd::install::{Wanted, install, package_of};
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{CONTENT_LENGTH, CONTENT_RANGE, RANGE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub(crate) const AGENTS: [&str; 3] = ["claude", "codex", "opencode"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned()
}

/// Where the programs are, with all of them in place. `BASTIDE_TEST_PROGRAMS` is a directory with others,
/// to try a version that is not the pinned one: `DIR/bin/claude`, …
pub(crate) async fn programs() -> PathBuf {
    if let Some(dir) = others() {
        return dir;
    }
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
    let cuts = Cuts::default();
    let address = serve(&dir, cuts.clone(), stop.clone()).await;
    let registry = (OsString::from("npm_config_registry"), OsString::from(address));
    let host = Arc::new(Host {
        data_dir: dir.clone(),
        environment: BTreeMap::from([registry]),
        directory: dir.clone(),
        tasks: TaskTracker::new(),
        stop: CancellationToken::new(),
        mock_delay: std::time::Duration::ZERO,
        deictic: Vec::new(),
    });
    for agent in AGENTS {
        let wanted = Wanted { agent, version: None, reinstall: true };
        install(&host, wanted).await.unwrap();
    }
    stop.cancel();
    let cuts = cuts.lock().unwrap();
    assert!(cuts.values().all(|cut| *cut == Cut::Resumed), "{cuts:?}");
    assert_eq!(cuts.len(), AGENTS.len());
    dir
}

/// Each package is cut in its middle, once; then the rest is wanted, and not all of it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cut {
    Made,
    Resumed,
}

type Cuts = Arc<Mutex<BTreeMap<String, Cut>>>;

#[derive(Clone)]
struct Shelf {
    base: String,
    dir: PathBuf,
    cuts: Cuts,
}

pub(crate) fn others() -> Option<PathBuf> {
    std::env::var_os("BASTIDE_TEST_PROGRAMS").map(PathBuf::from)
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

async fn serve(dir: &Path, cuts: Cuts, stop: CancellationToken) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let state = Shelf { base: address.clone(), dir: dir.join("packages"), cuts };
    let router = axum::Router::new().fallback(answer).with_state(state);
    TaskTracker::new().spawn(async move {
        tokio::select! {
            () = stop.cancelled() => {}
            served = axum::serve(listener, router) => served.unwrap(),
        }
    });
    address
}

async fn answer(State(shelf): State<Shelf>, request: Request) -> Response {
    let path = request.uri().path().trim_start_matches('/').replace("%2f", "/");
    if let Some(file) = path.strip_prefix("files/") {
        return shelf.file(file, request.headers().get(RANGE));
    }
    let Shelf { base, dir, .. } = shelf;
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

impl Shelf {
    fn file(&self, name: &str, range: Option<&HeaderValue>) -> Response {
        let bytes = Bytes::from(std::fs::read(self.dir.join(name)).unwrap());
        let mut cuts = self.cuts.lock().unwrap();
        let whole = bytes.len();
        let Some(from) = range.and_then(|range| from_of(range.to_str().ok()?)) else {
            cuts.insert(name.to_owned(), Cut::Made);
            let half = bytes.slice(..whole / 2);
            let cut = Err(std::io::Error::other("cut"));
            let body = Body::from_stream(futures_util::stream::iter([Ok(half), cut]));
            return ([(CONTENT_LENGTH, whole)], body).into_response();
        };
        cuts.insert(name.to_owned(), Cut::Resumed);
        let range = format!("bytes {from}-{}/{whole}", whole - 1);
        let rest = bytes.slice(from..);
        (StatusCode::PARTIAL_CONTENT, [(CONTENT_RANGE, range)], rest).into_response()
    }
}

fn from_of(range: &str) -> Option<usize> {
    range.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok()
}

/// With the checksum that the registry gave npm.
fn dist(base: &str, dir: &Path, agent: &str) -> Value {
    let file = file_of(&spec_of(agent));
    let integrity = std::fs::read_to_string(dir.join(format!("{file}.integrity"))).unwrap();
    json!({"tarball": format!("{base}/files/{file}"), "integrity": integrity.trim()})
}
