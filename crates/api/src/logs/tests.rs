//! The rows of 000's table for `logs`.

use model::Error;

use super::LogAmount::{Bytes, Lines};
use super::{LogStream, LogsQuery};

#[test]
fn amounts_are_clamped() {
    for (query, wanted) in [
        ("", Lines(100)),
        ("stream=stderr", Lines(100)),
        ("lines=1", Lines(1)),
        ("lines=10001", Lines(10_000)),
        ("lines=99999999999999999999999999", Lines(10_000)),
        ("bytes=1", Bytes(1)),
        ("bytes=1048577", Bytes(1_048_576)),
        ("stream=stderr&bytes=5", Bytes(5)),
    ] {
        let wanted = LogsQuery { stream: LogStream::Stderr, amount: wanted };
        assert_eq!(LogsQuery::parse(Some(query)).unwrap(), wanted, "{query}");
    }
    let wanted = LogsQuery { stream: LogStream::Stderr, amount: Lines(100) };
    assert_eq!(LogsQuery::parse(None).unwrap(), wanted);
    let wanted = LogsQuery { stream: LogStream::Agents, amount: Lines(7) };
    assert_eq!(LogsQuery::parse(Some("stream=agents&lines=7")).unwrap(), wanted);
}

#[test]
fn mistakes_name_their_parameter() {
    for (query, wanted) in [
        ("lines=1&bytes=1", "lines"),
        ("lines=0", "lines"),
        ("bytes=0", "bytes"),
        ("lines=ten", "lines"),
        ("lines=1.5", "lines"),
        ("lines=-1", "lines"),
        ("bytes=", "bytes"),
        ("stream=stdin", "stream"),
        ("stream=", "stream"),
        ("stream=STDERR", "stream"),
        ("tail=1", "tail"),
        ("lines=1&lines=2", "lines"),
        ("stream=stdout&lines=0", "lines"),
    ] {
        let error = LogsQuery::parse(Some(query)).unwrap_err();
        let Error::Invalid { field, .. } = error else { panic!("{query}: {error:?}") };
        assert_eq!(field, wanted, "{query}");
    }
}

#[test]
fn reserved_streams_are_not_implemented() {
    for query in ["stream=stdout", "stream=all", "stream=all&lines=3"] {
        let error = LogsQuery::parse(Some(query)).unwrap_err();
        assert!(matches!(error, Error::NotImplemented { .. }), "{query}: {error:?}");
    }
}
