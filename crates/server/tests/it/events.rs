//! `GET /v1/events`: live, resumable, one owner's only.

use axum::body::Body;
use futures_util::{Stream, StreamExt};
use serde_json::json;

use crate::client::{Client, Sent, next};
use crate::harness::TestServer;

async fn follow(client: &Client, after: Option<&str>) -> impl Stream<Item = Sent> + Unpin + use<> {
    let mut request = client.request("GET", "/v1/events");
    if let Some(id) = after {
        request = request.header("last-event-id", id);
    }
    client.open(request.body(Body::empty()).unwrap()).await.events()
}

#[tokio::test]
async fn a_life_is_told_with_its_reasons() {
    let server = TestServer::start().await;
    let operator = &server.operator;
    let mut events = follow(operator, None).await;
    let path = operator.sandbox().await;
    operator.patch(&path, &json!({ "name": "better" })).await.json(200);
    for verb in ["pause", "resume", "stop"] {
        operator.post_nothing(&format!("{path}/{verb}")).await.json(200);
    }
    operator.delete(&path).await.json(200);
    let id = path.rsplit('/').next().unwrap();
    for (kind, reason) in [
        ("lifecycle.created", None),
        ("lifecycle.running", None),
        ("lifecycle.renamed", None),
        ("lifecycle.paused", None),
        ("lifecycle.resumed", None),
        ("lifecycle.stopped", Some("user_request")),
        ("lifecycle.destroyed", Some("user_request")),
    ] {
        let sent = next(&mut events, kind).await;
        let data = sent.json();
        assert_eq!(data["type"], kind);
        assert_eq!(data["sandbox_id"], id);
        assert_eq!(data["id"], sent.id);
        assert_eq!(data["reason"].as_str(), reason, "{kind}");
        assert!(data["at"].as_str().unwrap().ends_with('Z'));
        assert!(data["data"].is_object());
    }
    server.stop().await;
}

#[tokio::test]
async fn nothing_is_missed_between_two_connections() {
    let server = TestServer::start().await;
    let operator = &server.operator;
    let mut events = follow(operator, None).await;
    let first = operator.sandbox().await;
    let seen = next(&mut events, "lifecycle.running").await;
    drop(events);
    operator.delete(&first).await.json(200);
    let second = operator.sandbox().await;

    let mut events = follow(operator, Some(&seen.id)).await;
    let gone = next(&mut events, "lifecycle.destroyed").await;
    let made = next(&mut events, "lifecycle.created").await;
    assert!(first.ends_with(gone.json()["sandbox_id"].as_str().unwrap()));
    assert!(second.ends_with(made.json()["sandbox_id"].as_str().unwrap()));
    let number = |sent: &Sent| sent.id.parse::<i64>().unwrap();
    assert!(number(&seen) < number(&gone) && number(&gone) < number(&made));
    server.stop().await;
}

#[tokio::test]
async fn events_of_others_are_not_told() {
    let server = TestServer::start().await;
    let (ann, bob) = (server.tenant("ann").await, server.tenant("bob").await);
    let mut events = follow(&ann, None).await;
    bob.sandbox().await;
    let own = ann.sandbox().await;
    let first = events.next().await.unwrap();
    assert!(own.ends_with(first.json()["sandbox_id"].as_str().unwrap()));
    let mut replayed = follow(&ann, Some("0")).await;
    let first = next(&mut replayed, "lifecycle.created").await;
    assert!(own.ends_with(first.json()["sandbox_id"].as_str().unwrap()));
    server.stop().await;
}

#[tokio::test]
async fn a_bad_id_is_refused() {
    let server = TestServer::start().await;
    let operator = &server.operator;
    for id in ["x", "1.5", ""] {
        let request = operator.request("GET", "/v1/events").header("last-event-id", id);
        let answer = operator.send(request.body(Body::empty()).unwrap()).await;
        answer.refuses("Last-Event-ID");
    }
    server.stop().await;
}
