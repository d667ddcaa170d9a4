//! What a file of a workspace is called: a relative path whose every segment is a plain name.

use std::fmt;
use std::str::FromStr;

use model::Error;
use object_store::path::PathPart;

/// Of a whole key, as S3 has it.
const KEY_BYTES_MAX: usize = 900;
/// Of one segment as it is stored, as file systems have it.
const SEGMENT_BYTES_MAX: usize = 255;

/// `output.json`, `data/2026/a.csv`. Holding one proves that it leads nowhere else.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(String);

impl Key {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Key {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = |detail: &str| Err(Error::invalid("path", detail));
        if text.is_empty() {
            return wrong("must not be empty");
        }
        if text.chars().any(char::is_control) || text.contains('\\') {
            return wrong("must not contain control characters or backslashes");
        }
        let stored = |segment: &str| PathPart::from(segment).as_ref().len();
        for segment in text.split('/') {
            match segment {
                "" => return wrong("must not begin or end with /, or contain //"),
                "." | ".." => return wrong("must not contain . or .. as a name"),
                long if stored(long) > SEGMENT_BYTES_MAX => {
                    return wrong("a name in it is too long");
                }
                _ => {}
            }
        }
        if text.split('/').map(|segment| stored(segment) + 1).sum::<usize>() > KEY_BYTES_MAX {
            return wrong("is too long");
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
