//! A guest of the fake: the wire of the guest protocol over a Unix socket, backed by a directory of
//! this host. As small as the engine's and the conformance suite's needs allow.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};

use anyhow::Context;
use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use guest_proto::{
    HEADER_AGENTS_TOKEN, HEADER_NONCE, HEADER_TOTAL_BYTES, HEADER_TRUNCATED, HEADER_VERSION, PREFIX,
};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::TokioIo;
use model::Result;
use tokio::net::{TcpStream, UnixListener, UnixStream};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::command::Commands;

type Body = UnsyncBoxBody<Bytes, std::io::Error>;
type Answer = std::result::Result<Response<Body>, Refusal>;

/// Runs until it is dropped; then its connections and commands end.
pub(super) struct GuestServer {
    ended: CancellationToken,
    paused: watch::Sender<bool>,
}

struct Guest {
    root: PathBuf,
    incarnation: String,
    commands: Commands,
    agents: Agents,
    agents_started: AtomicBool,
    paused: watch::Receiver<bool>,
    ended: CancellationToken,
    tasks: TaskTracker,
}

/// The port on this host at which every sandbox's agent daemon is; 0 without one.
pub(super) type Agents = Arc<AtomicU16>;

struct Refusal(StatusCode, String);

impl GuestServer {
    pub(super) fn start(
        socket: &Path,
        root: PathBuf,
        env: BTreeMap<String, String>,
        (incarnation, agents): (&str, Agents),
    ) -> Result<Self> {
        let listener = UnixListener::bind(socket).context("bind the guest's socket")?;
        let ended = CancellationToken::new();
        let paused = watch::Sender::new(false);
        let tasks = TaskTracker::new();
        let guest = Arc::new(Guest {
            commands: Commands::new(root.clone(), env, ended.clone(), tasks.clone()),
            root,
            incarnation: incarnation.to_owned(),
            agents,
            agents_started: AtomicBool::new(false),
            paused: paused.subscribe(),
            ended: ended.clone(),
            tasks: tasks.clone(),
        });
        let until = ended.clone();
        tasks.spawn(async move {
            until.run_until_cancelled(accept(listener, guest)).await;
        });
        Ok(Self { ended, paused })
    }

    pub(super) fn set_paused(&self, paused: bool) {
        self.paused.send_replace(paused);
    }
}

impl Drop for GuestServer {
    fn drop(&mut self) {
        self.ended.cancel();
    }
}

async fn accept(listener: UnixListener, guest: Arc<Guest>) {
    while let Ok((connection, _)) = listener.accept().await {
        let (guest, until) = (Arc::clone(&guest), guest.ended.clone());
        let tasks = guest.tasks.clone();
        tasks.spawn(async move {
            until.run_until_cancelled(serve(connection, guest)).await;
        });
    }
}

async fn serve(connection: UnixStream, guest: Arc<Guest>) {
    let service = hyper::service::service_fn(move |request| {
        let guest = Arc::clone(&guest);
        async move {
            let mut paused = guest.paused.clone();
            // A frozen guest answers nothing. The sender goes with the guest.
            let _ = paused.wait_for(|paused| !paused).await;
            let answer = route(&guest, request).await.unwrap_or_else(Refusal::answer);
            Ok::<_, Infallible>(answer)
        }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .serve_connection(TokioIo::new(connection), service)
        .with_upgrades();
    // A client that goes away is no failure of ours.
    let _ = served.await;
}

async fn route(guest: &Arc<Guest>, request: Request<Incoming>) -> Answer {
    let path = request.uri().path().to_owned();
    let query: BTreeMap<String, String> =
        form_urlencoded::parse(request.uri().query().unwrap_or_default().as_bytes())
            .into_owned()
            .collect();
    let ours = path.strip_prefix(PREFIX).unwrap_or(&path);
    let method = request.method().clone();
    match (method, ours) {
        (Method::GET, "/health") => Ok(guest.health()),
        (Method::POST, "/init" | "sync") => Ok(empty()),
        (Method::POST, "exec") => {
            let start = serde_json::from_slice(&all(request).await?).map_err(invalid)?;
            Ok(streamed(guest.commands.start(start).map_err(invalid)?))
        }
        (Method::GET, "exec") => {
            let commands = guest_proto::Commands {
                detached: guest.commands.running(),
                agents: guest.agents_started.load(Ordering::Relaxed),
            };
            Ok(Response::new(full(serde_json::to_vec(&commands).map_err(invalid)?.into())))
        }
        (Method::GET, "file") => guest.read(&query),
        (Method::PUT, "file") => {
            let body = all(request).await?;
            let path = guest.path(&query)?;
            std::fs::write(path, body).map_err(|error| refused_write(&error))?;
            Ok(empty())
        }
        (Method::GET, "export") => guest.export(&query),
        (Method::GET, "tree") => guest.tree(&query),
        (Method::POST, "import") => {
            let body = all(request).await?;
            tar::Archive::new(body.as_ref()).unpack(guest.path(&query)?).map_err(invalid)?;
            Ok(empty())
        }
        (Method::GET, "tail") => guest.tail(&query),
        (Method::POST, "tunnel") => {
            let port = query.get("port").and_then(|text| text.parse().ok()).unwrap_or(0);
            tunnel(guest, port, request).await
        }
        (Method::POST, "agents") => {
            guest.agents_started.store(true, Ordering::Relaxed);
            let mut answer = tunnel(guest, guest.agents.load(Ordering::Relaxed), request).await?;
            let token = http::HeaderValue::from_static("fake");
            answer.headers_mut().insert(HEADER_AGENTS_TOKEN, token);
            Ok(answer)
        }
        (method, path) => guest.command(&method, path, &query),
    }
}

impl Guest {
    fn health(&self) -> Response<Body> {
        let mut answer = empty();
        let headers = answer.headers_mut();
        headers.insert(HEADER_VERSION, http::HeaderValue::from_static("fake"));
        let nonce = self.incarnation.parse().expect("an incarnation is a header value");
        headers.insert(HEADER_NONCE, nonce);
        answer
    }

    fn command(&self, method: &Method, path: &str, query: &BTreeMap<String, String>) -> Answer {
        let missing = || Refusal(StatusCode::NOT_FOUND, "no such route or command".into());
        let id = path.strip_prefix("exec/").ok_or_else(missing)?;
        if *method == Method::DELETE {
            return self.commands.kill(id).then(empty).ok_or_else(missing);
        }
        let offset = query.get("offset").and_then(|text| text.parse().ok()).unwrap_or(0);
        self.commands.attach(id, offset).map(streamed).ok_or_else(missing)
    }

    fn read(&self, query: &BTreeMap<String, String>) -> Answer {
        let path = self.path(query)?;
        if path.is_dir() {
            return Err(Refusal(StatusCode::BAD_REQUEST, "is a directory".into()));
        }
        let bytes = std::fs::read(path).map_err(not_found)?;
        let mut answer = Response::new(full(bytes.clone().into()));
        answer.headers_mut().insert(http::header::CONTENT_LENGTH, bytes.len().into());
        Ok(answer)
    }

    fn export(&self, query: &BTreeMap<String, String>) -> Answer {
        let mut archive = tar::Builder::new(Vec::new());
        archive.follow_symlinks(false);
        archive.append_dir_all(".", self.path(query)?).map_err(not_found)?;
        let bytes = archive.into_inner().map_err(not_found)?;
        Ok(Response::new(full(bytes.into())))
    }

    fn tree(&self, query: &BTreeMap<String, String>) -> Answer {
        let mut lines = Vec::new();
        super::tree::below(&self.path(query)?, "", &mut lines).map_err(not_found)?;
        Ok(Response::new(full(lines.into())))
    }

    fn tail(&self, query: &BTreeMap<String, String>) -> Answer {
        let text = std::fs::read_to_string(self.path(query)?).unwrap_or_default();
        let wanted = |name: &str| query.get(name).and_then(|text| text.parse::<usize>().ok());
        let lines: Vec<&str> = text.split_inclusive('\n').collect();
        let kept: String = match wanted("lines") {
            Some(lines_max) => lines[lines.len().saturating_sub(lines_max)..].concat(),
            None => {
                let from = text.len().saturating_sub(wanted("bytes").unwrap_or(0));
                let tail = text.get(from..).unwrap_or_default();
                let whole = from == 0 || text[..from].ends_with('\n');
                let after = tail.split_once('\n').map_or("", |(_, rest)| rest);
                if whole { tail.to_owned() } else { after.to_owned() }
            }
        };
        let truncated = kept.len() < text.len();
        let mut answer = Response::new(full(kept.into()));
        let flag = http::HeaderValue::from_static(if truncated { "true" } else { "false" });
        answer.headers_mut().insert(HEADER_TRUNCATED, flag);
        answer.headers_mut().insert(HEADER_TOTAL_BYTES, text.len().into());
        Ok(answer)
    }

    /// Where a path of the sandbox is on this host.
    fn path(&self, query: &BTreeMap<String, String>) -> std::result::Result<PathBuf, Refusal> {
        let asked = query.get("path").map(String::as_str).unwrap_or_default();
        inside(&self.root, asked)
            .ok_or_else(|| Refusal(StatusCode::BAD_REQUEST, "not an absolute path".into()))
    }
}

/// `path` below `root`; `None` when it is not absolute or leaves it.
pub(super) fn inside(root: &Path, path: &str) -> Option<PathBuf> {
    let relative = Path::new(path).strip_prefix("/").ok()?;
    let climbs = relative.components().any(|part| !matches!(part, Component::Normal(_)));
    (!climbs).then(|| root.join(relative))
}

async fn tunnel(guest: &Arc<Guest>, port: u16, request: Request<Incoming>) -> Answer {
    let closed = |_| Refusal(StatusCode::BAD_GATEWAY, "the port is not open".into());
    let mut target = TcpStream::connect(("127.0.0.1", port)).await.map_err(closed)?;
    let until = guest.ended.clone();
    guest.tasks.spawn(async move {
        let copy = async {
            let Ok(upgraded) = hyper::upgrade::on(request).await else { return };
            let mut client = TokioIo::new(upgraded);
            // Either end may close it.
            let _ = tokio::io::copy_bidirectional(&mut client, &mut target).await;
        };
        until.run_until_cancelled(copy).await;
    });
    let mut answer = empty();
    *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = answer.headers_mut();
    headers.insert(http::header::CONNECTION, http::HeaderValue::from_static("upgrade"));
    let protocol = http::HeaderValue::from_static(guest_proto::TUNNEL_UPGRADE);
    headers.insert(http::header::UPGRADE, protocol);
    Ok(answer)
}

impl Refusal {
    fn answer(self) -> Response<Body> {
        let body = serde_json::json!({ "code": self.0.as_u16(), "message": self.1 });
        let mut answer = Response::new(full(body.to_string().into()));
        *answer.status_mut() = self.0;
        answer
    }
}

async fn all(request: Request<Incoming>) -> std::result::Result<Bytes, Refusal> {
    Ok(request.into_body().collect().await.map_err(invalid)?.to_bytes())
}

fn full(bytes: Bytes) -> Body {
    http_body_util::Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
}

fn empty() -> Response<Body> {
    let mut answer = Response::new(full(Bytes::new()));
    *answer.status_mut() = StatusCode::NO_CONTENT;
    answer
}

fn streamed(pieces: impl Stream<Item = Bytes> + Send + 'static) -> Response<Body> {
    // An empty piece first, so that the head goes out before the first output.
    let pieces = stream::iter([Bytes::new()]).chain(pieces);
    Response::new(StreamBody::new(pieces.map(|piece| Ok(Frame::data(piece)))).boxed_unsync())
}

fn invalid(error: impl std::fmt::Display) -> Refusal {
    Refusal(StatusCode::BAD_REQUEST, error.to_string())
}

#[expect(clippy::needless_pass_by_value, reason = "used with map_err")]
fn not_found(error: std::io::Error) -> Refusal {
    Refusal(StatusCode::NOT_FOUND, error.to_string())
}

fn refused_write(error: &std::io::Error) -> Refusal {
    if error.kind() == std::io::ErrorKind::StorageFull {
        return Refusal(StatusCode::INSUFFICIENT_STORAGE, "the disk is full".into());
    }
    Refusal(StatusCode::BAD_REQUEST, format!("cannot be written: {error}"))
}
