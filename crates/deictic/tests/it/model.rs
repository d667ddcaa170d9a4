//! A scripted model: what it answers is a function of what it is asked. It checks the form of every request and
//! keeps what was wrong with it.

mod read;
mod write;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse as _, Response};
use futures_util::stream;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub(crate) const KEY: &str = "test-key";
pub(crate) const MODEL: &str = "test-model";

/// Whose format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    Anthropic,
    OpenAi,
    OpenAiChat,
    Google,
    DeepSeek,
}

pub(crate) const DIALECTS: [Dialect; 5] =
    [Dialect::Anthropic, Dialect::OpenAi, Dialect::OpenAiChat, Dialect::Google, Dialect::DeepSeek];

impl Dialect {
    pub(crate) fn vendor(self) -> &'static str {
        match self {
            Self::Anthropic => "anthropic",
            Self::OpenAi => "openai",
            Self::OpenAiChat => "openai-chat",
            Self::Google => "google",
            Self::DeepSeek => "deepseek",
        }
    }
}

/// What it is asked.
#[derive(Debug, Clone, Default)]
pub(crate) struct Asked {
    /// From 1.
    pub(crate) number: u64,
    pub(crate) system: String,
    /// What the user said, oldest first.
    pub(crate) users: Vec<String>,
    /// Of its calls, oldest first.
    pub(crate) results: Vec<String>,
    pub(crate) tools: Vec<String>,
    pub(crate) body: Value,
}

impl Asked {
    pub(crate) fn last_user(&self) -> &str {
        self.users.last().map_or("", String::as_str)
    }

    pub(crate) fn last_result(&self) -> &str {
        self.results.last().map_or("", String::as_str)
    }
}

/// What it does then.
#[derive(Debug, Clone)]
pub(crate) enum Play {
    Say(Words),
    /// No answer but an error.
    Refuse {
        status: u16,
        retry_after: Option<&'static str>,
        message: &'static str,
    },
    /// A stream as it is, and how it ends.
    Raw {
        pieces: Vec<Bytes>,
        end: End,
    },
    /// Nothing, not even a head.
    Hang,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Words {
    pub(crate) thinking: Option<String>,
    pub(crate) pieces: Vec<String>,
    pub(crate) calls: Vec<(String, Value)>,
    /// Before each piece.
    pub(crate) pause: Duration,
    /// It does not say that it is done.
    pub(crate) cut: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Fine,
    /// The connection breaks.
    Broken,
    /// It never ends.
    Never,
}

pub(crate) fn say(text: &str) -> Play {
    Play::Say(Words { pieces: halves(text), ..Words::default() })
}

pub(crate) fn call(name: &str, arguments: Value) -> Play {
    calls(vec![(name, arguments)])
}

pub(crate) fn calls(all: Vec<(&str, Value)>) -> Play {
    let calls = all.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    Play::Say(Words { calls, ..Words::default() })
}

/// In two, so that deltas are seen.
pub(crate) fn halves(text: &str) -> Vec<String> {
    let middle = (0..=text.len() / 2).rev().find(|at| text.is_char_boundary(*at)).unwrap();
    let (one, two) = text.split_at(middle);
    vec![one.to_owned(), two.to_owned()]
}

type Script = Box<dyn Fn(&Asked) -> Play + Send + Sync>;

#[derive(Clone)]
pub(crate) struct Model(Arc<Shared>);

struct Shared {
    dialect: Dialect,
    url: String,
    script: Script,
    faults: Mutex<Vec<String>>,
    asked: Mutex<Vec<Asked>>,
    /// Ids of the calls that it made.
    calls: Mutex<BTreeSet<String>>,
    last_id: AtomicU64,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Model {
    pub(crate) async fn serve(
        dialect: Dialect,
        script: impl Fn(&Asked) -> Play + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let model = Self(Arc::new(Shared {
            dialect,
            url: format!("http://{}", listener.local_addr().unwrap()),
            script: Box::new(script),
            faults: Mutex::default(),
            asked: Mutex::default(),
            calls: Mutex::default(),
            last_id: AtomicU64::new(0),
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
        }));
        let limit = axum::extract::DefaultBodyLimit::disable();
        let router = Router::new().fallback(answer).layer(limit).with_state(model.clone());
        let stop = model.0.stop.clone();
        model.0.tasks.spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                served = axum::serve(listener, router) => served.unwrap(),
            }
        });
        model
    }

    pub(crate) fn dialect(&self) -> Dialect {
        self.0.dialect
    }

    pub(crate) fn url(&self) -> &str {
        &self.0.url
    }

    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.0.asked.lock().unwrap().clone()
    }

    /// It had nothing to complain about.
    #[track_caller]
    pub(crate) fn close(self) {
        self.0.stop.cancel();
        assert_eq!(*self.0.faults.lock().unwrap(), Vec::<String>::new());
    }

    fn fault(&self, what: impl Into<String>) {
        self.0.faults.lock().unwrap().push(what.into());
    }

    fn id(&self, prefix: &str) -> String {
        format!("{prefix}{}", self.0.last_id.fetch_add(1, Ordering::SeqCst) + 1)
    }

    fn call_id(&self, prefix: &str) -> String {
        let id = self.id(prefix);
        self.0.calls.lock().unwrap().insert(id.clone());
        id
    }

    /// A result is one of a call that was made.
    fn check_result(&self, call: &str) {
        if !self.0.calls.lock().unwrap().contains(call) {
            self.fault(format!("a result of a call that was not made: {call}"));
        }
    }

    fn check(&self, holds: bool, what: &str) {
        if !holds {
            self.fault(what);
        }
    }

    fn check_header(&self, headers: &HeaderMap, name: &str, wanted: &str) {
        let sent = headers.get(name).and_then(|value| value.to_str().ok());
        if sent != Some(wanted) {
            self.fault(format!("the header {name} is {sent:?} and not {wanted}"));
        }
    }
}

async fn answer(
    State(model): State<Model>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    model.check(method == Method::POST, "not a POST");
    model.check_header(&headers, "content-type", "application/json");
    let Ok(body) = serde_json::from_slice::<Value>(&body) else {
        model.fault("a body that is no JSON");
        return StatusCode::BAD_REQUEST.into_response();
    };
    let mut asked = read::read(&model, &uri, &headers, &body);
    asked.body = body;
    {
        let mut all = model.0.asked.lock().unwrap();
        asked.number = all.len() as u64 + 1;
        all.push(asked.clone());
    }
    match (model.0.script)(&asked) {
        Play::Say(words) => {
            let pause = words.pause;
            let cut = words.cut;
            let mut pieces = write::write(&model, words);
            if cut {
                // Its end, and what says so.
                pieces.truncate(pieces.len() / 2);
            }
            let end = if cut { End::Broken } else { End::Fine };
            stream_of(pieces.into_iter().map(Bytes::from).collect(), pause, end)
        }
        Play::Raw { pieces, end } => stream_of(pieces, Duration::ZERO, end),
        Play::Hang => std::future::pending().await,
        Play::Refuse { status, retry_after, message } => {
            let body = read::error_body(model.dialect(), status, message).to_string();
            let mut response = (StatusCode::from_u16(status).unwrap(), body).into_response();
            if let Some(seconds) = retry_after {
                response.headers_mut().insert(header::RETRY_AFTER, seconds.parse().unwrap());
            }
            response
        }
    }
}

fn stream_of(pieces: Vec<Bytes>, pause: Duration, end: End) -> Response {
    let pieces =
        stream::unfold((pieces.into_iter(), false), move |(mut pieces, over)| async move {
            if over {
                return None;
            }
            if let Some(piece) = pieces.next() {
                if !pause.is_zero() {
                    tokio::time::sleep(pause).await;
                }
                return Some((Ok(piece), (pieces, false)));
            }
            match end {
                End::Fine => None,
                End::Broken => {
                    // What was said before is on its way.
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    Some((Err(std::io::Error::other("broken")), (pieces, true)))
                }
                End::Never => std::future::pending().await,
            }
        });
    let headers = [(header::CONTENT_TYPE, "text/event-stream")];
    (headers, Body::from_stream(pieces)).into_response()
}
