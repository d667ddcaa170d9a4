//! `limit` and `offset` of lists that have pages (000).

use api::query::Query;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use model::Error;

use crate::app::App;
use crate::refusal::Refusal;

const LIMIT_DEFAULT: u32 = 20;
const LIMIT_MAX: u32 = 1000;

/// One page. An endpoint with pages takes no other parameters.
pub(crate) struct Page {
    pub(crate) limit: u32,
    pub(crate) offset: u64,
}

impl FromRequestParts<App> for Page {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Refusal> {
        let mut query = Query::parse(parts.uri.query(), &["limit", "offset"])?;
        let limit = match query.take("limit") {
            None => LIMIT_DEFAULT,
            Some(text) => {
                let limit = text.parse().ok().filter(|limit| (1..=LIMIT_MAX).contains(limit));
                limit.ok_or_else(|| {
                    Error::invalid("limit", format!("must be 1 to {LIMIT_MAX}: {text}"))
                })?
            }
        };
        let offset = match query.take("offset") {
            None => 0,
            Some(text) => text.parse().map_err(|_| {
                Error::invalid("offset", format!("must be a number that is not below 0: {text}"))
            })?,
        };
        Ok(Self { limit, offset })
    }
}
