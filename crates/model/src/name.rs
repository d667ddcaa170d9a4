//! Human names of sandboxes: slugs such as `fragrant-bird-7x2`, unique per owner.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::Error;

/// 1 to 63 of `[a-z0-9-]`, no `-` at either end, not beginning with `sb-` (ruling 13).
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Name(String);

impl Name {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// A fresh name of the form `adjective-noun-xyz`; about 30 million of them, so the caller
    /// tries again on the rare collision.
    pub fn generate() -> Self {
        let random = getrandom::u64().expect("the kernel's random source answers");
        let mut rest = usize::try_from(random & 0xffff_ffff).expect("32 bits fit");
        let mut pick = |n: usize| {
            let index = rest % n;
            rest /= n;
            index
        };
        let adjective = ADJECTIVES[pick(ADJECTIVES.len())];
        let noun = NOUNS[pick(NOUNS.len())];
        let mut tail = String::with_capacity(3);
        for _ in 0..3 {
            tail.push(char::from(TAIL[pick(TAIL.len())]));
        }
        Self(format!("{adjective}-{noun}-{tail}"))
    }
}

impl FromStr for Name {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let good = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
        let wrong = |detail: &str| Err(Error::invalid("name", format!("{detail}: {text:?}")));
        if text.is_empty() || text.len() > 63 || !text.bytes().all(good) {
            return wrong("must be 1 to 63 of a-z, 0-9 and -");
        }
        if text.starts_with('-') || text.ends_with('-') {
            return wrong("must not begin or end with -");
        }
        if text.starts_with("sb-") {
            return wrong("must not begin with sb-, which marks ids");
        }
        Ok(Self(text.to_owned()))
    }
}

impl TryFrom<String> for Name {
    type Error = Error;

    fn try_from(text: String) -> Result<Self, Error> {
        text.parse()
    }
}

impl From<Name> for String {
    fn from(name: Name) -> Self {
        name.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

const TAIL: &[u8] = b"23456789bcdfghjkmnpqrstvwxz";

const ADJECTIVES: &[&str] = &[
    "amber", "ancient", "autumn", "bold", "brave", "breezy", "bright", "calm", "cedar", "clever",
    "coral", "crisp", "dapper", "dawn", "deep", "eager", "early", "fragrant", "gentle", "golden",
    "grand", "happy", "hidden", "humble", "ivory", "jolly", "keen", "kind", "lively", "lucky",
    "mellow", "merry", "mighty", "misty", "noble", "olive", "patient", "plain", "polite", "proud",
    "quick", "quiet", "rapid", "rosy", "silent", "silver", "snowy", "solid", "spring", "steady",
    "sunny", "swift", "tidy", "vivid", "warm", "wild", "wise", "witty", "young", "zesty",
];

const NOUNS: &[&str] = &[
    "acorn", "arch", "badger", "bell", "bird", "bridge", "brook", "castle", "cedar", "cliff",
    "cloud", "comet", "crane", "dune", "falcon", "fern", "field", "finch", "forest", "fountain",
    "fox", "garden", "gate", "grove", "harbor", "hawk", "heron", "hill", "island", "lake",
    "lantern", "leaf", "linden", "lynx", "maple", "market", "meadow", "mill", "moon", "moss",
    "oak", "orchard", "otter", "owl", "path", "pine", "plaza", "pond", "quarry", "rain", "raven",
    "reef", "ridge", "river", "robin", "rook", "square", "stone", "stream", "tower", "valley",
    "wall", "well", "willow", "wren",
];

#[cfg(test)]
mod tests;
