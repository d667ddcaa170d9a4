//! Every vendor's form, whole and streamed, however it is cut, and what is not to be believed.

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use store::Tokens;

use super::{LOOKED_AT_MAX, Meter};

fn meter(kind: &'static str) -> Meter {
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    Meter::of(StatusCode::OK, &headers)
}

/// In pieces of every size.
#[track_caller]
fn check(kind: &'static str, body: &str, input: u64, output: u64) {
    for size in [1, 2, 7, body.len().max(1)] {
        let mut meter = meter(kind);
        body.as_bytes().chunks(size).for_each(|piece| meter.see(piece));
        assert_eq!(meter.finish(), Tokens { input, output }, "in pieces of {size}");
    }
}

#[test]
fn events_of_every_vendor_are_counted() {
    let kind = "text/event-stream; charset=utf-8";
    check(
        kind,
        "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":\
         {\"input_tokens\":10,\"cache_read_input_tokens\":5,\"output_tokens\":1}}}\n\n\
         data: {\"type\":\"content_block_delta\",\"delta\":{\"text\":\"usage: 900\"}}\n\n\
         event: message_delta\r\ndata: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":7}}\r\n\r\n",
        15,
        7,
    );
    check(
        kind,
        "data: {\"type\":\"response.created\",\"response\":{\"usage\":null}}\n\n\
         data: {\"type\":\"response.completed\",\"response\":{\"usage\":{\"input_tokens\":20,\
         \"input_tokens_details\":{\"cached_tokens\":8},\"output_tokens\":9,\"total_tokens\":29}}}\n\n",
        20,
        9,
    );
    check(
        kind,
        "data: {\"choices\":[{}],\"usage\":null}\n\n\
         data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":4}}\n\ndata: [DONE]\n\n",
        3,
        4,
    );
    check(
        kind,
        "data: {\"usageMetadata\":{\"promptTokenCount\":6,\"candidatesTokenCount\":1}}\n\n\
         data: {\"usageMetadata\":{\"promptTokenCount\":6,\"candidatesTokenCount\":5,\
         \"thoughtsTokenCount\":2}}",
        6,
        7,
    );
}

#[test]
fn documents_are_counted() {
    let kind = "application/json";
    check(kind, "{\"usage\":{\"input_tokens\":2,\"output_tokens\":3}}", 2, 3);
    check(
        kind,
        "[{\"usageMetadata\":{\"promptTokenCount\":2}},{\"usageMetadata\":\
                 {\"promptTokenCount\":2,\"candidatesTokenCount\":9}}]",
        2,
        9,
    );
    check(kind, "{\"input_tokens\":7}", 0, 0);
}

#[test]
fn what_cannot_be_read_or_believed_is_not_counted() {
    check("application/json", "{\"usage\":", 0, 0);
    check("text/plain", "{\"usage\":{\"input_tokens\":2}}", 0, 0);
    check("application/json", "{\"usage\":{\"input_tokens\":-2,\"output_tokens\":\"9\"}}", 0, 0);
    check(
        "application/json",
        "{\"usage\":{\"input_tokens\":18446744073709551615,\"prompt_tokens\":18446744073709551615}}",
        super::TOKENS_MAX,
        0,
    );
    let failed = Meter::of(StatusCode::BAD_REQUEST, &HeaderMap::new()).finish();
    assert_eq!(failed, Tokens::default());
}

#[test]
fn a_line_without_end_is_let_go_and_the_next_one_counts() {
    let mut meter = meter("text/event-stream");
    meter.see(b"data: ");
    for _ in 0..3 {
        meter.see(&vec![b'x'; LOOKED_AT_MAX]);
        assert!(meter.kept.len() <= LOOKED_AT_MAX);
    }
    meter.see(b"\ndata: {\"usage\":{\"input_tokens\":1,\"output_tokens\":1}}\n");
    assert_eq!(meter.finish(), Tokens { input: 1, output: 1 });
}
