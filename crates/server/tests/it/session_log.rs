//! The log of a session without a socket: as it grows, and as a transcript.

use axum::body::Body;
use futures_util::StreamExt;
use serde_json::{Value, json};

use crate::client::{Answer, Client};
use crate::harness::Setup;
use crate::talk::{Talk, path_of, says, session, start, without_gaps};

const PROMPT: &str = "Mock agent ready. Tell me what to send next. Type `help` for options.";

async fn accepting(client: &Client, path: &str, kind: &str) -> Answer {
    let request = client.request("GET", path).header("accept", kind);
    client.send(request.body(Body::empty()).unwrap()).await
}

#[tokio::test]
async fn who_reads_along_gets_every_event_once_and_takes_nobodys_place() {
    let (server, _daemon) = start(Setup::new()).await;
    let ann = server.tenant("ann").await;
    let made = session(&ann, "ann").await;
    let path = format!("{}/events", path_of(&made));
    let mut talk = Talk::with(&made).await;
    talk.until(says(PROMPT)).await;
    let open = async |after: Option<&str>| {
        let mut request = ann.request("GET", &path).header("accept", "text/event-stream");
        if let Some(after) = after {
            request = request.header("last-event-id", after);
        }
        ann.open(request.body(Body::empty()).unwrap()).await.events()
    };
    let mut stream = open(None).await;
    let mut seen = Vec::new();
    while seen.len() < 3 {
        seen.push(stream.next().await.unwrap().json());
    }
    drop(stream);
    let mut stream = open(Some("3")).await;
    talk.say(&json!({ "type": "message", "message": "echo both" })).await;
    let both = says("both");
    while !both(seen.last().unwrap()) {
        let sent = stream.next().await.unwrap();
        assert_eq!(sent.id, sent.json()["sequence"].to_string());
        seen.push(sent.json());
    }
    without_gaps(&seen, 0);
    talk.until(says("both")).await;
    accepting(&ann, &format!("{path}?to=3"), "text/event-stream").await.refuses("to");
    server.stop().await;
}

#[tokio::test]
async fn a_transcript_is_for_people_or_for_programs_and_for_nobody_else() {
    let (server, _daemon) = start(Setup::new()).await;
    let (ann, bob) = (server.tenant("ann").await, server.tenant("bob").await);
    let made = session(&ann, "ann").await;
    let path = format!("{}/transcript", path_of(&made));
    let mut talk = Talk::with(&made).await;
    talk.until(says(PROMPT)).await;
    talk.say(&json!({ "type": "message", "message": "echo kept" })).await;
    talk.until(says("kept")).await;
    talk.until(says(PROMPT)).await;
    let markdown = ann.get(&path).await;
    assert_eq!(markdown.header("content-type"), "text/markdown; charset=utf-8");
    let text = String::from_utf8(markdown.bytes.to_vec()).unwrap();
    assert!(text.contains("## User\n\necho kept\n\n## Assistant\n\nkept\n"), "{text}");
    let lines = accepting(&ann, &path, "application/jsonl").await;
    assert_eq!(lines.header("content-type"), "application/jsonl");
    let text = String::from_utf8(lines.bytes.to_vec()).unwrap();
    let roles: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["role"].clone())
        .collect();
    assert_eq!(roles, ["assistant", "user", "assistant", "assistant"]);
    for of_ann in ["", "/events", "/transcript"] {
        bob.get(&format!("{}{of_ann}", path_of(&made))).await.problem(404, "not_found");
    }
    server.stop().await;
}
