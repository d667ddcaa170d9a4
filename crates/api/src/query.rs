//! Query strings: as strict as bodies. An unknown or repeated parameter is refused by name.

use std::collections::BTreeMap;

use model::Error;

/// The parameters of one request, taken out one by one.
#[derive(Debug)]
pub struct Query(BTreeMap<String, String>);

impl Query {
    /// `known` are all the names this endpoint takes.
    pub fn parse(query: Option<&str>, known: &[&str]) -> Result<Self, Error> {
        let mut pairs = BTreeMap::new();
        for (name, value) in form_urlencoded::parse(query.unwrap_or_default().as_bytes()) {
            if !known.contains(&name.as_ref()) {
                let known = match known {
                    [] => "this endpoint takes none".to_owned(),
                    _ => format!("this endpoint takes {}", known.join(", ")),
                };
                return Err(Error::invalid(name, format!("unknown query parameter; {known}")));
            }
            if pairs.insert(name.clone().into_owned(), value.into_owned()).is_some() {
                return Err(Error::invalid(name, "given more than once"));
            }
        }
        Ok(Self(pairs))
    }

    pub fn take(&mut self, name: &str) -> Option<String> {
        self.0.remove(name)
    }

    pub fn required(&mut self, name: &str) -> Result<String, Error> {
        self.take(name)
            .ok_or_else(|| Error::invalid(name, format!("required: add ?{name}=… to the URL")))
    }

    /// A whole number of at least 0. One too large for 64 bits counts as the largest.
    pub fn whole(&mut self, name: &str) -> Result<Option<u64>, Error> {
        let Some(text) = self.take(name) else { return Ok(None) };
        if text.is_empty() || !text.bytes().all(|c| c.is_ascii_digit()) {
            return Err(Error::invalid(name, format!("not a whole number: {text:?}")));
        }
        Ok(Some(text.parse().unwrap_or(u64::MAX)))
    }
}
