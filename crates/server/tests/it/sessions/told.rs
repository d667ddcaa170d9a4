//! What a client is told of its sandbox beside the log, and how a session ends when its time is
//! over.

use std::time::Duration;

use serde_json::json;

use super::parts::{
    Came, Daemon, Made, becomes, is_prompt, server, server_with_a_manual_clock, wanted,
};

#[tokio::test]
async fn every_cancel_reaches_the_client() {
    let daemon = Daemon::start().await;
    let server = server(&daemon).await;
    let ann = server.tenant("ann").await;
    let made = Made::new(&ann, &wanted("usr_ann")).await;
    let mut socket = made.attach(ann.address, 0).await;
    socket.events_until(is_prompt).await;
    let path = format!("/v1/sandboxes/{}/cancel", made.sandbox);
    for reason in ["credits_exhausted", "user_request", "admin_action", "timeout"] {
        let told = ann.post(&path, &json!({ "reason": reason })).await.json(200);
        assert_eq!(told["cancelled"], true);
        let frame = socket.control().await;
        assert_eq!(frame, json!({ "type": "system", "event": "cancel", "reason": reason }));
    }
    server.stop().await;
    daemon.stop().await;
}

#[tokio::test]
async fn ten_seconds_before_its_time_is_over_the_client_is_warned() {
    let daemon = Daemon::start().await;
    let server = server_with_a_manual_clock(&daemon).await;
    let ann = server.tenant("ann").await;
    let made = Made::new(&ann, &wanted("usr_ann")).await;
    let mut socket = made.attach(ann.address, 0).await;
    socket.events_until(is_prompt).await;
    server.clock.advance(Duration::from_secs(3595));
    let warned = json!({ "type": "system", "event": "cancel", "reason": "timeout" });
    assert_eq!(socket.control().await, warned);
    server.clock.advance(Duration::from_secs(30));
    let (events, over) = socket.rest().await;
    let [.., error, ended] = &events[..] else { panic!("{events:?}") };
    assert_eq!(error["data"]["code"], "lifetime");
    assert_eq!(ended["data"]["reason"], "completed");
    assert_eq!(over, Came::Close(1001, "sandbox destroyed".into()));
    assert_eq!(becomes(&ann, &made, "completed").await["reason"], "lifetime");
    server.stop().await;
    daemon.stop().await;
}
