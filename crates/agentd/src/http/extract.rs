//! What a request says, or the problem that it is. The statuses are the contract's: 400 for what is
//! not JSON or no query, 415 for another type, 422 for JSON of another shape.

use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{FromRequest, FromRequestParts, Query, Request};
use axum::response::Response;
use axum::{Json, RequestPartsExt as _};
use http::request::Parts;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use utoipa::IntoParams;

use super::problem::unreadable;

/// A body.
pub(crate) struct Body<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = Response;

    async fn from_request(request: Request, state: &S) -> Result<Self, Response> {
        match Json::<T>::from_request(request, state).await {
            Ok(Json(body)) => Ok(Self(body)),
            Err(rejection) => Err(refuse_body(&rejection)),
        }
    }
}

/// A query.
pub(crate) struct Asked<T>(pub(super) T);

impl<T: DeserializeOwned + 'static, S: Send + Sync> FromRequestParts<S> for Asked<T> {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Response> {
        match parts.extract::<Query<T>>().await {
            Ok(Query(query)) => Ok(Self(query)),
            Err(rejection) => Err(refuse_query(&rejection)),
        }
    }
}

/// Which events.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct EventsAsked {
    /// Last seen event sequence (exclusive)
    pub(super) offset: Option<u64>,
    /// Max events to return
    pub(super) limit: Option<u64>,
    /// Include raw provider payloads; `includeRaw` is the same
    #[serde(alias = "includeRaw")]
    pub(super) include_raw: Option<bool>,
}

/// How the events of a turn are shown.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct TurnAsked {
    /// Include raw provider payloads; `includeRaw` is the same
    #[serde(alias = "includeRaw")]
    pub(super) include_raw: Option<bool>,
}

fn refuse_body(rejection: &JsonRejection) -> Response {
    unreadable(rejection.status(), &rejection.body_text())
}

fn refuse_query(rejection: &QueryRejection) -> Response {
    unreadable(rejection.status(), &rejection.body_text())
}
