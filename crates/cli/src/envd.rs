//! Speaks to a sandbox's guest directly, through a tunnel: the process and file services of the
//! envd protocol (Connect with JSON). Used for what the HTTP API does not have: terminals, live
//! stdin, listings.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::{Bytes, BytesMut};
use guest_proto::GUEST_PORT;
use guest_proto::envelope::{self, Decoder, Envelope};
use http::{Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use model::SandboxRef;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::task::TaskTracker;

use crate::client::Client;
use crate::failure::Failure;

/// Until a guest has answered a call or begun a stream.
const ANSWER_WAIT: Duration = Duration::from_secs(30);
/// A guest sends a keepalive every 90 s; silence this long means that it is gone.
const SILENCE_MAX: Duration = Duration::from_secs(200);
const MESSAGE_BYTES_MAX: usize = 16 << 20;
/// How a guest tells which signal ended a process, as Go names them.
const SIGNALS: &[(&str, u8)] = &[
    ("hangup", 1),
    ("interrupt", 2),
    ("quit", 3),
    ("illegal instruction", 4),
    ("aborted", 6),
    ("bus error", 7),
    ("floating point exception", 8),
    ("killed", 9),
    ("user defined signal 1", 10),
    ("segmentation fault", 11),
    ("user defined signal 2", 12),
    ("broken pipe", 13),
    ("alarm clock", 14),
    ("terminated", 15),
];

/// One connection to a guest. A stream takes it over, so calls beside a stream need a second one.
pub(crate) struct Envd {
    sender: SendRequest<Full<Bytes>>,
    user: Option<String>,
}

impl Envd {
    pub(crate) async fn open(
        client: &Client,
        id: &SandboxRef,
        user: Option<&str>,
    ) -> Result<Self, Failure> {
        Self::over(client.tunnel(id, GUEST_PORT).await?, user).await
    }

    /// Over any connection to the guest.
    pub(crate) async fn over<T>(connection: T, user: Option<&str>) -> Result<Self, Failure>
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (sender, connection) =
            http1::handshake(TokioIo::new(connection)).await.map_err(|error| lost(&error))?;
        TaskTracker::new().spawn(async move {
            // Whoever waits for an answer learns of a broken connection.
            let _ = connection.await;
        });
        Ok(Self { sender, user: user.map(str::to_owned) })
    }

    /// One call, one answer.
    pub(crate) async fn unary(&mut self, method: &str, body: &Value) -> Result<Value, Failure> {
        let body = Bytes::from(body.to_string());
        let response = self.send(method, "application/json", body).await?;
        let status = response.status();
        let bytes = Limited::new(response.into_body(), MESSAGE_BYTES_MAX)
            .collect()
            .await
            .map_err(|error| Failure::new(format!("the guest's answer broke off: {error}")))?
            .to_bytes();
        let answer: Value = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        if status != StatusCode::OK {
            return Err(refused(&answer));
        }
        Ok(answer)
    }

    /// One call, many answers.
    pub(crate) async fn stream(mut self, method: &str, body: &Value) -> Result<Messages, Failure> {
        let mut framed = BytesMut::new();
        envelope::encode(&Envelope::Message(Bytes::from(body.to_string())), &mut framed);
        let response = self.send(method, "application/connect+json", framed.freeze()).await?;
        if response.status() != StatusCode::OK {
            return Err(Failure::new(format!("the guest answered {}", response.status())));
        }
        Ok(Messages {
            body: response.into_body(),
            decoder: Decoder::new(MESSAGE_BYTES_MAX),
            _sender: self.sender,
        })
    }

    async fn send(
        &mut self,
        method: &str,
        content_type: &str,
        body: Bytes,
    ) -> Result<Response<Incoming>, Failure> {
        let mut request = Request::post(format!("/{method}"))
            .header(header::HOST, "guest")
            .header(header::CONTENT_TYPE, content_type)
            .header("Connect-Protocol-Version", "1");
        if let Some(user) = &self.user {
            let credentials = STANDARD.encode(format!("{user}:"));
            request = request.header(header::AUTHORIZATION, format!("Basic {credentials}"));
        }
        let request = request
            .body(Full::new(body))
            .map_err(|error| Failure::new(format!("cannot make that request: {error}")))?;
        self.sender.ready().await.map_err(|error| lost(&error))?;
        tokio::time::timeout(ANSWER_WAIT, self.sender.send_request(request))
            .await
            .map_err(|_| Failure::new(format!("the guest did not answer in {ANSWER_WAIT:?}")))?
            .map_err(|error| lost(&error))
    }
}

/// The messages of one stream.
pub(crate) struct Messages {
    body: Incoming,
    decoder: Decoder,
    /// Keeps the connection open.
    _sender: SendRequest<Full<Bytes>>,
}

impl Messages {
    /// `None` at the end of a stream that ended well.
    pub(crate) async fn next(&mut self) -> Result<Option<Value>, Failure> {
        loop {
            let whole = self
                .decoder
                .next_envelope()
                .map_err(|error| Failure::new(format!("the guest is not understood: {error}")))?;
            match whole {
                Some(Envelope::Message(payload)) => {
                    return serde_json::from_slice(&payload).map(Some).map_err(|error| {
                        Failure::new(format!("the guest is not understood: {error}"))
                    });
                }
                Some(Envelope::End(payload)) => {
                    let trailer: Value = serde_json::from_slice(&payload).unwrap_or(Value::Null);
                    return match &trailer["error"] {
                        Value::Null => Ok(None),
                        error => Err(refused(error)),
                    };
                }
                None => {}
            }
            let frame = tokio::time::timeout(SILENCE_MAX, self.body.frame())
                .await
                .map_err(|_| Failure::new("the sandbox fell silent"))?;
            match frame {
                None => return Err(Failure::new("the sandbox ended")),
                Some(Err(error)) => return Err(lost(&error)),
                Some(Ok(frame)) => {
                    if let Ok(bytes) = frame.into_data() {
                        self.decoder.feed(&bytes);
                    }
                }
            }
        }
    }
}

/// A process of the guest's process service.
pub(crate) struct Process {
    messages: Messages,
    pid: u64,
}

/// What a process said.
pub(crate) enum Said {
    Stdout(Vec<u8>),
    Stderr(Vec<u8>),
    Ended(u8),
}

impl Process {
    /// Starts what `request` (a `StartRequest`) says.
    pub(crate) async fn start(envd: Envd, request: &Value) -> Result<Self, Failure> {
        let mut messages = envd.stream("process.Process/Start", request).await?;
        loop {
            let message = messages.next().await?;
            let message = message.ok_or_else(|| Failure::new("the process did not start"))?;
            if let Some(pid) = message["event"]["start"]["pid"].as_u64() {
                return Ok(Self { messages, pid });
            }
        }
    }

    /// How calls name it.
    pub(crate) fn selector(&self) -> Value {
        json!({ "pid": self.pid })
    }

    pub(crate) async fn next(&mut self) -> Result<Said, Failure> {
        loop {
            let Some(message) = self.messages.next().await? else {
                return Err(Failure::new("the process ended without an exit code"));
            };
            let event = &message["event"];
            if let Some(end) = event.get("end") {
                return Ok(Said::Ended(exit_code(end)));
            }
            let data = &event["data"];
            let decode = |name: &str| {
                let text = data[name].as_str()?;
                STANDARD.decode(text).ok()
            };
            if let Some(bytes) = decode("pty").or_else(|| decode("stdout")) {
                return Ok(Said::Stdout(bytes));
            }
            if let Some(bytes) = decode("stderr") {
                return Ok(Said::Stderr(bytes));
            }
        }
    }
}

/// A zero is left out on the wire; a process ended by a signal has -1 and says so in its status.
fn exit_code(end: &Value) -> u8 {
    let code = end["exitCode"].as_i64().unwrap_or(0);
    if end["exited"].as_bool().unwrap_or(code >= 0) {
        return u8::try_from(code & 0xff).unwrap_or(1);
    }
    let status = end["status"].as_str().unwrap_or_default().trim_start_matches("signal: ");
    let named = SIGNALS.iter().find(|(name, _)| status.starts_with(name));
    let numbered = || status.trim_start_matches("signal ").parse().ok();
    let signal = named.map(|(_, number)| *number).or_else(numbered);
    signal.map_or(1, |number: u8| 128_u8.saturating_add(number))
}

fn refused(error: &Value) -> Failure {
    let text = error["message"].as_str().or(error["code"].as_str());
    Failure::new(text.unwrap_or("the guest refused").to_owned())
}

fn lost(error: &hyper::Error) -> Failure {
    Failure::new(format!("lost the connection to the sandbox: {error}"))
}

#[cfg(test)]
mod tests;
