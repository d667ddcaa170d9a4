//! One-time codes: six digits, and what of them is stored.

use anyhow::Context;
use model::{Email, Result};
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};

use crate::signing_key::SigningKey;

const RANGE: u32 = 1_000_000;

#[derive(Clone)]
pub(crate) struct Codes(hmac::Key);

impl Codes {
    pub(crate) fn new(key: &SigningKey) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, &key.of("one-time codes")))
    }

    /// A new one, each as likely as any other.
    pub(crate) fn draw() -> Result<String> {
        let random = SystemRandom::new();
        loop {
            let mut bytes = [0; 4];
            random.fill(&mut bytes).ok().context("draw a code")?;
            let number = u32::from_be_bytes(bytes);
            // What is above the last whole multiple would make some codes likelier.
            if number < u32::MAX - u32::MAX % RANGE {
                return Ok(format!("{:06}", number % RANGE));
            }
        }
    }

    /// What is stored: without our key it says nothing about the code.
    pub(crate) fn digest(&self, email: &Email, code: &str) -> [u8; 32] {
        let tag = hmac::sign(&self.0, format!("{email}\n{code}").as_bytes());
        tag.as_ref().try_into().expect("a tag of 32 bytes")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_has_six_digits_and_its_digest_is_of_one_email_and_one_key() {
        let drawn: std::collections::BTreeSet<_> =
            (0..100).map(|_| Codes::draw().unwrap()).collect();
        assert!(drawn.len() > 90, "{drawn:?}");
        assert!(drawn.iter().all(|code| code.len() == 6 && code.parse::<u32>().is_ok()));
        let [one, other] = [(); 2].map(|()| {
            let dir = tempfile::tempdir().unwrap();
            Codes::new(&SigningKey::open(dir.path(), None).unwrap())
        });
        let (ann, bob): (Email, Email) =
            ("ann@example.com".parse().unwrap(), "bob@example.com".parse().unwrap());
        assert_eq!(one.digest(&ann, "123456"), one.digest(&ann, "123456"));
        assert_ne!(one.digest(&ann, "123456"), one.digest(&bob, "123456"));
        assert_ne!(one.digest(&ann, "123456"), other.digest(&ann, "123456"));
    }
}
