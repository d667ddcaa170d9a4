//! Every error a client can see, and the one place that knows its status.

use api::{Code, Problem};
use axum::Json;
use axum::http::header::{
    CONTENT_TYPE, HeaderName, RETRY_AFTER, SEC_WEBSOCKET_VERSION, UPGRADE, WWW_AUTHENTICATE,
};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use jiff::SignedDuration;
use model::{Conflict, Error};

use crate::preview::Trouble;

/// Why a request is not done: what the engine says, and what HTTP adds to it.
#[derive(Debug)]
pub(crate) enum Refusal {
    Failed(Error),
    /// No credential, or (`sent`) one that is not known.
    Unauthorized {
        sent: bool,
    },
    /// An API key, where an account's token is needed.
    TokenRequired,
    /// Not the code that was sent.
    WrongCode,
    RateLimited {
        retry_after: SignedDuration,
    },
    Forbidden(&'static str),
    NoRoute,
    WrongMethod,
    TooLarge {
        bytes_max: u64,
    },
    TooSlow,
    UpgradeRequired,
    Session(SessionTrouble),
    /// The server that could do it does not answer; when to ask again.
    NoLeader {
        detail: String,
        retry_after_seconds: u16,
    },
    Preview(Trouble),
    Panicked,
}

/// What only calls about sessions are refused for.
#[derive(Debug)]
pub(crate) enum SessionTrouble {
    HandshakeRequired,
    /// No token of a session, or (`sent`) not a good one, or its session is gone.
    TokenRequired {
        sent: bool,
    },
    /// It cannot go on without this bundle of secrets.
    NoBundle(String),
}

/// What the problem body is made of.
struct Answer {
    status: StatusCode,
    code: Code,
    detail: String,
    field: Option<String>,
    header: Option<(HeaderName, HeaderValue)>,
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl From<Trouble> for Refusal {
    fn from(trouble: Trouble) -> Self {
        Self::Preview(trouble)
    }
}

impl From<SessionTrouble> for Refusal {
    fn from(trouble: SessionTrouble) -> Self {
        Self::Session(trouble)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let answer = self.answer();
        let problem = Problem {
            kind: "about:blank".into(),
            title: answer.status.canonical_reason().unwrap_or("Error").into(),
            status: answer.status.as_u16(),
            detail: answer.detail,
            code: answer.code,
            field: answer.field,
        };
        let mut response = (answer.status, Json(problem)).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some((name, value)) = answer.header {
            headers.insert(name, value);
        }
        response
    }
}

impl Refusal {
    fn answer(self) -> Answer {
        match self {
            Self::Failed(error) => Answer::of_error(error),
            Self::Unauthorized { sent } => {
                let (detail, challenge) = if sent {
                    ("the API key or token is not known, has expired or was revoked", INVALID_TOKEN)
                } else {
                    ("send an API key: Authorization: Bearer e2a_…", NO_TOKEN)
                };
                Answer::new(StatusCode::UNAUTHORIZED, Code::Unauthorized, detail)
                    .with(WWW_AUTHENTICATE, HeaderValue::from_static(challenge))
            }
            Self::TokenRequired => Answer::new(
                StatusCode::UNAUTHORIZED,
                Code::Unauthorized,
                "this takes no API key but an account's token: POST /v1/auth/login has a code sent \
                 that POST /v1/auth/verify-otp takes for one",
            )
            .with(WWW_AUTHENTICATE, HeaderValue::from_static(INVALID_TOKEN)),
            Self::WrongCode => Answer::new(
                StatusCode::UNAUTHORIZED,
                Code::Unauthorized,
                "not the code that was sent last, or it was used, has expired, or was guessed at too \
                 often",
            ),
            Self::RateLimited { retry_after } => {
                let seconds = u64::try_from(retry_after.as_millis()).unwrap_or(0).div_ceil(1000);
                Answer::new(
                    StatusCode::TOO_MANY_REQUESTS,
                    Code::RateLimited,
                    "too many requests of this kind; Retry-After says when to try again",
                )
                .with(RETRY_AFTER, HeaderValue::from(seconds.max(1)))
            }
            Self::Forbidden(detail) => Answer::new(StatusCode::FORBIDDEN, Code::Forbidden, detail),
            Self::NoRoute => Answer::new(
                StatusCode::NOT_FOUND,
                Code::NotFound,
                "no such path; /openapi.json and /docs list them all",
            ),
            Self::WrongMethod => Answer::new(
                StatusCode::METHOD_NOT_ALLOWED,
                Code::MethodNotAllowed,
                "this path does not take that method; Allow lists those it takes",
            ),
            Self::TooLarge { bytes_max } => Answer::new(
                StatusCode::PAYLOAD_TOO_LARGE,
                Code::BodyTooLarge,
                format!("the body is larger than the {bytes_max} bytes that are taken here"),
            ),
            Self::TooSlow => Answer::new(
                StatusCode::REQUEST_TIMEOUT,
                Code::RequestTimeout,
                "the rest of the body did not come in time",
            ),
            Self::UpgradeRequired => Answer::new(
                StatusCode::UPGRADE_REQUIRED,
                Code::UpgradeRequired,
                "send Connection: Upgrade and Upgrade: bastide-tunnel",
            )
            .with(UPGRADE, HeaderValue::from_static("bastide-tunnel")),
            Self::Session(trouble) => Answer::of_session(trouble),
            Self::NoLeader { detail, retry_after_seconds } => {
                Answer::new(StatusCode::SERVICE_UNAVAILABLE, Code::Unavailable, detail)
                    .with(RETRY_AFTER, HeaderValue::from(retry_after_seconds))
            }
            Self::Preview(trouble) => Answer::of_preview(trouble),
            Self::Panicked => {
                Answer::new(StatusCode::INTERNAL_SERVER_ERROR, Code::Internal, INTERNAL)
            }
        }
    }
}

impl Answer {
    fn new(status: StatusCode, code: Code, detail: impl Into<String>) -> Self {
        Self { status, code, detail: detail.into(), field: None, header: None }
    }

    fn with(self, name: HeaderName, value: HeaderValue) -> Self {
        Self { header: Some((name, value)), ..self }
    }

    fn of_preview(trouble: Trouble) -> Self {
        match trouble {
            Trouble::PortClosed { port } => Self::new(
                StatusCode::BAD_GATEWAY,
                Code::PortClosed,
                format!("the sandbox runs, but nothing listens on its port {port}"),
            ),
            Trouble::NoHttp { port, detail } => Self::new(
                StatusCode::BAD_GATEWAY,
                Code::BadGateway,
                format!("what listens on port {port} of the sandbox gave no HTTP answer: {detail}"),
            ),
            Trouble::Silent { port, limit } => Self::new(
                StatusCode::GATEWAY_TIMEOUT,
                Code::GatewayTimeout,
                format!("nothing came from port {port} of the sandbox for {limit:?}"),
            ),
            Trouble::LinkInvalid => Self::new(
                StatusCode::UNAUTHORIZED,
                Code::Unauthorized,
                "the link has expired, or is not for this port; ask its owner for a new one",
            )
            .with(WWW_AUTHENTICATE, HeaderValue::from_static(INVALID_TOKEN)),
            Trouble::OtherSite => Self::new(
                StatusCode::FORBIDDEN,
                Code::Forbidden,
                "another site's page sent this request; only this port's own pages may",
            ),
            Trouble::UnknownHost => Self::new(
                StatusCode::NOT_FOUND,
                Code::NotFound,
                "no sandbox has this host; they are called {port}-{id} below this domain",
            ),
            Trouble::TwoHosts => Self::new(
                StatusCode::BAD_REQUEST,
                Code::InvalidRequest,
                "the request names more than one host",
            ),
        }
    }

    fn of_session(trouble: SessionTrouble) -> Self {
        match trouble {
            SessionTrouble::HandshakeRequired => Self::new(
                StatusCode::UPGRADE_REQUIRED,
                Code::UpgradeRequired,
                "send a WebSocket handshake: Connection: Upgrade, Upgrade: websocket, \
                 Sec-WebSocket-Version: 13",
            )
            .with(SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13")),
            SessionTrouble::TokenRequired { sent } => {
                let (detail, challenge) = if sent {
                    ("the session's token is not good, or has expired", INVALID_TOKEN)
                } else {
                    ("send the session's token: Authorization: Bearer …, or ?token=…", NO_TOKEN)
                };
                Self::new(StatusCode::UNAUTHORIZED, Code::Unauthorized, detail)
                    .with(WWW_AUTHENTICATE, HeaderValue::from_static(challenge))
            }
            SessionTrouble::NoBundle(bundle) => Self::new(
                StatusCode::BAD_GATEWAY,
                Code::SecretBundleNotFoundAtResume,
                format!("the session needs a bundle of secrets that was deleted: {bundle}"),
            ),
        }
    }

    /// The exhaustive match from what went wrong to what HTTP calls it.
    fn of_error(error: Error) -> Self {
        let text = error.to_string();
        match error {
            Error::NotFound { what: _, id: _ } => {
                Self::new(StatusCode::NOT_FOUND, Code::NotFound, text)
            }
            Error::Conflict { code, detail } => {
                let code = match code {
                    Conflict::WrongState => Code::WrongState,
                    Conflict::NameTaken => Code::NameTaken,
                };
                Self::new(StatusCode::CONFLICT, code, detail)
            }
            Error::Invalid { field, detail: _ } => Self {
                field: Some(field),
                ..Self::new(StatusCode::BAD_REQUEST, Code::InvalidRequest, text)
            },
            Error::Exhausted { detail, retry_after } => {
                let seconds = retry_after.as_millis().div_ceil(1000).max(1);
                let value = HeaderValue::from(u64::try_from(seconds).unwrap_or(u64::MAX));
                Self::new(StatusCode::TOO_MANY_REQUESTS, Code::QuotaExceeded, detail)
                    .with(RETRY_AFTER, value)
            }
            Error::NoCredit { detail } => {
                Self::new(StatusCode::PAYMENT_REQUIRED, Code::CreditsExhausted, detail)
            }
            Error::NoCapacity { detail } => {
                Self::new(StatusCode::CONFLICT, Code::NoCapacity, detail)
            }
            Error::DiskFull { detail } => {
                Self::new(StatusCode::INSUFFICIENT_STORAGE, Code::DiskFull, detail)
            }
            Error::ReadOnly { detail } => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, Code::ReadOnly, detail)
            }
            Error::IdempotencyMismatch { detail } => {
                Self::new(StatusCode::UNPROCESSABLE_ENTITY, Code::IdempotencyMismatch, detail)
            }
            Error::NotImplemented { code, detail } => {
                Self::new(StatusCode::NOT_IMPLEMENTED, Code::of_missing(code), detail)
            }
            Error::Unavailable { detail } => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, Code::Unavailable, detail)
            }
            Error::Internal(cause) => {
                tracing::error!(error = format!("{cause:#}"), "a request failed");
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, Code::Internal, INTERNAL)
            }
        }
    }
}

const NO_TOKEN: &str = r#"Bearer realm="bastide""#;
const INVALID_TOKEN: &str = r#"Bearer realm="bastide", error="invalid_token""#;
const INTERNAL: &str = "internal error; the server's log has the rest, under x-request-id";
