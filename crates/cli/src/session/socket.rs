//! The WebSocket of a session: the handshake, over the connections that the client has, and its frames.

use std::time::Duration;

use api::session::SessionCreated;
use futures_util::{SinkExt as _, StreamExt as _};
use http::{Method, StatusCode, header};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};

use crate::client::{Client, empty};
use crate::failure::Failure;

/// Until the head of the answer has come.
const UPGRADE_WAIT: Duration = Duration::from_secs(30);
/// The server pings more often than that.
const SILENCE_MAX: Duration = Duration::from_secs(90);
/// Of one frame; an event can hold what a tool printed.
const FRAME_BYTES_MAX: usize = 64 << 20;

pub(super) struct Socket(WebSocketStream<TokioIo<Upgraded>>);

/// What came.
pub(super) enum Came {
    Text(String),
    /// An image of the display, of so many bytes.
    Image(usize),
    Closed {
        code: u16,
        reason: String,
    },
    /// Without a word.
    Lost,
}

impl Socket {
    /// After the event `from`.
    pub(super) async fn open(client: &Client, id: &str, from: u64) -> Result<Self, Failure> {
        let path = format!("/v1/sessions/{id}/token");
        let way: SessionCreated = client.json(Method::POST, &path, None).await?;
        let url = way.connect_url.strip_prefix("ws").map(|rest| format!("http{rest}"));
        let url = url.ok_or_else(|| Failure::new("the server's connect_url is no WebSocket"))?;
        let (base, path) = split(&url);
        let key = generate_key();
        let runtime = client.elsewhere(base)?;
        let request = runtime
            .request(Method::GET, &format!("{path}?from={from}"))
            .header(header::AUTHORIZATION, format!("Bearer {}", way.jwt))
            .header(header::CONNECTION, "Upgrade")
            .header(header::UPGRADE, "websocket")
            .header(header::SEC_WEBSOCKET_VERSION, "13")
            .header(header::SEC_WEBSOCKET_KEY, &key)
            .body(empty())
            .map_err(|error| Failure::new(error.to_string()))?;
        let response = runtime.exchange(request, UPGRADE_WAIT).await?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Err(Failure::new(format!("the server did not connect: {}", response.status())));
        }
        let accept = derive_accept_key(key.as_bytes());
        let proof = response.headers().get(header::SEC_WEBSOCKET_ACCEPT);
        if proof.is_none_or(|proof| proof.as_bytes() != accept.as_bytes()) {
            return Err(Failure::new("what answered is no WebSocket"));
        }
        let upgraded = hyper::upgrade::on(response).await;
        let upgraded = upgraded.map_err(|error| Failure::new(error.to_string()))?;
        let config = WebSocketConfig::default()
            .max_message_size(Some(FRAME_BYTES_MAX))
            .max_frame_size(Some(FRAME_BYTES_MAX));
        let io = TokioIo::new(upgraded);
        Ok(Self(WebSocketStream::from_raw_socket(io, Role::Client, Some(config)).await))
    }

    /// Pings are answered on the way.
    pub(super) async fn next(&mut self) -> Came {
        loop {
            let Ok(Some(Ok(message))) = timeout(SILENCE_MAX, self.0.next()).await else {
                return Came::Lost;
            };
            match message {
                Message::Text(text) => return Came::Text(text.as_str().to_owned()),
                Message::Binary(bytes) => return Came::Image(bytes.len()),
                Message::Close(Some(frame)) => {
                    let reason = frame.reason.as_str().to_owned();
                    return Came::Closed { code: frame.code.into(), reason };
                }
                Message::Close(None) => return Came::Lost,
                Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => {}
            }
        }
    }

    /// Whether it went out.
    pub(super) async fn say(&mut self, frame: &Value) -> bool {
        self.0.send(Message::text(frame.to_string())).await.is_ok()
    }

    pub(super) async fn close(mut self) {
        // Whether the server hears it or not, we go.
        let _ = timeout(Duration::from_secs(1), self.0.close(None)).await;
    }
}

/// `http://host:port` and the rest.
fn split(url: &str) -> (&str, &str) {
    let after = url.find("://").map_or(0, |at| at + 3);
    let path = url[after..].find('/').map_or(url.len(), |at| after + at);
    url.split_at(path)
}
