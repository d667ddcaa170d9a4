//! Code mode: the whole API behind three tools of the Model Context Protocol (002). A model writes a
//! function; it runs in a sandbox of its own without a network, and its requests are relayed, checked
//! and answered here.
//!
//! ```text
//!  client ─ POST /mcp ─► gate ─► tools ─► run ─► a fresh sandbox: the engine and the code
//!                                         │ ▲          │ ▲
//!                          the API, with ◄┘ └──────────┘ │  api.request
//!                         the caller's key     relay ────┘
//! ```
//!
//! The caller's key is nowhere in a sandbox, and nothing that comes out of one is believed: the method,
//! the path and every size are checked on this side. Nothing is kept between calls.

mod endpoints;
mod envelope;
mod front;
mod guard;
mod identity;
mod permits;
mod relay;
mod runtime;
mod source;
mod spec;
mod target;
mod tools;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::get;
use guest_proto::code::{Done, Job, Scope};
use model::Error;
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use tokio::time::Instant;
use url::Url;

use crate::app::{App, PublicAddress};
use crate::code::envelope::{Answer, Words};
use crate::code::identity::Identity;
use crate::code::permits::Permits;
use crate::code::relay::Ended;
use crate::code::source::Source;
use crate::code::target::{Target, Way};
use crate::code::tools::{Kind, Tools};
use crate::config::{Code, Config};
use crate::listen::Inside;

/// The largest message.
const BODY_BYTES_MAX: usize = 1 << 20;
/// In the sandbox; what a model gets is less.
const RESULT_BYTES_MAX: usize = 400_000;
const STREAM_BYTES_MAX: usize = 20_000;
/// What JavaScript may use of a sandbox's memory.
const MEMORY_BYTES_MAX: usize = 64 << 20;
/// The engine ends itself in time; this is for one that does not.
const GRACE: Duration = Duration::from_secs(3);

/// What all calls share.
pub(crate) struct CodeMode {
    settings: Code,
    target: Target,
    source: Source,
    permits: Permits,
    names: front::Names,
    began: Instant,
}

impl CodeMode {
    pub(crate) fn new(
        config: &Config,
        address: &PublicAddress,
        inside: Inside,
    ) -> anyhow::Result<Self> {
        let settings = config.code.clone();
        let target = match &settings.api_base {
            Some(base) => Target::Other { client: source::client()?, base: Url::parse(base)? },
            None => Target::Ours { inside, base: Url::parse(&address.url)? },
        };
        Ok(Self {
            names: front::Names::new(
                address.host(),
                &settings.allowed_hosts,
                &settings.allowed_origins,
            ),
            source: Source::new(settings.spec.as_deref(), target.blocked())?,
            permits: Permits::new(settings.calls_at_once),
            began: Instant::now(),
            target,
            settings,
        })
    }

    /// Whether the API is this server's own, which knows its callers.
    fn calls_us(&self) -> bool {
        matches!(self.target, Target::Ours { .. })
    }

    /// One call of a tool, from its code to what the model reads.
    async fn run(&self, app: &App, kind: Kind, code: String, identity: &Identity) -> Answer {
        let began = Instant::now();
        let words = match kind {
            Kind::Search => Words::Trusted,
            Kind::Read | Kind::Write => Words::Untrusted,
        };
        let own = app.pages.openapi_json.as_bytes();
        let found = self.source.get(own).await;
        let (outcome, called) = match found {
            Ok(found) => {
                let way = Way {
                    target: &self.target,
                    identity,
                    reads_only: kind != Kind::Write,
                    key_header: found.key_header.as_deref(),
                    called: 0.into(),
                };
                let spec = (kind == Kind::Search).then(|| found.text.as_ref());
                let outcome = self.attempt(app, (kind, code, spec), &way).await;
                (outcome, way.called.load(Ordering::Relaxed))
            }
            Err(why) => (Err(why), 0),
        };
        let answer = match outcome {
            Ok(done) => envelope::done(&done, words),
            Err(why) => envelope::failed(&why, words),
        };
        tracing::info!(
            target: "code",
            tool = kind.name(),
            key = identity.shown(),
            owner = %identity.payer.owner,
            called,
            is_error = answer.is_error,
            duration_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
            "ran code"
        );
        answer
    }

    async fn attempt(
        &self,
        app: &App,
        (kind, code, spec): (Kind, String, Option<&str>),
        way: &Way<'_>,
    ) -> Result<Done, String> {
        let _permit = self.permits.take(way.identity.digest())?;
        let limit = Duration::from_millis(self.settings.timeout_ms);
        let (template, argv) = runtime::of(&self.settings);
        let payer = &way.identity.payer;
        let errand = app.engine.errand(payer, template, limit).await.map_err(told)?;
        let mut engine = errand.serve(argv).await.map_err(told)?;
        let job = Job {
            code,
            scope: match kind {
                Kind::Search => Scope::Spec,
                Kind::Read => Scope::ApiRead,
                Kind::Write => Scope::ApiWrite,
            },
            timeout_ms: self.settings.timeout_ms,
            result_max: RESULT_BYTES_MAX,
            stream_max: STREAM_BYTES_MAX,
            memory_max: MEMORY_BYTES_MAX,
        };
        let late = || format!("the code did not end within {} ms", self.settings.timeout_ms);
        let conversation =
            relay::converse(&mut engine.connection, (&job, spec), way, self.settings.requests_max);
        match tokio::time::timeout(limit + GRACE, conversation).await {
            Ok(Ended::Done(done)) => Ok(done),
            Ok(Ended::Nonsense(why)) => Err(why.to_owned()),
            Ok(Ended::Gone) => Err(why_gone(engine).await),
            Err(_) => Err(late()),
        }
    }
}

/// What this part answers over HTTP.
pub(crate) fn routes(app: &App) -> Router<App> {
    let (tools, ending) = (Tools::new(Arc::clone(app)), app.draining.clone());
    let config = StreamableHttpServerConfig::default()
        .with_legacy_session_mode(false)
        .with_json_response(true)
        .with_max_request_body_bytes(BODY_BYTES_MAX)
        .with_cancellation_token(ending.child_token())
        // The gate knows better.
        .disable_allowed_hosts();
    let service = StreamableHttpService::new(
        move || Ok(tools.clone()),
        Arc::new(NeverSessionManager::default()),
        config,
    );
    let mcp = Router::new()
        .route_service(PATH, service)
        .layer(from_fn_with_state(Arc::clone(app), front::gate));
    if !app.code.settings.debug_endpoint {
        return mcp;
    }
    mcp.route(endpoints::PATH, get(endpoints::list))
}

const PATH: &str = "/mcp";

/// Paths of this part, for labels.
pub(crate) const PATHS: [&str; 2] = [PATH, endpoints::PATH];

/// Why the connection to an engine ended before its code did.
async fn why_gone(engine: engine::Server) -> String {
    let waited = tokio::time::timeout(GRACE, engine.ended()).await;
    let (code, complaint) = match waited {
        Ok((end, complaint)) => (end.map(|end| end.exit_code), complaint),
        Err(_) => (None, String::new()),
    };
    match code {
        Some(137) | None => "the code was ended: it used more memory than it may".into(),
        Some(code) => format!("the engine ended with {code}: {}", complaint.trim()),
    }
}

/// An error of the platform as a model may read it.
fn told(error: Error) -> String {
    match error {
        Error::Internal(cause) => {
            tracing::error!(error = format!("{cause:#}"), "could not run code");
            "the sandbox could not be made; the server's log says why".into()
        }
        other => other.to_string(),
    }
}
