//! The WebSocket of a session: who gets in, what comes, what is taken, and how it ends.

use std::time::Duration;

use axum::body::Body;
use futures_util::{SinkExt, StreamExt};
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use ring::hmac;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_tungstenite::tungstenite::Message;

use crate::client::Client;
use crate::harness::{Setup, TestServer};
use crate::talk::{Closed, Talk, path_of, raw_upgrade, says, session, start, wanted, without_gaps};

/// Pieces of a message, some 20 MB as events.
const FLOOD: u64 = 60_000;
const PROMPT: &str = "Mock agent ready. Tell me what to send next. Type `help` for options.";

fn is_displaced(closed: &Closed) -> bool {
    closed.0 == 1011 && closed.1 != "upstream unavailable"
}

/// As the server makes them.
fn mint(server: &TestServer, change: impl FnOnce(&mut Value)) -> String {
    let key = std::fs::read(server.dir.path().join("signing.key")).unwrap();
    let key = hmac::Key::new(hmac::HMAC_SHA256, &key);
    let tag = hmac::sign(&key, b"bastide key for\nsession tokens");
    let mut claims = json!({
        "iss": "bastide", "aud": "bastide:session", "user_id": "usr_ann", "tenant_id": "usr_ann",
        "app_id": "a", "set_id": "default", "cua_enabled": false, "jti": "x",
        "chat_session_id": "ses_00000000000000000000000001", "exp": 4_000_000_000_u64,
    });
    change(&mut claims);
    let header = Header::new(Algorithm::HS256);
    encode(&header, &claims, &EncodingKey::from_secret(tag.as_ref())).unwrap()
}

#[tokio::test]
async fn a_prober_learns_nothing_about_which_sessions_exist() {
    let (server, _daemon) = start(Setup::new()).await;
    let ann = server.tenant("ann").await;
    let made = session(&ann, "ann").await;
    let id = made["chat_session_id"].as_str().unwrap().to_owned();
    let url = made["connect_url"].as_str().unwrap();
    let none = "ses_00000000000000000000000001";
    let nowhere = url.replace(&id, none);
    let good = made["jwt"].as_str().unwrap();
    let own = |claims: &mut Value| claims["chat_session_id"] = id.as_str().into();
    let expired = mint(&server, |claims| {
        own(claims);
        claims["exp"] = 1.into();
    });
    let of_none = mint(&server, |_| {});
    let of_another_tenant = mint(&server, |claims| {
        own(claims);
        claims["tenant_id"] = "usr_bob".into();
    });
    let account = server.account("bob").await.key.unwrap();
    let key = ann.key.clone().unwrap();
    for (url, token, status) in [
        (url, None, 401),
        (url, Some("x"), 401),
        (url, Some(key.as_str()), 401),
        (url, Some(account.as_str()), 401),
        (url, Some(expired.as_str()), 401),
        (nowhere.as_str(), Some(expired.as_str()), 401),
        // A good one that is for something else: the same, whether that is there or not.
        (nowhere.as_str(), Some(good), 403),
        (url, Some(of_none.as_str()), 403),
        (nowhere.as_str(), Some(of_none.as_str()), 401),
        (url, Some(of_another_tenant.as_str()), 403),
    ] {
        let answered = Talk::open(url, token).await.err();
        assert_eq!(answered, Some(status), "{url} {token:?}");
    }
    Talk::with(&made).await;
    Talk::open(&format!("{url}?token={good}"), None).await.unwrap();
    let other = session(&ann, "ann").await;
    let other = other["jwt"].as_str().unwrap();
    assert_eq!(Talk::open(url, Some(other)).await.err(), Some(403));
    // The token opens its socket and nothing else.
    let with_token = Client { key: Some(good.to_owned()), ..ann.clone() };
    with_token.get(&path_of(&made)).await.problem(401, "unauthorized");
    ann.delete(&path_of(&made)).await.json(200);
    assert_eq!(Talk::open(url, Some(good)).await.err(), Some(401));
    server.stop().await;
}

#[tokio::test]
async fn a_request_that_is_no_good_handshake_is_refused() {
    let (server, _daemon) = start(Setup::new()).await;
    let ann = server.tenant("ann").await;
    let made = session(&ann, "ann").await;
    let (path, jwt) = (format!("{}/ws", path_of(&made)), made["jwt"].as_str().unwrap());
    let nobody = server.nobody();
    let authorized = format!("Bearer {jwt}");
    let twice = format!("{path}?token={jwt}&token={jwt}");
    let both = format!("{path}?token={jwt}");
    let handshake = [
        ("connection", "keep-alive, Upgrade"),
        ("upgrade", "WebSocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];
    let send = async |path: &str, headers: &[(&str, &str)]| {
        let mut request = nobody.request("GET", path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        nobody.send(request.body(Body::empty()).unwrap()).await
    };
    let with = |name: &'static str, value: &'static str| {
        let mut headers = vec![("authorization", authorized.as_str())];
        let kept = handshake.iter().filter(|(known, _)| *known != name);
        headers.extend(kept.copied());
        if !value.is_empty() {
            headers.push((name, value));
        }
        headers
    };
    send(&path, &[("authorization", &authorized)]).await.problem(426, "upgrade_required");
    for (name, value) in
        [("upgrade", "h2c"), ("connection", "close"), ("sec-websocket-version", "8")]
    {
        let answer = send(&path, &with(name, value)).await;
        answer.problem(426, "upgrade_required");
        assert_eq!(answer.header("sec-websocket-version"), "13");
    }
    for key in ["", "short", "dGhlIHNhbXBsZSBub25jZQ"] {
        send(&path, &with("sec-websocket-key", key)).await.refuses("Sec-WebSocket-Key");
    }
    send(&twice, &handshake).await.refuses("token");
    send(&both, &with("none", "")).await.refuses("token");
    send(&format!("{path}?from=x"), &with("none", "")).await.refuses("from");
    send(&format!("{path}?surprise=1"), &with("none", "")).await.refuses("surprise");
    server.stop().await;
}

#[tokio::test]
async fn what_comes_is_what_the_log_has_from_wherever_it_is_wanted() {
    let (server, _daemon) = start(Setup::new()).await;
    let ann = server.tenant("ann").await;
    let made = session(&ann, "ann").await;
    let mut talk = Talk::with(&made).await;
    let mut seen = talk.until(says(PROMPT)).await;
    talk.say(&json!({ "type": "message", "message": "echo one" })).await;
    seen.extend(talk.until(says("one")).await);
    seen.extend(talk.until(says(PROMPT)).await);
    without_gaps(&seen, 0);
    let last = seen.len() as u64;
    let log = ann.get(&format!("{}/events?to={last}", path_of(&made))).await.json(200);
    assert_eq!(log["events"].as_array().unwrap(), &seen);
    for event in &seen {
        assert_eq!(event["session_id"], made["chat_session_id"]);
    }
    for from in [0, 1, last / 2, last - 1] {
        let mut again = Talk::after(&made, Some(from)).await;
        let count = seen.len() - usize::try_from(from).unwrap();
        let mut rest = Vec::new();
        while rest.len() < count {
            rest.push(again.next().await.unwrap());
        }
        assert_eq!(rest, seen[usize::try_from(from).unwrap()..]);
    }
    // The same by the first frame.
    let mut framed = Talk::with(&made).await;
    framed.say(&json!({ "type": "from", "sequence": last - 1 })).await;
    assert_eq!(framed.next().await.unwrap(), *seen.last().unwrap());
    framed.say(&json!({ "type": "from", "sequence": 1 })).await;
    assert_eq!(framed.control().await["code"], "from_not_first");
    // And by ranges.
    let part = ann.get(&format!("{}/events?from=1&limit=2", path_of(&made))).await.json(200);
    assert_eq!(part["events"].as_array().unwrap(), &seen[1..3]);
    assert_eq!(part["has_more"], true);
    server.stop().await;
}

#[tokio::test]
async fn a_position_beyond_the_log_is_told_and_nothing_is_skipped() {
    let (server, _daemon) = start(Setup::new()).await;
    let ann = server.tenant("ann").await;
    let made = session(&ann, "ann").await;
    let mut talk = Talk::after(&made, Some(1_000_000)).await;
    let told = talk.next().await.unwrap();
    assert_eq!((&told["event"], &told["code"]), (&json!("error"), &json!("from_beyond_log")));
    assert_eq!(talk.closed().await, Closed(1008, "from beyond the log".into()));
    server.stop().await;
}

#[tokio::test]
async fn a_second_client_takes_the_place_of_the_first() {
    let (server, _daemon) = start(Setup::new()).await;
    let ann = server.tenant("ann").await;
    let made = session(&ann, "ann").await;
    let mut first = Talk::with(&made).await;
    first.until(says(PROMPT)).await;
    let mut second = Talk::with(&made).await;
    let closed = first.closed().await;
    assert!(is_displaced(&closed), "{closed:?}");
    second.until(says(PROMPT)).await;
    second.say(&json!({ "type": "message", "message": "echo still here" })).await;
    second.until(says("still here")).await;
    server.stop().await;
}

#[tokio::test]
async fn a_bad_frame_is_answered_and_the_connection_goes_on() {
    let (server, _daemon) = start(Setup::new()).await;
    let ann = server.tenant("ann").await;
    let made = session(&ann, "ann").await;
    let mut talk = Talk::with(&made).await;
    talk.until(says(PROMPT)).await;
    for (bad, field) in [
        ("", "body"),
        ("[]", "body"),
        ("\u{0}\u{ffff}", "body"),
        (r#"{"type":"dance"}"#, "type"),
        (r#"{"type":"message"}"#, "message"),
        (r#"{"type":"message","message":"a","as":"root"}"#, "as"),
        (r#"{"type":"interrupt","hard":true}"#, "hard"),
        (r#"{"type":"question.reply","question_id":"q","answers":["a"]}"#, "answers[0]"),
    ] {
        talk.say_text(bad).await;
        let told = talk.control().await;
        assert_eq!((&told["type"], &told["event"]), (&json!("system"), &json!("error")), "{bad}");
        assert_eq!(told["code"], "invalid_frame");
        let detail = told["detail"].as_str().unwrap();
        assert!(detail.starts_with(&format!("{field}: ")), "{bad}: {detail}");
    }
    talk.0.send(Message::binary(vec![0xff; 100])).await.unwrap();
    assert_eq!(talk.control().await["code"], "invalid_frame");
    let reply = json!({ "type": "permission.reply", "permission_id": "none", "reply": "once" });
    talk.say(&reply).await;
    assert_eq!(talk.control().await["event"], "error");
    // A flood of them is answered one by one; none is kept.
    for _ in 0..2000 {
        talk.0.feed(Message::text("nonsense")).await.unwrap();
    }
    talk.0.flush().await.unwrap();
    for _ in 0..2000 {
        assert_eq!(talk.control().await["code"], "invalid_frame");
    }
    talk.say(&json!({ "type": "message", "message": "echo alive" })).await;
    talk.until(says("alive")).await;
    server.stop().await;
}

#[tokio::test]
async fn who_breaks_the_protocol_is_told_why_it_ends() {
    let (server, _daemon) = start(Setup::new()).await;
    let ann = server.tenant("ann").await;
    let made = session(&ann, "ann").await;
    let mut huge = Talk::with(&made).await;
    let frame = format!("{{\"type\":\"message\",\"message\":\"{}\"}}", "x".repeat(2 << 20));
    // The server may stop reading before it has all of it.
    let _ = huge.0.send(Message::text(frame)).await;
    assert_eq!(huge.closed().await, Closed(1009, "frame too large".into()));
    // Masked frames, written by hand: text that is no UTF-8, and an opcode that does not exist.
    for (frame, expected) in [
        (&[0x81, 0x82, 0, 0, 0, 0, 0xc3, 0x28][..], Closed(1007, "not UTF-8".into())),
        (&[0x83, 0x80, 0, 0, 0, 0][..], Closed(1002, "protocol error".into())),
        (&[0x81, 0x01, b'x'][..], Closed(1002, "protocol error".into())),
    ] {
        let mut talk = Talk::with(&made).await;
        talk.until(says(PROMPT)).await;
        talk.0.get_mut().write_all(frame).await.unwrap();
        assert_eq!(talk.closed().await, expected);
    }
    Talk::with(&made).await.until(says(PROMPT)).await;
    server.stop().await;
}

#[tokio::test]
async fn the_end_of_the_server_and_of_the_sandbox_are_told() {
    let (server, _daemon) = start(Setup::new()).await;
    let ann = server.tenant("ann").await;
    let made = session(&ann, "ann").await;
    let mut talk = Talk::with(&made).await;
    talk.until(says(PROMPT)).await;
    ann.delete(&path_of(&made)).await.json(200);
    assert_eq!(talk.closed().await, Closed(1001, "sandbox destroyed".into()));
    let made = session(&ann, "ann").await;
    let mut talk = Talk::with(&made).await;
    talk.until(says(PROMPT)).await;
    let sandbox = format!("/v1/sandboxes/{}", made["sandbox_id"].as_str().unwrap());
    ann.delete(&sandbox).await.json(200);
    assert_eq!(talk.closed().await, Closed(1001, "sandbox destroyed".into()));
    // Nothing of it runs any more.
    let mut late = Talk::with(&made).await;
    assert_eq!(late.closed().await, Closed(1011, "upstream unavailable".into()));
    let made = session(&ann, "ann").await;
    let mut talk = Talk::with(&made).await;
    talk.until(says(PROMPT)).await;
    let (closed, ()) = tokio::join!(talk.closed(), server.stop());
    assert_eq!(closed, Closed(1001, "server shutting down".into()));
}

#[tokio::test]
async fn a_client_is_pinged_and_one_that_is_silent_is_let_go() {
    let (server, _daemon) = start(Setup::with("rt_ping_seconds = 1\n")).await;
    let ann = server.tenant("ann").await;
    let made = session(&ann, "ann").await;
    let mut talk = Talk::with(&made).await;
    talk.until(says(PROMPT)).await;
    let mut pings = 0;
    while pings < 3 {
        // Reading is what answers them.
        pings += u32::from(matches!(talk.0.next().await, Some(Ok(Message::Ping(_)))));
    }
    talk.say(&json!({ "type": "message", "message": "echo answered" })).await;
    talk.until(says("answered")).await;
    // Bytes of pings that nobody answers; read without a WebSocket.
    let mut raw = raw_upgrade(&made).await;
    let mut all = Vec::new();
    raw.read_to_end(&mut all).await.unwrap();
    let close = [&[0x88, 20, 0x03, 0xe9][..], b"no answer to pings"].concat();
    assert!(all.windows(close.len()).any(|window| window == close), "no close frame");
    server.stop().await;
}

#[tokio::test]
async fn a_client_that_reads_nothing_is_let_go_and_comes_back_for_the_rest() {
    let (server, _daemon) = start(Setup::with("[limits]\nbody_timeout_seconds = 1\n")).await;
    let ann = server.tenant("ann").await;
    let made = session(&ann, "ann").await;
    let mut talk = Talk::with(&made).await;
    talk.until(says(PROMPT)).await;
    // More than fits between us.
    talk.say(&json!({ "type": "message", "message": format!("flood {FLOOD}") })).await;
    let log = format!("/v1/sessions/{}/events?limit=1", made["chat_session_id"].as_str().unwrap());
    let mut last = 0;
    while last < FLOOD {
        tokio::time::sleep(Duration::from_millis(50)).await;
        last = ann.get(&log).await.json(200)["last_sequence"].as_u64().unwrap();
    }
    // Longer than it may read nothing.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let mut seen = Vec::new();
    let closed = loop {
        match talk.next().await {
            Ok(frame) if frame.get("sequence").is_some() => {
                seen.push(frame["sequence"].as_u64().unwrap())
            }
            Ok(_) => {}
            Err(closed) => break closed,
        }
    };
    assert_eq!(closed, Closed(1008, "client too slow".into()));
    let mut next = *seen.last().unwrap() + 1;
    assert!(next <= last, "it was given all of it");
    let mut again = Talk::after(&made, Some(next - 1)).await;
    while next <= last {
        assert_eq!(again.next().await.unwrap()["sequence"], next);
        next += 1;
    }
    server.stop().await;
}

#[tokio::test]
async fn the_second_listener_takes_sockets_and_nothing_else() {
    let (server, _daemon) = start(Setup::with("rt_listen = '127.0.0.1:0'\n")).await;
    let ann = server.tenant("ann").await;
    let made = session(&ann, "ann").await;
    let url = made["connect_url"].as_str().unwrap();
    assert!(!url.contains(&ann.address.to_string()), "{url}");
    Talk::with(&made).await.until(says(PROMPT)).await;
    let address = url.strip_prefix("ws://").unwrap().split('/').next().unwrap();
    let there = Client { address: address.parse().unwrap(), ..ann.clone() };
    there.get("/v1/sessions").await.problem(404, "not_found");
    there.get("/healthz").await.problem(404, "not_found");
    // The first one takes them as well.
    let here = url.replace(address, &ann.address.to_string());
    Talk::open(&here, made["jwt"].as_str()).await.unwrap().until(says(PROMPT)).await;
    server.stop().await;
}

#[tokio::test]
async fn the_plain_form_says_the_same_log_plainly() {
    let (server, _daemon) = start(Setup::new()).await;
    let ann = server.tenant("ann").await;
    let mut body = wanted("usr_ann");
    body["wire_version"] = 1.into();
    let made = ann.post("/v1/sessions", &body).await.json(201);
    let mut talk = Talk::with(&made).await;
    talk.say(&json!({ "type": "message", "message": "tool" })).await;
    let is_result = |frame: &Value| frame["type"] == "tool" && frame["state"] == "failed";
    let frames = talk.until(is_result).await;
    let kinds: Vec<_> = frames.iter().map(|frame| frame["type"].as_str().unwrap()).collect();
    assert!(kinds.iter().all(|kind| ["text", "tool", "done"].contains(kind)), "{kinds:?}");
    let called = frames.iter().find(|frame| frame["state"] == "called").unwrap();
    assert_eq!(called["name"], "mock.search");
    // What was seen is not said again.
    let from = frames.last().unwrap()["sequence"].as_u64().unwrap();
    let mut again = Talk::after(&made, Some(from)).await;
    assert!(again.next().await.unwrap()["sequence"].as_u64().unwrap() > from);
    server.stop().await;
}
