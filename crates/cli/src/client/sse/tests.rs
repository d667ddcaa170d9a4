use super::*;

#[track_caller]
fn check(chunks: &[&str], expected: &[(Option<&str>, &str, &str)]) {
    let mut parser = Parser::default();
    let mut ready = VecDeque::new();
    for chunk in chunks {
        parser.feed(chunk.as_bytes(), &mut ready).unwrap();
    }
    let seen: Vec<_> = ready
        .iter()
        .map(|event| (event.id.as_deref(), event.event.as_str(), event.data.as_str()))
        .collect();
    assert_eq!(seen, expected);
}

#[test]
fn events_have_an_id_a_name_and_data() {
    check(&["id: 7\nevent: exit\ndata: {}\n\n"], &[(Some("7"), "exit", "{}")]);
    check(&["data: a\ndata: b\n\n"], &[(None, "message", "a\nb")]);
    check(&["data:a\r\n\r\n"], &[(None, "message", "a")]);
}

#[test]
fn an_event_may_come_in_pieces() {
    check(&["da", "ta: a", "\n", "\nda"], &[(None, "message", "a")]);
}

#[test]
fn comments_and_events_without_data_are_nothing() {
    check(&[": ping\n\n", "event: only\n\n", "data\n\n"], &[(None, "message", "")]);
}

#[test]
fn an_endless_line_is_refused() {
    let mut parser = Parser::default();
    let chunk = vec![b'x'; EVENT_BYTES_MAX + 1];
    assert!(parser.feed(&chunk, &mut VecDeque::new()).is_err());
}
