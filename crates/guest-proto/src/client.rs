//! The host's end. A connection is driven by whoever uses it, inside the same task: no task of ours
//! runs in the background, a request costs no hop between threads, and dropping an answer closes its
//! connection (which is how a command that is not detached is ended).
//!
//! What is bounded: dialling, and the wait for the head of an answer, except where the work before
//! it is as long as the caller's own body. Reading what follows is driven by the caller, because a
//! paused sandbox rightly says nothing for hours.

mod body;
mod connection;
mod exec;
mod files;
mod handed;
mod stream;

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::Stream;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use tokio::time::timeout;

pub use self::body::{ByteStream, ExecFrames, FileDownload};
use self::body::{RequestBody, ResponseBody};
use self::connection::{Connection, SendError};
pub use self::stream::Tunnel;
use crate::{
    Address, GuestError, HEADER_AGENTS_TOKEN, HEADER_NONCE, HEADER_TOTAL_BYTES, HEADER_TRUNCATED,
    HEADER_VERSION, Health, Init, PREFIX, TAIL_BYTES_MAX, TUNNEL_UPGRADE, Tail, Tailed, TreeEntry,
};

/// A Unix socket answers at once or its backlog is full.
const CONNECT_MAX: Duration = Duration::from_secs(5);

/// How long the head of an answer may take when no long work is before it.
const HEAD_MAX: Duration = Duration::from_secs(30);

/// Flushing a disk may take that long.
const SYNC_MAX: Duration = Duration::from_secs(300);

/// Connections that wait for the next request. Every one costs memory in the sandbox.
const IDLE_MAX: usize = 2;

/// The longest text of an error that is read.
const ERROR_BYTES_MAX: usize = 64 << 10;

/// One guest. Cloning is cheap and shares the idle connections.
#[derive(Clone, Debug)]
pub struct Guest {
    pool: Arc<Pool>,
}

#[derive(Debug)]
struct Pool {
    address: Address,
    idle: Mutex<Vec<Connection>>,
}

impl Guest {
    /// Dials nothing yet.
    pub fn new(address: Address) -> Self {
        Self { pool: Arc::new(Pool { address, idle: Mutex::new(Vec::new()) }) }
    }

    pub fn address(&self) -> &Address {
        &self.pool.address
    }

    pub async fn health(&self) -> Result<Health, GuestError> {
        let answer = self.call(Call::new(Method::GET, "/health".into())).await?;
        self.health_of(answer).await
    }

    /// Gives a guest its environment, and learns who it is: one question where a launch waits for it.
    pub async fn init(&self, init: &Init) -> Result<Health, GuestError> {
        let call = Call::new(Method::POST, "/init".into()).json(init)?;
        let answer = self.call(call).await?;
        self.health_of(answer).await
    }

    /// A directory as a tar archive.
    pub async fn export_tar(&self, path: &str) -> Result<ByteStream, GuestError> {
        self.open(Call::new(Method::GET, with_path("export", path))).await
    }

    /// Unpacks a tar archive into a directory, which must exist.
    pub async fn import_tar<S>(&self, path: &str, body: S) -> Result<(), GuestError>
    where
        S: Stream<Item = io::Result<Bytes>> + Send + 'static,
    {
        let call = Call::new(Method::POST, with_path("import", path)).streaming(body);
        let answer = self.call(call).await?;
        self.finish(answer).await
    }

    /// Everything below a directory, without what is in the files.
    pub async fn tree(&self, path: &str) -> Result<Vec<TreeEntry>, GuestError> {
        crate::tree::read(self.open(Call::new(Method::GET, with_path("tree", path))).await?).await
    }

    /// The end of a log. A file that does not exist is an empty one.
    pub async fn tail(&self, path: &str, by: Tail) -> Result<Tailed, GuestError> {
        let amount = match by {
            Tail::Lines(lines) => format!("&lines={lines}"),
            Tail::Bytes(bytes) => format!("&bytes={bytes}"),
        };
        let answer = self.call(Call::new(Method::GET, with_path("tail", path) + &amount)).await?;
        let truncated = text_header(answer.headers(), HEADER_TRUNCATED)? == "true";
        let total_bytes = number_header(answer.headers(), HEADER_TOTAL_BYTES)?;
        let content = self.body(answer).collect(TAIL_BYTES_MAX).await?;
        let content = String::from_utf8_lossy(&content).into_owned();
        Ok(Tailed { content, truncated, total_bytes })
    }

    /// Flushes the file system that the path is on.
    pub async fn sync(&self, path: &str) -> Result<(), GuestError> {
        let call = Call::new(Method::POST, with_path("sync", path)).within(Some(SYNC_MAX));
        let answer = self.call(call).await?;
        self.finish(answer).await
    }

    /// A connection to a TCP port inside, or to the guest itself for [`crate::GUEST_PORT`].
    pub async fn tunnel(&self, port: u16) -> Result<Tunnel, GuestError> {
        let path = format!("{PREFIX}tunnel?port={port}");
        match self.upgrade(Method::POST, &path, TUNNEL_UPGRADE).await? {
            Upgraded::Tunnel(tunnel) => Ok(tunnel),
            Upgraded::Refused(_) => Err(GuestError::protocol("no tunnel was made")),
        }
    }

    /// A connection to the agent daemon, which is started on first use, and the token it wants.
    pub async fn agents(&self) -> Result<(Tunnel, String), GuestError> {
        let mut call = Call::new(Method::POST, format!("{PREFIX}agents"));
        call.headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        call.headers.insert(header::UPGRADE, HeaderValue::from_static(TUNNEL_UPGRADE));
        let (response, connection) = self.send(call).await?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            let answer = Answer { response, connection };
            return Err(refused(self.body_and_status(answer)).await);
        }
        let token = response.headers().get(HEADER_AGENTS_TOKEN);
        let token = token.and_then(|token| token.to_str().ok()).map(str::to_owned);
        let token = token.ok_or_else(|| GuestError::protocol("no token of the agent daemon"))?;
        Ok((bounded(CONNECT_MAX, connection.into_tunnel()).await?, token))
    }

    async fn upgrade(
        &self,
        method: Method,
        path: &str,
        protocol: &'static str,
    ) -> Result<Upgraded, GuestError> {
        let mut call = Call::new(method, path.to_owned());
        call.headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        call.headers.insert(header::UPGRADE, HeaderValue::from_static(protocol));
        let (response, connection) = self.send(call).await?;
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            return bounded(CONNECT_MAX, connection.into_tunnel()).await.map(Upgraded::Tunnel);
        }
        let answer = Answer { response, connection };
        if answer.response.status().is_success() {
            return Ok(Upgraded::Refused(Box::new(answer)));
        }
        Err(refused(self.body_and_status(answer)).await)
    }

    /// Sends and requires success; the answer's body is still to be read.
    async fn call(&self, call: Call) -> Result<Answer, GuestError> {
        let (response, connection) = self.send(call).await?;
        let answer = Answer { response, connection };
        if answer.response.status().is_success() {
            return Ok(answer);
        }
        Err(refused(self.body_and_status(answer)).await)
    }

    async fn open(&self, call: Call) -> Result<ByteStream, GuestError> {
        Ok(self.body(self.call(call).await?))
    }

    async fn health_of(&self, answer: Answer) -> Result<Health, GuestError> {
        let version = text_header(answer.headers(), HEADER_VERSION)?;
        let nonce = text_header(answer.headers(), HEADER_NONCE)?;
        self.finish(answer).await?;
        Ok(Health { version, nonce })
    }

    /// Reads an answer that has nothing in it, so that its connection can be used again.
    async fn finish(&self, answer: Answer) -> Result<(), GuestError> {
        bounded(HEAD_MAX, self.body(answer).collect(ERROR_BYTES_MAX)).await.map(drop)
    }

    fn body(&self, answer: Answer) -> ByteStream {
        self.body_and_status(answer).1
    }

    fn body_and_status(&self, answer: Answer) -> (StatusCode, ByteStream) {
        let (head, incoming) = answer.response.into_parts();
        let body = ResponseBody::new(incoming, answer.connection, Arc::clone(&self.pool));
        (head.status, ByteStream::new(body))
    }

    /// On an idle connection when there is one. One that turns out to be closed before it took the
    /// request is replaced by another; a body that comes once only gets a fresh one at once.
    async fn send(&self, call: Call) -> Result<(Response<Incoming>, Connection), GuestError> {
        let head_max = call.head_max;
        let mut request = self.request(call)?;
        loop {
            let again = copy(&request);
            let idle = if again.is_some() { self.pool.take() } else { None };
            let (mut connection, fresh) = match idle {
                Some(connection) => (connection, false),
                None => (bounded(CONNECT_MAX, Connection::open(&self.pool.address)).await?, true),
            };
            let sent = match head_max {
                Some(max) => timeout(max, connection.send(request)).await,
                None => Ok(connection.send(request).await),
            };
            match (sent, again) {
                (Err(_), _) => return Err(GuestError::TimedOut),
                (Ok(Ok(response)), _) => return Ok((response, connection)),
                (Ok(Err(SendError::Unsent)), Some(again)) if !fresh => request = again,
                (Ok(Err(SendError::Unsent)), _) => {
                    return Err(GuestError::Unreachable(io::ErrorKind::ConnectionReset.into()));
                }
                (Ok(Err(SendError::Failed(error))), _) => return Err(error),
            }
        }
    }

    fn request(&self, call: Call) -> Result<Request<RequestBody>, GuestError> {
        let mut request = Request::new(call.body);
        *request.method_mut() = call.method;
        *request.uri_mut() =
            call.path.parse().map_err(|_| GuestError::Invalid("the path is too long".into()))?;
        *request.headers_mut() = call.headers;
        request.headers_mut().insert(header::HOST, HeaderValue::from_static("guest"));
        if let Address::Tcp { token, .. } = &self.pool.address {
            let mut token = HeaderValue::from_str(token)
                .map_err(|_| GuestError::Invalid("the token is not a header value".into()))?;
            token.set_sensitive(true);
            request.headers_mut().insert("x-access-token", token);
        }
        Ok(request)
    }
}

impl Pool {
    /// An idle connection that is still open, as far as one can tell without asking.
    fn take(&self) -> Option<Connection> {
        let mut context = Context::from_waker(std::task::Waker::noop());
        loop {
            let taken = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let mut connection = taken?;
            if !connection.is_closed(&mut context) {
                return Some(connection);
            }
        }
    }

    fn give_back(&self, connection: Connection) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_MAX {
            idle.push(connection);
        }
    }
}

/// What became of a request to upgrade.
enum Upgraded {
    Tunnel(Tunnel),
    /// Answered as if nobody had asked for it.
    Refused(Box<Answer>),
}

/// One request before it is one.
struct Call {
    method: Method,
    path: String,
    headers: HeaderMap,
    body: RequestBody,
    head_max: Option<Duration>,
}

impl Call {
    fn new(method: Method, path: String) -> Self {
        let headers = HeaderMap::new();
        Self { method, path, headers, body: RequestBody::empty(), head_max: Some(HEAD_MAX) }
    }

    fn json(mut self, value: &impl serde::Serialize) -> Result<Self, GuestError> {
        let json =
            serde_json::to_vec(value).map_err(|error| GuestError::Invalid(error.to_string()))?;
        self.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        self.body = RequestBody::full(json.into());
        Ok(self)
    }

    fn streaming<S>(mut self, body: S) -> Self
    where
        S: Stream<Item = io::Result<Bytes>> + Send + 'static,
    {
        self.body = RequestBody::stream(body);
        self.within(None)
    }

    fn within(mut self, head_max: Option<Duration>) -> Self {
        self.head_max = head_max;
        self
    }
}

/// The same request again, if its body can be sent twice.
fn copy(request: &Request<RequestBody>) -> Option<Request<RequestBody>> {
    let mut copy = Request::new(request.body().copy()?);
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.headers_mut() = request.headers().clone();
    Some(copy)
}

/// A head that came, with the connection that the rest comes on.
struct Answer {
    response: Response<Incoming>,
    connection: Connection,
}

impl Answer {
    fn headers(&self) -> &HeaderMap {
        self.response.headers()
    }
}

/// What an answer without success means. Its body is `{"code":…,"message":…}`, or anything.
async fn refused((status, body): (StatusCode, ByteStream)) -> GuestError {
    let text = match bounded(HEAD_MAX, body.collect(ERROR_BYTES_MAX)).await {
        Ok(text) => text,
        Err(error) => return error,
    };
    let message = serde_json::from_slice::<serde_json::Value>(&text)
        .ok()
        .and_then(|body| Some(body.get("message")?.as_str()?.to_owned()))
        .unwrap_or_else(|| String::from_utf8_lossy(&text).into_owned());
    GuestError::from_status(status.as_u16(), message)
}

async fn bounded<T>(
    max: Duration,
    work: impl Future<Output = Result<T, GuestError>>,
) -> Result<T, GuestError> {
    timeout(max, work).await.unwrap_or(Err(GuestError::TimedOut))
}

fn with_path(route: &str, path: &str) -> String {
    format!("{PREFIX}{route}?path={}", encoded(path))
}

fn encoded(text: &str) -> String {
    form_urlencoded::byte_serialize(text.as_bytes()).collect()
}

fn text_header(headers: &HeaderMap, name: &str) -> Result<String, GuestError> {
    let value = headers.get(name).and_then(|value| value.to_str().ok());
    value.map(str::to_owned).ok_or_else(|| GuestError::protocol(format!("no header {name}")))
}

fn number_header(headers: &HeaderMap, name: &str) -> Result<u64, GuestError> {
    let text = text_header(headers, name)?;
    text.parse().map_err(|_| GuestError::protocol(format!("header {name}: {text}")))
}

/// Polls a stream to its next item.
async fn next<S: Stream + Unpin>(stream: &mut S) -> Option<S::Item> {
    std::future::poll_fn(|cx: &mut Context<'_>| -> Poll<Option<S::Item>> {
        Pin::new(&mut *stream).poll_next(cx)
    })
    .await
}
