//! The HTTP client of the commands: HTTP/1.1 over TCP or TLS, one connection a request. It follows
//! no redirects and keeps no connections; a command makes a handful of requests and ends.

mod body;
mod connect;
mod server_url;
pub(crate) mod sse;

use std::fs;
use std::io;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use model::SandboxRef;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio_util::task::TaskTracker;

pub(crate) use self::body::{Body, empty, full, streamed};
use self::connect::Connector;
use self::server_url::ServerUrl;
use crate::args::Connection;
use crate::failure::Failure;

/// Until the head of an answer has come. Making a sandbox is the slowest thing that is asked for.
const ANSWER_WAIT: Duration = Duration::from_secs(180);
/// For an upload, whose answer comes when all of it has been written.
const UPLOAD_WAIT: Duration = Duration::from_secs(6 * 3600);
/// Of an answer that is read as a whole.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// Speaks to one server as one account.
#[derive(Clone)]
pub(crate) struct Client {
    url: ServerUrl,
    connector: Connector,
    key: Option<String>,
    tasks: TaskTracker,
}

impl Client {
    pub(crate) fn new(connection: &Connection) -> Result<Self, Failure> {
        let url: ServerUrl = connection.server.parse()?;
        let connector = Connector::new(&url, connection.ca_cert.as_deref())?;
        Ok(Self { url, connector, key: find_key(connection)?, tasks: TaskTracker::new() })
    }

    /// Another server than ours, with a token of its own.
    pub(crate) fn to(url: &str, token: Option<String>) -> Result<Self, Failure> {
        let url: ServerUrl = url.parse()?;
        let connector = Connector::new(&url, None)?;
        Ok(Self { url, connector, key: token, tasks: TaskTracker::new() })
    }

    /// Wherever a link leads, without our key.
    pub(crate) fn elsewhere(&self, url: &str) -> Result<Self, Failure> {
        let url: ServerUrl = url.parse()?;
        let ours = url.tls == self.url.tls && url.authority() == self.url.authority();
        let connector = if ours { self.connector.clone() } else { Connector::new(&url, None)? };
        Ok(Self { url, connector, key: None, tasks: TaskTracker::new() })
    }

    /// Sends JSON (or nothing) and reads JSON.
    pub(crate) async fn json<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<T, Failure> {
        let request = self.request(method, path);
        let request = match body {
            Some(body) => request
                .header(header::CONTENT_TYPE, "application/json")
                .body(full(body.to_string().into_bytes())),
            None => request.body(empty()),
        };
        let bytes = self.whole(request.map_err(|error| bad_request(&error))?).await?;
        serde_json::from_slice(&bytes).map_err(|error| {
            Failure::new(format!("the server's answer is not understood: {error}"))
        })
    }

    /// Sends a request and reads the whole answer.
    pub(crate) async fn whole(&self, request: Request<Body>) -> Result<Bytes, Failure> {
        read_whole(self.send(request).await?).await
    }

    /// Sends a request; an answer that is not a success is a failure.
    pub(crate) async fn send(&self, request: Request<Body>) -> Result<Response<Incoming>, Failure> {
        self.send_within(request, ANSWER_WAIT).await
    }

    /// As [`Client::send`], for a request whose body takes long to go.
    pub(crate) async fn upload(
        &self,
        request: Request<Body>,
    ) -> Result<Response<Incoming>, Failure> {
        self.send_within(request, UPLOAD_WAIT).await
    }

    /// `path` begins with `/v1/`.
    pub(crate) fn request(&self, method: Method, path: &str) -> http::request::Builder {
        let request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.url.prefix))
            .header(header::HOST, self.url.authority())
            .header(header::USER_AGENT, concat!("bastide/", env!("CARGO_PKG_VERSION")));
        match &self.key {
            Some(key) => request.header(header::AUTHORIZATION, format!("Bearer {key}")),
            None => request,
        }
    }

    /// A byte stream to `port` inside a sandbox.
    pub(crate) async fn tunnel(
        &self,
        id: &SandboxRef,
        port: u16,
    ) -> Result<TokioIo<Upgraded>, Failure> {
        let request = self
            .request(Method::GET, &format!("/v1/sandboxes/{id}/tunnel?port={port}"))
            .header(header::CONNECTION, "upgrade")
            .header(header::UPGRADE, guest_proto::TUNNEL_UPGRADE)
            .body(empty())
            .map_err(|error| bad_request(&error))?;
        let response = self.send(request).await?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Err(Failure::new(format!(
                "the server opened no tunnel: {}",
                response.status()
            )));
        }
        let upgraded = hyper::upgrade::on(response)
            .await
            .map_err(|error| Failure::new(format!("the tunnel did not open: {error}")))?;
        Ok(TokioIo::new(upgraded))
    }

    async fn send_within(
        &self,
        request: Request<Body>,
        wait: Duration,
    ) -> Result<Response<Incoming>, Failure> {
        let response = self.exchange(request, wait).await?;
        if response.status().is_success() || response.status() == StatusCode::SWITCHING_PROTOCOLS {
            return Ok(response);
        }
        Err(refusal(response, self.key.is_some()).await)
    }

    /// Sends a request; whatever is answered is the answer.
    pub(crate) async fn exchange(
        &self,
        request: Request<Body>,
        wait: Duration,
    ) -> Result<Response<Incoming>, Failure> {
        let stream = self.connector.connect(&self.url).await?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| self.lost(&error))?;
        // Ends with the response's body, or with the tunnel.
        self.tasks.spawn(async move {
            // A connection that breaks is seen by whoever reads the body.
            let _ = connection.with_upgrades().await;
        });
        let response = tokio::time::timeout(wait, sender.send_request(request))
            .await
            .map_err(|_| Failure::new(format!("the server did not answer in {wait:?}")))?
            .map_err(|error| self.lost(&error))?;
        Ok(response)
    }

    fn lost(&self, error: &hyper::Error) -> Failure {
        Failure::new(format!("lost the connection to {}: {error}", self.url.authority()))
    }
}

pub(crate) async fn read_whole(response: Response<Incoming>) -> Result<Bytes, Failure> {
    let body = http_body_util::Limited::new(response.into_body(), ANSWER_BYTES_MAX);
    match body.collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) => Err(Failure::new(format!("the answer broke off: {error}"))),
    }
}

/// A problem body's sentence, with a hint where we know more than the server says.
async fn refusal(response: Response<Incoming>, with_key: bool) -> Failure {
    let status = response.status();
    let retry_after = response
        .headers()
        .get(header::RETRY_AFTER)
        .and_then(|value| value.to_str().ok())
        .map(str::to_owned);
    let body = read_whole(response).await.unwrap_or_default();
    let detail = serde_json::from_slice::<api::Problem>(&body)
        .map(|problem| problem.detail)
        .unwrap_or_else(|_| format!("the server answered {status}"));
    let failure = Failure::new(detail);
    match (status, retry_after) {
        (StatusCode::UNAUTHORIZED, _) if !with_key => failure.hint(
            "give a key with --key-file or BASTIDE_API_KEY; the operator's is in \
             operator.key in the server's data directory",
        ),
        (StatusCode::TOO_MANY_REQUESTS, Some(seconds)) => {
            failure.hint(format!("try again in {seconds} s, or remove a sandbox"))
        }
        _ => failure,
    }
}

/// The key that was given, else the operator's of the server on this machine, else none.
fn find_key(connection: &Connection) -> Result<Option<String>, Failure> {
    if let Some(key) = &connection.key {
        return Ok(Some(key.trim().to_owned()));
    }
    let (path, must_exist) = match &connection.key_file {
        Some(path) => (path.clone(), true),
        None => (connection.data.dir()?.join(server::OPERATOR_KEY_FILE), false),
    };
    match fs::read_to_string(&path) {
        Ok(text) => Ok(Some(text.trim().to_owned())),
        Err(error) if must_exist => {
            Err(Failure::new(format!("cannot read the key in {}: {error}", path.display())))
        }
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Err(Failure::new(format!("cannot read {}: {error}", path.display()))
                .hint("give a key of your own with --key-file or BASTIDE_API_KEY"))
        }
        Err(_) => Ok(None),
    }
}

fn bad_request(error: &http::Error) -> Failure {
    Failure::new(format!("cannot make that request: {error}"))
}

#[cfg(test)]
mod tests;
