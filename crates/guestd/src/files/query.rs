//! The query of a request, once its percent signs are decoded.

use crate::http::Request;
use crate::refusal::{Refusal, Result};

#[derive(Debug)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    pub(crate) fn of(request: &Request) -> Self {
        let query = request.uri().query().unwrap_or("");
        Self(form_urlencoded::parse(query.as_bytes()).into_owned().collect())
    }

    /// The first value of that name.
    pub(crate) fn take(&mut self, name: &str) -> Option<String> {
        let index = self.0.iter().position(|(key, _)| key == name)?;
        Some(self.0.swap_remove(index).1)
    }

    pub(crate) fn number(&mut self, name: &str) -> Result<Option<u64>> {
        let Some(text) = self.take(name) else { return Ok(None) };
        text.parse()
            .map(Some)
            .map_err(|_| Refusal::invalid(format!("{name}: not a number: {text}")))
    }
}
