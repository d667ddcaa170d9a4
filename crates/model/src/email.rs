//! E-mail addresses, as far as they can be an account's: ASCII, without comments, quotes and line
//! breaks. Whether somebody reads what is sent there, only a code that comes back tells.

use std::fmt;
use std::str::FromStr;

use crate::{Error, host_name};

const LOCAL_BYTES_MAX: usize = 64;
const BYTES_MAX: usize = 254;

/// In lower case, so that one person has one account however they write it.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Email(String);

impl Email {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// What is after the `@`.
    pub fn domain(&self) -> &str {
        self.0.split_once('@').map_or("", |(_, domain)| domain)
    }
}

impl FromStr for Email {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = || Error::invalid("email", "must be an address such as you@example.com");
        if text.len() > BYTES_MAX {
            return Err(wrong());
        }
        let lower = text.to_ascii_lowercase();
        let (local, domain) = lower.split_once('@').ok_or_else(wrong)?;
        let good = |c: u8| c.is_ascii_alphanumeric() || b"!#$%&'*+/=?^_`{|}~.-".contains(&c);
        let dots = local.starts_with('.') || local.ends_with('.') || local.contains("..");
        if local.is_empty() || local.len() > LOCAL_BYTES_MAX || dots || !local.bytes().all(good) {
            return Err(wrong());
        }
        let known = host_name(domain).is_some_and(|name| name == domain);
        if !known || !domain.contains('.') {
            return Err(wrong());
        }
        Ok(Self(lower))
    }
}

impl fmt::Display for Email {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Email {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_one_however_it_is_written() {
        for text in ["You@Example.com", "you@example.com", "YOU@EXAMPLE.COM"] {
            assert_eq!(text.parse::<Email>().unwrap().as_str(), "you@example.com");
        }
        assert_eq!("a.b+c@mail.example.org".parse::<Email>().unwrap().domain(), "mail.example.org");
    }

    #[test]
    fn what_is_no_address_or_could_be_more_than_one_is_refused() {
        let long = format!("{}@example.com", "a".repeat(65));
        let longer = format!("a@{}.example.com", "b".repeat(250));
        for text in [
            "",
            "you",
            "@example.com",
            "you@",
            "you@localhost",
            "a@b@example.com",
            "you@example.com\r\nBcc: all@example.com",
            "you @example.com",
            "\"you\"@example.com",
            "you@[127.0.0.1]",
            "a,b@example.com",
            "<you@example.com>",
            ".you@example.com",
            "a..b@example.com",
            "you@exa_mple..com",
            "jos\u{e9}@example.com",
            "you\0@example.com",
            &long,
            &longer,
        ] {
            assert!(text.parse::<Email>().is_err(), "{text:?}");
        }
    }
}
