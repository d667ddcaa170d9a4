//! When to ask again, in the three ways in which that is said.

use http::HeaderValue;
use jiff::{SignedDuration, Timestamp};

use super::*;

fn said(name: &'static str, value: &str) -> Option<Duration> {
    let mut headers = HeaderMap::new();
    headers.insert(name, HeaderValue::from_str(value).unwrap());
    retry_after(&headers)
}

#[test]
fn seconds_milliseconds_and_dates_are_understood() {
    assert_eq!(said("retry-after", "7"), Some(Duration::from_secs(7)));
    assert_eq!(said("retry-after", " 0.5 "), Some(Duration::from_millis(500)));
    assert_eq!(said("retry-after-ms", "250"), Some(Duration::from_millis(250)));
    let at = |seconds: i64| {
        let at = Timestamp::now() + SignedDuration::from_secs(seconds);
        at.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string()
    };
    let soon = said("retry-after", &at(90)).unwrap();
    assert!(soon > Duration::from_secs(80) && soon <= Duration::from_secs(90), "{soon:?}");
    assert_eq!(said("retry-after", &at(-90)), Some(Duration::ZERO), "it is over");
    assert_eq!(said("retry-after", "Sun, 06 Nov 1994 08:49:37 GMT"), Some(Duration::ZERO));
    for wrong in ["", "soon", "-1", "Sun, 06 Nov 1994", "1e400"] {
        assert_eq!(said("retry-after", wrong), None, "{wrong}");
    }
}

#[test]
fn the_more_exact_word_holds() {
    let mut headers = HeaderMap::new();
    headers.insert("retry-after", HeaderValue::from_static("1"));
    headers.insert("retry-after-ms", HeaderValue::from_static("1300"));
    assert_eq!(retry_after(&headers), Some(Duration::from_millis(1300)));
}
