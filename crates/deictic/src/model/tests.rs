//! Streams of any bytes: no decoder breaks, none takes more than it may, and how the bytes are parted changes
//! nothing.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::answer::{Answer, Piece};
use super::client::Decoder;
use super::endpoint::{Endpoint, Environment, Vendor};
use super::sse::{Event, Events};
use crate::fault::Fault;
use crate::protocol::Start;

const VENDORS: [Vendor; 5] =
    [Vendor::Anthropic, Vendor::OpenAi, Vendor::OpenAiChat, Vendor::Google, Vendor::DeepSeek];

fn decode(vendor: Vendor, parts: &[&[u8]]) -> Result<(Vec<Piece>, Answer), Fault> {
    let (mut events, mut decoder) = (Events::default(), Decoder::new(vendor));
    let (mut ready, mut pieces) = (Vec::new(), Vec::new());
    for part in parts {
        events.push(part, &mut ready)?;
        for event in ready.drain(..) {
            decoder.event(&event, &mut pieces)?;
        }
    }
    Ok((pieces, decoder.end()?))
}

/// Events as the vendors send them.
fn recorded(vendor: Vendor) -> Vec<Value> {
    match vendor {
        Vendor::Anthropic => vec![
            json!({"type": "message_start", "message": {"usage": {"input_tokens": 3}}}),
            json!({"type": "content_block_start", "index": 0,
                "content_block": {"type": "thinking", "thinking": ""}}),
            json!({"type": "content_block_delta", "index": 0,
                "delta": {"type": "thinking_delta", "thinking": "hm"}}),
            json!({"type": "content_block_delta", "index": 0,
                "delta": {"type": "signature_delta", "signature": "s"}}),
            json!({"type": "content_block_start", "index": 1,
                "content_block": {"type": "tool_use", "id": "t", "name": "n", "input": {}}}),
            json!({"type": "content_block_delta", "index": 1,
                "delta": {"type": "input_json_delta", "partial_json": "{\"ä\": 1}"}}),
            json!({"type": "message_delta", "delta": {"stop_reason": "tool_use"},
                "usage": {"output_tokens": 4}}),
            json!({"type": "message_stop"}),
        ],
        Vendor::OpenAi => vec![
            json!({"type": "response.created"}),
            json!({"type": "response.reasoning_summary_text.delta", "delta": "hm"}),
            json!({"type": "response.output_text.delta", "delta": "größer"}),
            json!({"type": "response.output_item.done", "output_index": 1, "item": {
                "type": "function_call", "call_id": "c", "name": "n", "arguments": "{}"}}),
            json!({"type": "response.completed", "response": {"usage": {"input_tokens": 3}}}),
        ],
        Vendor::OpenAiChat | Vendor::DeepSeek => vec![
            json!({"choices": [{"delta": {"reasoning_content": "hm"}}]}),
            json!({"choices": [{"delta": {"content": "größer"}}]}),
            json!({"choices": [{"delta": {"tool_calls": [
                {"index": 0, "id": "c", "function": {"name": "n", "arguments": "{"}}]}}]}),
            json!({"choices": [{"delta": {"tool_calls": [
                {"index": 0, "function": {"arguments": "}"}}]}, "finish_reason": "tool_calls"}]}),
            json!({"choices": [], "usage": {"prompt_tokens": 3}}),
        ],
        Vendor::Google => vec![
            json!({"candidates": [{"content": {"parts": [{"text": "hm", "thought": true}]}}]}),
            json!({"candidates": [{"content": {"parts": [{"text": "größer"}]}}]}),
            json!({"candidates": [{"content": {"parts": [
                {"functionCall": {"id": "c", "name": "n", "args": {"a": 1}}, "thoughtSignature": "s"}]},
                "finishReason": "STOP"}], "usageMetadata": {"promptTokenCount": 3}}),
        ],
    }
}

fn stream(values: &[Value]) -> Vec<u8> {
    let one = |value: &Value| format!("event: {}\r\ndata: {value}\r\n\r\n", value["type"]);
    values.iter().map(one).collect::<String>().into_bytes()
}

fn arb_json() -> impl Strategy<Value = Value> {
    let keys = prop::sample::select(vec![
        "type",
        "index",
        "delta",
        "content_block",
        "text",
        "item",
        "choices",
        "candidates",
        "usage",
        "error",
        "content",
        "parts",
        "functionCall",
        "tool_calls",
        "function",
        "response",
        "id",
    ]);
    let words = prop::sample::select(vec![
        "message_start",
        "content_block_start",
        "content_block_delta",
        "message_stop",
        "error",
        "response.completed",
        "response.output_item.done",
        "function_call",
        "text_delta",
        "input_json_delta",
        "tool_use",
        "STOP",
        "x",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        words.prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 4, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(keys.clone().prop_map(str::to_owned), inner, 0..5)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn any_bytes_are_an_answer_or_a_fault(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        for vendor in VENDORS {
            let _ = decode(vendor, &[&bytes]);
        }
    }

    #[test]
    fn any_json_is_an_answer_or_a_fault(values in prop::collection::vec(arb_json(), 0..6)) {
        for vendor in VENDORS {
            let mut all = recorded(vendor);
            let middle = all.len() / 2;
            all.splice(middle..middle, values.clone());
            let _ = decode(vendor, &[&stream(&all)]);
            let _ = decode(vendor, &[&stream(&values)]);
        }
    }

    #[test]
    fn how_the_bytes_are_parted_changes_nothing(cuts in prop::collection::vec(1_usize..40, 1..60)) {
        for vendor in VENDORS {
            let bytes = stream(&recorded(vendor));
            let whole = decode(vendor, &[&bytes]).unwrap();
            let (mut rest, mut parts) = (&bytes[..], Vec::new());
            for cut in &cuts {
                let (part, left) = rest.split_at((*cut).min(rest.len()));
                parts.push(part);
                rest = left;
            }
            parts.push(rest);
            prop_assert_eq!(decode(vendor, &parts).unwrap(), whole);
        }
    }

    #[test]
    fn a_stream_that_is_cut_anywhere_is_no_answer(at in 0.0_f64..0.95) {
        for vendor in VENDORS {
            let values = recorded(vendor);
            let last = stream(&values[values.len() - 1..]).len();
            let bytes = stream(&values);
            // Before what says that it is over. For one format that is not the last event.
            let over = match vendor {
                Vendor::OpenAiChat | Vendor::DeepSeek => {
                    last + stream(&values[values.len() - 2..values.len() - 1]).len()
                }
                Vendor::Anthropic | Vendor::OpenAi | Vendor::Google => last,
            };
            #[expect(clippy::cast_possible_truncation, reason = "it is a part of the whole")]
            #[expect(clippy::cast_sign_loss, reason = "it is not negative")]
            let end = ((bytes.len() - over) as f64 * at) as usize;
            prop_assert_eq!(decode(vendor, &[&bytes[..end]]), Err(Fault::Cut));
        }
    }
}

#[test]
fn lines_end_in_every_way_and_data_has_several() {
    let (mut events, mut out) = (Events::default(), Vec::new());
    let text =
        b"\xef\xbb\xbfdata: a\rdata:b\n\r\n: comment\nevent: e\nid: 7\ndata\n\n\n\ndata: tail";
    events.push(text, &mut out).unwrap();
    let event = |name: &str, data: &str, id: &str| Event {
        name: name.to_owned(),
        data: data.to_owned(),
        id: id.to_owned(),
    };
    assert_eq!(out, [event("", "a\nb", ""), event("e", "", "7")]);
}

#[test]
fn a_line_and_a_stream_have_their_limits() {
    let mut events = Events::default();
    let block = vec![b'x'; 1024 * 1024];
    let pushed: Vec<_> = (0..4).map(|_| events.push(&block, &mut Vec::new())).collect();
    assert!(pushed[0].is_ok() && pushed[1].is_ok(), "{pushed:?}");
    assert!(matches!(pushed[2], Err(Fault::TooLong { what: "line", .. })), "{pushed:?}");
}

/// What the address of a request becomes.
#[track_caller]
fn check(vendor: &str, base: &str, path: &str, wanted: &str) {
    let start = Start {
        vendor: Some(vendor.to_owned()),
        model: Some("m".to_owned()),
        base_url: Some(base.to_owned()),
        ..Start::default()
    };
    let environment = Environment::from([("LLM_API_KEY".to_owned(), "k".to_owned())]);
    let endpoint = Endpoint::resolve(&start, &environment).unwrap();
    assert_eq!(endpoint.url(path).as_str(), wanted);
    assert!(!format!("{endpoint:?}").contains("\"k\""), "the key is not shown");
}

#[test]
fn a_base_url_is_taken_with_and_without_its_version() {
    for base in ["https://x.test", "https://x.test/", "https://x.test/v1", "https://x.test/v1/"] {
        check("anthropic", base, "messages", "https://x.test/v1/messages");
    }
    check("anthropic", "https://x.test/proxy", "messages", "https://x.test/proxy/v1/messages");
    check("google", "http://x.test", "models/m", "http://x.test/v1beta/models/m");
    check("google", "http://x.test/v1beta", "models/m", "http://x.test/v1beta/models/m");
    check("openai", "http://127.0.0.1:4010", "responses", "http://127.0.0.1:4010/responses");
    check("openai", "https://api.openai.com", "responses", "https://api.openai.com/v1/responses");
    check(
        "deepseek",
        "https://x.test/v1",
        "chat/completions",
        "https://x.test/v1/chat/completions",
    );
}
