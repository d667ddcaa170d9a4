//! The signature of Stripe's webhooks: `t=UNIX,v1=HEX[,v1=HEX…]`, an HMAC of the time and the body.

use jiff::Timestamp;
use ring::hmac;

/// How far the time of a message may be from ours: what was caught on its way is not good for long.
const TOLERANCE_SECONDS: i64 = 300;

/// Whether the body is from who has the secret, and new.
pub(super) fn holds(header: &str, body: &[u8], secret: &str, now: Timestamp) -> bool {
    let mut at = None;
    let mut signatures = Vec::new();
    for part in header.split(',') {
        match part.trim().split_once('=') {
            Some(("t", text)) => at = text.parse::<i64>().ok(),
            Some(("v1", text)) => signatures.extend(unhex(text)),
            _ => {}
        }
    }
    let Some(at) =
        at.filter(|at| now.as_second().abs_diff(*at) <= TOLERANCE_SECONDS.unsigned_abs())
    else {
        return false;
    };
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    let signed = [at.to_string().as_bytes(), b".", body].concat();
    signatures.iter().any(|signature| hmac::verify(&key, &signed, signature).is_ok())
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    if !text.is_ascii() || text.len() % 2 != 0 {
        return None;
    }
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sign(at: i64, body: &str, secret: &str) -> String {
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
        let tag = hmac::sign(&key, format!("{at}.{body}").as_bytes());
        tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn only_what_is_signed_and_new_holds() {
        let now = Timestamp::from_second(1_700_000_000).unwrap();
        let good = sign(1_700_000_000, "{}", "whsec");
        let check = |header: &str, body: &str, expected: bool| {
            assert_eq!(holds(header, body.as_bytes(), "whsec", now), expected, "{header}");
        };
        check(&format!("t=1700000000,v1={good}"), "{}", true);
        check(&format!("t=1700000000,v1=00ff,v1={good},v0=x"), "{}", true);
        check(&format!("t=1700000000,v1={good}"), "{ }", false);
        check(&format!("t=1700000001,v1={good}"), "{}", false);
        check(&format!("t=1700000000,v1={}", sign(1_700_000_000, "{}", "other")), "{}", false);
        for at in [1_700_000_301, 1_699_999_699] {
            check(&format!("t={at},v1={}", sign(at, "{}", "whsec")), "{}", false);
        }
        for header in ["", "t=1700000000", "v1=00", "t=x,v1=zz", "t=1700000000,v1=é"] {
            check(header, "{}", false);
        }
    }
}
