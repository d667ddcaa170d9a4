//! One client of a session on a WebSocket: what is in the log, in order and from where it wants it, the control
//! frames beside it, and what the client says.
//!
//! ```text
//!  upgraded ─► attach ──────────► [ first frame, or a moment ] ─► the log ─► what comes ─► close
//!                └─ 1011 upstream unavailable       └─ from beyond the log: 1008
//! ```
//!
//! Nothing is kept for a client but its position: one that does not read holds up its own connection alone, and is
//! let go with 1008 after a while. It numbers nothing and decides nothing about the session.

use std::sync::Arc;
use std::time::Duration;

use api::frame::{ClientFrame, ControlFrame, FrameError};
use futures_util::future::{Either, select};
use futures_util::stream::SplitStream;
use futures_util::{SinkExt, StreamExt};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use model::{Error, SessionId};
use tokio::io::AsyncReadExt;
use tokio::sync::watch;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::error::{CapacityError, Error as Broken};
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Message, Utf8Bytes};

use super::{Attached, Sessions, Signal, wire};
use crate::app::App;
use crate::limits::{
    FIRST_FRAME_WAIT, LINGER_TIMEOUT, SESSION_BATCH, SESSION_FRAME_BYTES_MAX, SESSION_SAY_TIMEOUT,
};

/// Of a connection. Most of them are idle.
const READ_BUFFER_BYTES: usize = 4 << 10;
const WRITE_BUFFER_BYTES: usize = 64 << 10;

/// For the close frame, and for what a client that did not read may still read before it.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// What a client asked for when it connected.
pub(crate) struct Asked {
    pub(crate) session: SessionId,
    pub(crate) wire_version: u8,
    /// The last event that it has.
    pub(crate) from: Option<u64>,
}

/// Why a conversation is over.
enum Over {
    /// We say so.
    Close(u16, &'static str),
    /// The client closed, or is gone.
    Gone,
}

type Socket = WebSocketStream<TokioIo<Upgraded>>;

struct Client {
    socket: Socket,
    /// How long it may read nothing.
    patience: Duration,
    ping: Interval,
    /// Since the last ping.
    heard: bool,
}

struct Conversation<'a> {
    client: &'a mut Client,
    attached: Attached,
    head: watch::Receiver<u64>,
    /// The last event that the client has.
    sent: u64,
    wire_version: u8,
    /// Whether the client has said something already.
    begun: bool,
}

/// From the upgrade to the end of the connection.
pub(crate) async fn serve(app: App, upgrade: OnUpgrade, asked: Asked) {
    let Ok(upgraded) = upgrade.await else { return };
    let mut client = Client::new(&app, upgraded).await;
    let attached = tokio::select! {
        attached = Sessions::attach(&app, asked.session) => attached,
        // Nothing runs here any more; it does where it will be asked for next.
        () = app.draining.cancelled() => return client.close(1001, "server shutting down").await,
    };
    let over = match attached {
        Ok(attached) => {
            let mut conversation = Conversation::new(&mut client, attached, &asked);
            conversation.hold(&app, asked.from).await.unwrap_or_else(|over| over)
        }
        Err(error) => {
            let id = asked.session;
            tracing::info!(session.id = %id, error = format!("{error:#}"), "nothing to attach to");
            Over::Close(1011, "upstream unavailable")
        }
    };
    match over {
        Over::Close(code, reason) => client.close(code, reason).await,
        Over::Gone => {}
    }
}

impl<'a> Conversation<'a> {
    fn new(client: &'a mut Client, attached: Attached, asked: &Asked) -> Self {
        let head = attached.head.clone();
        let wire_version = asked.wire_version;
        Self { client, attached, head, sent: 0, wire_version, begun: false }
    }

    /// Until it is over: `Ok` never, so that every way out is one.
    async fn hold(&mut self, app: &App, from: Option<u64>) -> Result<Over, Over> {
        match from {
            Some(from) => self.begin_after(from).await?,
            None => self.wait_for_first_frame(app).await?,
        }
        let mut growing = true;
        loop {
            let behind = self.sent < *self.head.borrow_and_update();
            tokio::select! {
                () = app.draining.cancelled() => return self.leave(1001, "server shutting down").await,
                signal = self.attached.signals.recv() => match signal {
                    Some(Signal::Control(text)) => self.client.send(Message::text(text)).await?,
                    Some(Signal::Binary(bytes)) => self.client.send(Message::Binary(bytes)).await?,
                    Some(Signal::Close { code, reason }) => return self.leave(code, reason).await,
                    None => return self.leave(1011, "upstream unavailable").await,
                },
                message = self.client.socket.next() => {
                    if let Some(text) = self.client.read(message).await? {
                        self.hear(&text).await?;
                    }
                }
                _ = self.client.ping.tick() => self.client.ping().await?,
                () = std::future::ready(()), if behind => self.deliver().await?,
                changed = self.head.changed(), if growing && !behind => growing = changed.is_ok(),
            }
        }
    }

    /// A client that knows where it is says so at once; another one gets everything.
    async fn wait_for_first_frame(&mut self, app: &App) -> Result<(), Over> {
        let first = async {
            loop {
                let message = self.client.socket.next().await;
                if let Some(text) = self.client.read(message).await? {
                    return Ok::<_, Over>(text);
                }
            }
        };
        tokio::select! {
            () = app.draining.cancelled() => Err(Over::Close(1001, "server shutting down")),
            first = timeout(FIRST_FRAME_WAIT, first) => match first {
                Ok(text) => self.hear(&text?).await,
                Err(_) => Ok(()),
            },
        }
    }

    async fn begin_after(&mut self, from: u64) -> Result<(), Over> {
        self.begun = true;
        let head = *self.head.borrow();
        if from > head {
            let detail = format!("the log ends with {head}; it has no {from}");
            self.client.tell(FrameError::FromBeyondLog, detail, None).await?;
            return Err(Over::Close(1008, "from beyond the log"));
        }
        // What was sent before a late first frame is not sent again.
        self.sent = self.sent.max(from);
        Ok(())
    }

    /// The next part of the log.
    async fn deliver(&mut self) -> Result<(), Over> {
        let events = self.attached.read(self.sent, SESSION_BATCH).await.map_err(|error| {
            tracing::error!(error = format!("{error:#}"), "the log of a session cannot be read");
            Over::Close(1011, "upstream unavailable")
        })?;
        let Some((last, _)) = events.last() else { return Ok(()) };
        let last = *last;
        let frames = events.iter().filter_map(|(_, event)| self.frame(event));
        let frames: Vec<_> = frames.collect();
        self.client.send_all(frames).await?;
        self.sent = last;
        Ok(())
    }

    fn frame(&self, event: &Arc<str>) -> Option<Message> {
        match self.wire_version {
            1 => wire::plain(event).map(Message::text),
            _ => Some(Message::Text(Utf8Bytes::from(&**event))),
        }
    }

    /// What is in the log by now comes before the close.
    async fn leave(&mut self, code: u16, reason: &'static str) -> Result<Over, Over> {
        let head = *self.head.borrow();
        let rest = async {
            let mut before = u64::MAX;
            while self.sent < head && self.sent != before {
                before = self.sent;
                self.deliver().await?;
            }
            Ok::<_, Over>(())
        };
        match timeout(CLOSE_TIMEOUT, rest).await {
            Ok(Err(Over::Gone)) => Ok(Over::Gone),
            Ok(Ok(()) | Err(Over::Close(..))) | Err(_) => Ok(Over::Close(code, reason)),
        }
    }

    async fn hear(&mut self, text: &str) -> Result<(), Over> {
        let first = !std::mem::replace(&mut self.begun, true);
        let frame = match ClientFrame::parse(text) {
            Ok(ClientFrame::From { sequence }) if first => {
                return self.begin_after(sequence).await;
            }
            Ok(ClientFrame::From { .. }) => {
                let detail = "from is the first frame, or ?from= of the URL";
                return self.client.tell(FrameError::FromNotFirst, detail.into(), None).await;
            }
            Ok(frame) => frame,
            Err(error) => {
                return self.client.tell(FrameError::InvalidFrame, error.to_string(), None).await;
            }
        };
        let id = match &frame {
            ClientFrame::Exec { id, .. } => id.clone(),
            _ => None,
        };
        let refused = match timeout(SESSION_SAY_TIMEOUT, self.attached.say(frame)).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => error,
            Err(_) => Error::unavailable("the agent did not take it in time"),
        };
        let (code, detail) = shown(refused);
        self.client.tell(code, detail, id).await
    }
}

impl Client {
    async fn new(app: &App, upgraded: Upgraded) -> Self {
        let config = WebSocketConfig::default()
            .max_message_size(Some(SESSION_FRAME_BYTES_MAX))
            .max_frame_size(Some(SESSION_FRAME_BYTES_MAX))
            .read_buffer_size(READ_BUFFER_BYTES)
            .write_buffer_size(WRITE_BUFFER_BYTES);
        let io = TokioIo::new(upgraded);
        let every = app.rt.ping_every;
        let mut ping = interval_at(Instant::now() + every, every);
        ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            socket: WebSocketStream::from_raw_socket(io, Role::Server, Some(config)).await,
            patience: Duration::from_secs(app.limits.body_timeout_seconds),
            ping,
            heard: true,
        }
    }

    /// What it said, if that was a text.
    async fn read(
        &mut self,
        message: Option<Result<Message, Broken>>,
    ) -> Result<Option<Utf8Bytes>, Over> {
        self.heard = true;
        match message {
            Some(Ok(Message::Text(text))) => Ok(Some(text)),
            Some(Ok(Message::Binary(_))) => {
                let detail = "body: binary frames are the server's; send JSON in text frames";
                self.tell(FrameError::InvalidFrame, detail.into(), None).await?;
                Ok(None)
            }
            Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => Ok(None),
            // The answer to it has been sent already.
            Some(Ok(Message::Close(_))) | None => Err(Over::Gone),
            Some(Err(Broken::Capacity(CapacityError::MessageTooLong { .. }))) => {
                Err(Over::Close(1009, "frame too large"))
            }
            Some(Err(Broken::Utf8(_))) => Err(Over::Close(1007, "not UTF-8")),
            Some(Err(Broken::Protocol(_))) => Err(Over::Close(1002, "protocol error")),
            Some(Err(_)) => Err(Over::Gone),
        }
    }

    /// One that has said nothing since the last one is gone.
    async fn ping(&mut self) -> Result<(), Over> {
        if !std::mem::replace(&mut self.heard, false) {
            return Err(Over::Close(1001, "no answer to pings"));
        }
        self.send(Message::Ping(bytes::Bytes::new())).await
    }

    async fn tell(
        &mut self,
        code: FrameError,
        detail: String,
        id: Option<String>,
    ) -> Result<(), Over> {
        self.send(Message::text(ControlFrame::error_of(code, detail, id).text())).await
    }

    async fn send(&mut self, message: Message) -> Result<(), Over> {
        self.send_all(vec![message]).await
    }

    /// Together, in as few writes as they fit into.
    async fn send_all(&mut self, messages: Vec<Message>) -> Result<(), Over> {
        let sending = async {
            for message in messages {
                self.socket.feed(message).await?;
            }
            self.socket.flush().await
        };
        match timeout(self.patience, sending).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(Over::Gone),
            Err(_) => Err(Over::Close(1008, "client too slow")),
        }
    }

    /// Reads what still comes meanwhile: a client that is busy writing reads nothing, and closing with bytes unread
    /// resets the connection, so that it would never see why.
    async fn close(self, code: u16, reason: &'static str) {
        let frame = CloseFrame { code: CloseCode::from(code), reason: reason.into() };
        let (mut sink, mut stream) = self.socket.split();
        let answer = Box::pin(is_answered(&mut stream));
        // Whether it went out or not, the connection is over.
        let closing = Box::pin(timeout(CLOSE_TIMEOUT, sink.send(Message::Close(Some(frame)))));
        let answered = match select(closing, answer).await {
            Either::Left((_, answer)) => timeout(LINGER_TIMEOUT, answer).await.unwrap_or(false),
            Either::Right((answered, closing)) => {
                let _ = closing.await;
                answered
            }
        };
        if answered {
            return;
        }
        let Ok(socket) = sink.reunite(stream) else { return };
        let mut io = socket.into_inner();
        let to_the_end = async {
            let mut unwanted = vec![0; 16 << 10];
            while io.read(&mut unwanted).await.is_ok_and(|read| read > 0) {}
        };
        let _ = timeout(LINGER_TIMEOUT, to_the_end).await;
    }
}

/// Until the client's own close, or until nothing of it can be understood.
async fn is_answered(stream: &mut SplitStream<Socket>) -> bool {
    loop {
        match stream.next().await {
            Some(Ok(_)) => {}
            None | Some(Err(Broken::ConnectionClosed)) => return true,
            Some(Err(_)) => return false,
        }
    }
}

/// What a client is told of a refusal.
pub(super) fn shown(error: Error) -> (FrameError, String) {
    let text = error.to_string();
    match error {
        Error::Invalid { .. } => (FrameError::InvalidFrame, text),
        Error::NotFound { .. } => (FrameError::NotFound, text),
        Error::Conflict { .. }
        | Error::NotImplemented { .. }
        | Error::Exhausted { .. }
        | Error::NoCredit { .. }
        | Error::NoCapacity { .. }
        | Error::DiskFull { .. }
        | Error::ReadOnly { .. }
        | Error::IdempotencyMismatch { .. } => (FrameError::NotNow, text),
        Error::Unavailable { .. } => (FrameError::Unavailable, text),
        Error::Internal(cause) => {
            tracing::error!(error = format!("{cause:#}"), "a frame of a client failed");
            (FrameError::Internal, text)
        }
    }
}
