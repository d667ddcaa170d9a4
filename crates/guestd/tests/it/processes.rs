//! `process.Process` of envd.

use serde_json::json;

use crate::commands::is_alive;
use crate::guest::TestGuest;
use crate::wire::{call, encode, open, output, send, shell, stream};

const START: &str = "process.Process/Start";

#[tokio::test]
async fn a_process_starts_writes_and_ends() {
    let guest = TestGuest::start();
    let (messages, end) = stream(&guest, START, &[], shell("echo out; echo err >&2")).await;
    assert!(messages[0]["event"]["start"]["pid"].as_u64().unwrap() > 0, "start comes first");
    assert_eq!(output(&messages, "stdout"), "out\n");
    assert_eq!(output(&messages, "stderr"), "err\n");
    // The exit code 0 is left out, as protobuf does.
    let ended = json!({ "event": { "end": { "exited": true, "status": "exit status 0" } } });
    assert_eq!(messages.last().unwrap(), &ended);
    assert_eq!(end, json!({}));
}

#[tokio::test]
async fn a_failed_process_says_how() {
    let guest = TestGuest::start();
    let (messages, _) = stream(&guest, START, &[], shell("exit 9")).await;
    let status = "exit status 9";
    let expected = json!({ "exitCode": 9, "exited": true, "status": status, "error": status });
    assert_eq!(messages.last().unwrap()["event"]["end"], expected);
    let (messages, _) = stream(&guest, START, &[], shell("kill -9 $$")).await;
    let status = "signal: killed";
    let expected = json!({ "exitCode": -1, "status": status, "error": status });
    assert_eq!(messages.last().unwrap()["event"]["end"], expected);
}

#[tokio::test]
async fn the_stream_lasts_until_the_pipes_are_closed() {
    let guest = TestGuest::start();
    let (messages, _) =
        stream(&guest, START, &[], shell("(sleep 0.3; echo late) & echo early")).await;
    assert_eq!(output(&messages, "stdout"), "early\nlate\n");
}

#[tokio::test]
async fn what_cannot_start_ends_the_stream_with_an_error() {
    let guest = TestGuest::start();
    let check = async |message, headers: &[&str], code: &str, text: &str| {
        let (messages, end) = stream(&guest, START, headers, message).await;
        assert!(messages.is_empty(), "{messages:?}");
        assert_eq!(end["error"]["code"], code, "{end}");
        assert_eq!(end["error"]["message"], text);
    };
    let nowhere = json!({ "process": { "cmd": "/bin/true", "cwd": "/no/such" } });
    check(nowhere, &[], "invalid_argument", "cwd '/no/such' does not exist").await;
    let basic = format!("Authorization: Basic {}", encode("who:"));
    check(shell("true"), &[&basic], "unauthenticated", "invalid username: 'who'").await;
    let missing = json!({ "process": { "cmd": "/no/such" } });
    check(missing, &[], "invalid_argument", "no such program: /no/such").await;
}

#[tokio::test]
async fn a_named_user_is_taken_from_the_authorization() {
    let guest = TestGuest::start();
    let basic = format!("Authorization: Basic {}", encode("me:"));
    let (messages, _) = stream(&guest, START, &[&basic], shell("echo $USER")).await;
    assert_eq!(output(&messages, "stdout"), "me\n");
}

#[tokio::test]
async fn the_timeout_of_a_start_ends_the_process() {
    let guest = TestGuest::start();
    let headers = ["Connect-Timeout-Ms: 300"];
    let (messages, end) = stream(&guest, START, &headers, shell("echo $$; sleep 300")).await;
    assert_eq!(end["error"]["code"], "deadline_exceeded", "{end}");
    assert!(!is_alive(output(&messages, "stdout").trim()));
}

#[tokio::test]
async fn a_client_that_goes_away_does_not_end_the_process() {
    let guest = TestGuest::start();
    let mut first = open(&guest, START, shell("read line; echo got $line")).await;
    let pid = first.next().await["event"]["start"]["pid"].as_u64().unwrap();
    drop(first);
    let mut second =
        open(&guest, "process.Process/Connect", json!({ "process": { "pid": pid } })).await;
    assert_eq!(second.next().await["event"]["start"]["pid"], pid);
    let input = json!({ "process": { "pid": pid }, "input": { "stdin": encode("it\n") } });
    assert_eq!(call(&guest, "process.Process/SendInput", input).await.json(), json!({}));
    assert_eq!(output(&[second.next().await], "stdout"), "got it\n");
}

#[tokio::test]
async fn two_readers_see_the_same_output() {
    let guest = TestGuest::start();
    let mut start = shell("read line; echo $line");
    start["tag"] = json!("tagged");
    let mut first = open(&guest, START, start).await;
    first.next().await;
    let selector = json!({ "process": { "tag": "tagged" } });
    let mut second = open(&guest, "process.Process/Connect", selector).await;
    second.next().await;
    let input = json!({ "process": { "tag": "tagged" }, "input": { "stdin": encode("x\n") } });
    call(&guest, "process.Process/SendInput", input).await;
    assert_eq!(output(&[first.next().await], "stdout"), "x\n");
    assert_eq!(output(&[second.next().await], "stdout"), "x\n");
}

#[tokio::test]
async fn a_finished_process_can_still_be_connected_to() {
    let guest = TestGuest::start();
    let (messages, _) = stream(&guest, START, &[], shell("echo gone; exit 4")).await;
    let pid = &messages[0]["event"]["start"]["pid"];
    let selector = json!({ "process": { "pid": pid } });
    let (again, _) = stream(&guest, "process.Process/Connect", &[], selector).await;
    assert_eq!(again.len(), 2, "{again:?}");
    assert_eq!(again[1]["event"]["end"]["exitCode"], 4);
}

#[tokio::test]
async fn running_processes_are_listed() {
    let guest = TestGuest::start();
    let empty = call(&guest, "process.Process/List", json!({})).await;
    assert_eq!(empty.json(), json!({}));
    let message = json!({
        "process": { "cmd": "/bin/cat", "args": ["-"], "envs": { "A": "b" }, "cwd": "/" },
        "tag": "a-tag",
    });
    let mut running = open(&guest, START, message).await;
    let pid = running.next().await["event"]["start"]["pid"].clone();
    let listed = call(&guest, "process.Process/List", json!({})).await.json();
    let config = json!({ "cmd": "/bin/cat", "args": ["-"], "envs": { "A": "b" }, "cwd": "/" });
    assert_eq!(listed, json!({ "processes": [{ "config": config, "pid": pid, "tag": "a-tag" }] }));
    call(&guest, "process.Process/CloseStdin", json!({ "process": { "pid": pid } })).await;
    assert_eq!(running.next().await["event"]["end"]["exited"], true);
}

#[tokio::test]
async fn after_sigkill_is_answered_the_process_is_gone() {
    let guest = TestGuest::start();
    for _ in 0..5 {
        let mut running = open(&guest, START, shell("sleep 300")).await;
        let pid = running.next().await["event"]["start"]["pid"].clone();
        let message = json!({ "process": { "pid": pid }, "signal": "SIGNAL_SIGKILL" });
        let answer = call(&guest, "process.Process/SendSignal", message.clone()).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
        let again = call(&guest, "process.Process/SendSignal", message).await;
        assert_eq!((again.status, again.json()["code"].as_str()), (404, Some("not_found")));
    }
}

#[tokio::test]
async fn sigterm_reaches_the_process() {
    let guest = TestGuest::start();
    let mut running = open(
        &guest,
        START,
        shell("trap 'echo bye; exit 3' TERM; echo up; while :; do sleep 0.05; done"),
    )
    .await;
    let pid = running.next().await["event"]["start"]["pid"].clone();
    assert_eq!(output(&[running.next().await], "stdout"), "up\n");
    let message = json!({ "process": { "pid": pid }, "signal": "SIGNAL_SIGTERM" });
    call(&guest, "process.Process/SendSignal", message).await;
    assert_eq!(output(&[running.next().await], "stdout"), "bye\n");
    assert_eq!(running.next().await["event"]["end"]["exitCode"], 3);
}

#[tokio::test]
async fn unknown_processes_are_not_found() {
    let guest = TestGuest::start();
    let nobody = json!({ "process": { "pid": 1 }, "signal": "SIGNAL_SIGKILL" });
    for procedure in ["SendSignal", "SendInput", "Update", "CloseStdin"] {
        let answer = call(&guest, &format!("process.Process/{procedure}"), nobody.clone()).await;
        assert_eq!((answer.status, answer.json()["code"].as_str()), (404, Some("not_found")));
    }
    let (_, end) = stream(&guest, "process.Process/Connect", &[], nobody).await;
    assert_eq!(end["error"]["code"], "not_found");
    let unknown = call(&guest, "process.Process/Dance", json!({})).await;
    assert_eq!((unknown.status, unknown.json()["code"].as_str()), (501, Some("unimplemented")));
}

#[tokio::test]
async fn without_stdin_a_process_reads_nothing() {
    let guest = TestGuest::start();
    let mut message = shell("cat; echo end");
    message["stdin"] = json!(false);
    let (messages, _) = stream(&guest, START, &[], message).await;
    assert_eq!(output(&messages, "stdout"), "end\n");
}

#[tokio::test]
async fn input_can_be_streamed() {
    let guest = TestGuest::start();
    let mut running = open(&guest, START, shell("head -c 6")).await;
    let pid = running.next().await["event"]["start"]["pid"].clone();
    let mut body = Vec::new();
    for message in [
        json!({ "start": { "process": { "pid": pid } } }),
        json!({ "data": { "input": { "stdin": encode("abc") } } }),
        json!({ "keepalive": {} }),
        json!({ "data": { "input": { "stdin": encode("def") } } }),
    ] {
        body.extend(crate::wire::enveloped(&message));
    }
    let kind = ["Content-Type: application/connect+json"];
    let answer = send(&guest, "POST /process.Process/StreamInput", &kind, &body).await;
    assert_eq!(answer.stream(), (vec![json!({})], json!({})));
    let mut got = output(&[running.next().await], "stdout");
    if got.len() < 6 {
        got += &output(&[running.next().await], "stdout");
    }
    assert_eq!(got, "abcdef");
}

#[tokio::test]
async fn a_terminal_has_its_size_and_takes_input() {
    let guest = TestGuest::start();
    let mut message = shell("stty size; read line; stty size; tty -s && echo tty");
    message["pty"] = json!({ "size": { "cols": 80, "rows": 24 } });
    let mut running = open(&guest, START, message).await;
    let pid = running.next().await["event"]["start"]["pid"].clone();
    assert_eq!(output(&[running.next().await], "pty"), "24 80\r\n");
    let size = json!({ "process": { "pid": pid }, "pty": { "size": { "cols": 100, "rows": 30 } } });
    assert_eq!(call(&guest, "process.Process/Update", size).await.status, 200);
    let stdin = json!({ "process": { "pid": pid }, "input": { "stdin": encode("x") } });
    let wrong = call(&guest, "process.Process/SendInput", stdin).await;
    assert_eq!(wrong.json()["code"], "failed_precondition");
    let input = json!({ "process": { "pid": pid }, "input": { "pty": encode("\n") } });
    assert_eq!(call(&guest, "process.Process/SendInput", input).await.status, 200);
    let mut all = String::new();
    loop {
        let message = running.next().await;
        if !message["event"]["end"].is_null() {
            break;
        }
        all += &output(&[message], "pty");
    }
    assert!(all.contains("30 100\r\n") && all.ends_with("tty\r\n"), "{all:?}");
}

#[tokio::test]
async fn a_quiet_stream_says_that_it_is_alive() {
    let guest = TestGuest::start();
    let headers = ["Keepalive-Ping-Interval: 1"];
    let (messages, _) = stream(&guest, START, &headers, shell("sleep 1.5")).await;
    assert!(messages.contains(&json!({ "event": { "keepalive": {} } })), "{messages:?}");
}

#[tokio::test]
async fn other_codecs_are_refused_clearly() {
    let guest = TestGuest::start();
    for (procedure, kind, offered) in [
        ("List", "application/proto", "application/json"),
        ("Start", "application/connect+proto", "application/connect+json"),
    ] {
        let line = format!("POST /process.Process/{procedure}");
        let answer = send(&guest, &line, &[&format!("Content-Type: {kind}")], b"").await;
        assert_eq!(answer.status, 415);
        assert!(answer.text().contains(offered), "{}", answer.text());
    }
    let malformed =
        send(&guest, "POST /process.Process/List", &["Content-Type: application/json"], b"{").await;
    assert_eq!(
        (malformed.status, malformed.json()["code"].as_str()),
        (400, Some("invalid_argument"))
    );
}

#[tokio::test]
async fn a_body_that_ends_late_does_not_cost_the_connection() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    let guest = TestGuest::start();
    let mut stream = tokio::net::UnixStream::connect(guest.socket()).await.unwrap();
    let message = json!({ "process": { "cmd": "/bin/true" } }).to_string();
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    let envelope = [&[0], &length[..], message.as_bytes()].concat();
    let head = format!(
        "POST /{START} HTTP/1.1\r\nhost: guest\r\ncontent-type: application/connect+json\r\n\
         transfer-encoding: chunked\r\n\r\n{:x}\r\n",
        envelope.len()
    );
    stream.write_all(&[head.as_bytes(), &envelope, b"\r\n"].concat()).await.unwrap();
    // Long enough for the process to have ended, if the guest did not wait for the rest.
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    stream.write_all(b"0\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n0\r\n\r\n") {
        assert!(stream.read_buf(&mut answer).await.unwrap() > 0, "closed in the middle");
    }
    stream.write_all(b"GET /health HTTP/1.1\r\nhost: guest\r\n\r\n").await.unwrap();
    let mut again = Vec::new();
    stream.read_buf(&mut again).await.unwrap();
    assert!(again.starts_with(b"HTTP/1.1 204"), "{}", String::from_utf8_lossy(&again));
}
