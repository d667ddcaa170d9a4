//! Reading a JSON body so that a mistake names its field and says what to do.

use model::Error;
use serde::de::DeserializeOwned;

/// Parses a whole body. Malformed JSON, wrong types and unknown fields are all `Invalid`, with the
/// path of the field (`app_json.capability_sets[0].name`), or `body` when there is none.
pub fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Error> {
    if body.iter().all(u8::is_ascii_whitespace) {
        return Err(Error::invalid("body", "is empty; send a JSON object"));
    }
    // Serde would take an array for a struct, field by field.
    if body.trim_ascii_start().first() != Some(&b'{') {
        return Err(Error::invalid("body", "must be a JSON object"));
    }
    let mut reader = serde_json::Deserializer::from_slice(body);
    let value = serde_path_to_error::deserialize(&mut reader)
        .map_err(|error| refusal("", &error.path().to_string(), error.inner()))?;
    reader
        .end()
        .map_err(|error| Error::invalid("body", format!("has more than one value: {error}")))?;
    Ok(value)
}

/// The same for a value that is already JSON, under the field it came in.
pub fn from_value<T: DeserializeOwned>(field: &str, value: serde_json::Value) -> Result<T, Error> {
    serde_path_to_error::deserialize(value)
        .map_err(|error| refusal(field, &error.path().to_string(), error.inner()))
}

fn refusal(parent: &str, path: &str, error: &serde_json::Error) -> Error {
    let mut field = match (parent, path) {
        ("", "." | "?") => "body".to_owned(),
        ("", path) => path.to_owned(),
        (parent, "." | "?") => parent.to_owned(),
        (parent, path) if path.starts_with('[') => format!("{parent}{path}"),
        (parent, path) => format!("{parent}.{path}"),
    };
    let text = error.to_string();
    // Serde names a missing field, and a repeated one, in its message only.
    let in_message =
        quoted_after(&text, "missing field `").or_else(|| quoted_after(&text, "duplicate field `"));
    if let Some(name) = in_message {
        field = if field == "body" { name.to_owned() } else { format!("{field}.{name}") };
    }
    if let Some(name) = quoted_after(&text, "unknown field `") {
        let named = field == name || field.ends_with(&format!(".{name}"));
        if field == "body" {
            field = name.to_owned();
        } else if !named {
            field = format!("{field}.{name}");
        }
    }
    Error::invalid(field, text)
}

pub(crate) fn quoted_after<'a>(text: &'a str, lead: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(lead)?;
    rest.split_once('`').map(|(name, _)| name)
}

#[cfg(test)]
mod tests;
