//! Every vendor's form, whole and streamed, however it is cut, and what is not to be believed.

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use store::Tokens;

use super::Meter;

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
        let used = meter.finish();
        assert_eq!((used.input, used.output), (input, output), "in pieces of {size}");
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

/// The same in pieces of every size.
#[track_caller]
fn calls(kind: &'static str, body: &str, expected: u64) {
    for size in [1, 3, body.len()] {
        let mut meter = meter(kind);
        body.as_bytes().chunks(size).for_each(|piece| meter.see(piece));
        assert_eq!(meter.finish().tool_calls, expected, "in pieces of {size}");
    }
}

#[test]
fn calls_of_tools_are_counted_in_every_form() {
    let (events, document) = ("text/event-stream", "application/json");
    calls(
        events,
        "data: {\"type\":\"content_block_start\",\"index\":1,\"content_block\":{\"type\":\"tool_use\",\
         \"id\":\"t1\",\"input\":{}}}\n\n\
         data: {\"type\":\"content_block_delta\",\"delta\":{\"type\":\"input_json_delta\",\
         \"partial_json\":\"{\\\"type\\\":\\\"tool_use\\\"}\"}}\n\n\
         data: {\"type\":\"content_block_start\",\"content_block\":{\"type\":\"text\",\"text\":\"tool_use\"}}\n\n\
         data: {\"type\":\"content_block_start\",\"content_block\":{\"id\":\"t2\",\"type\":\"tool_use\"}}\n\n",
        2,
    );
    calls(
        document,
        "{\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"tool_use\",\"id\":\"t\",\
         \"input\":{\"content\":[{\"type\":\"tool_use\"}]}}],\"usage\":{\"input_tokens\":1}}",
        1,
    );
    // The second piece of a call has no id; some gateways repeat it.
    calls(
        events,
        "data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"a\"}]}}]}\n\n\
         data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"a\"}]}}]}\n\n\
         data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"\"}]}}]}\n\n\
         data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":1,\"id\":\"b\"}]}}]}\n\n",
        2,
    );
    calls(
        document,
        "{\"choices\":[{\"message\":{\"tool_calls\":[{\"id\":\"a\"},{\"id\":\"b\"}]}}]}",
        2,
    );
    // It says each call three times; the last word counts.
    calls(
        events,
        "data: {\"type\":\"response.output_item.added\",\"item\":{\"type\":\"function_call\"}}\n\n\
         data: {\"type\":\"response.output_item.done\",\"item\":{\"type\":\"function_call\"}}\n\n\
         data: {\"type\":\"response.completed\",\"response\":{\"output\":[{\"type\":\"reasoning\"},\
         {\"type\":\"function_call\"},{\"type\":\"custom_tool_call\"}]}}\n\n",
        2,
    );
    calls(
        events,
        "data: {\"candidates\":[{\"content\":{\"parts\":[{\"text\":\"x\"},{\"functionCall\":\
         {\"name\":\"f\",\"args\":{}}}]}}]}\n\n",
        1,
    );
    calls(document, "[{\"candidates\":[{\"content\":{\"parts\":[{\"functionCall\":{}}]}}]}]", 1);
}

#[test]
fn an_answer_of_any_length_is_counted_in_the_same_memory() {
    let mut meter = meter("application/json");
    meter.see(b"{\"content\":[{\"type\":\"tool_use\",\"id\":\"1\",\"input\":\"");
    for _ in 0..64 {
        meter.see(&[b'x'; 64 * 1024]);
    }
    meter.see(b"\"}],\"deep\":");
    // Deeper than anybody nests, and longer keys.
    meter.see("[{\"a\":".repeat(5000).as_bytes());
    meter.see(b"{\"usage\":{\"input_tokens\":900}}");
    meter.see("}]".repeat(5000).as_bytes());
    meter.see(format!(",\"{}\":{}", "k".repeat(100_000), "9".repeat(100_000)).as_bytes());
    meter.see(b",\"usage\":{\"input_tokens\":7,\"output_tokens\":8}}");
    assert_eq!(size_of_val(&meter.scanner), size_of::<super::Scanner>());
    assert!(meter.scanner.held_bytes() < 4096, "{} bytes", meter.scanner.held_bytes());
    assert_eq!(meter.finish(), Tokens { input: 7, output: 8, tool_calls: 1 });
}

#[test]
fn a_line_without_end_is_let_go_and_the_next_one_counts() {
    let mut meter = meter("text/event-stream");
    meter.see(b"data: ");
    for _ in 0..3 {
        meter.see(&vec![b'x'; 1 << 20]);
    }
    meter.see(b"\ndata: {\"usage\":{\"input_tokens\":1,\"output_tokens\":1}}\n");
    assert_eq!(meter.finish(), Tokens { input: 1, output: 1, tool_calls: 0 });
}
