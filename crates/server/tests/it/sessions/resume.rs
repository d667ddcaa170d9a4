//! Going on in a fresh sandbox, and forks.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::double::{Double, item};
use super::metering::until;
use super::parts::{Came, Daemon, Made, becomes, is_prompt, log, says, sequence, server, wanted};
use crate::client::Client;
use crate::harness::Setup;

async fn resume(client: &Client, id: &str) -> Value {
    let body = json!({ "chat_session_id": id, "ttl_seconds": 3600 });
    client.post("/v1/sessions/resume", &body).await.json(200)
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_who_resume_at_once_get_one_answer_and_one_sandbox() {
    let daemon = Daemon::start().await;
    let server = server(&daemon).await;
    let ann = server.tenant("ann").await;
    let made = Made::new(&ann, &wanted("usr_ann")).await;
    made.attach(ann.address, 0).await.events_until(is_prompt).await;
    let asked = (0..50).map(|_| resume(&ann, &made.id));
    let answers = futures_util::future::join_all(asked).await;
    for answer in &answers {
        assert_eq!(answer, &answers[0]);
    }
    assert_eq!(answers[0]["resumed_from"]["previous_status"], "running");
    let resumed = Made::of(&answers[0]);
    assert_eq!(resumed.id, made.id);
    assert_ne!(resumed.sandbox, made.sandbox);
    let shown = ann.get(&made.path()).await.json(200);
    assert_eq!(shown["life"], 2);
    let list = ann.get("/v1/sandboxes").await.json(200);
    let running = |one: &&Value| one["state"] == "running";
    assert_eq!(list.as_array().unwrap().iter().filter(running).count(), 1, "{list}");
    server.stop().await;
    daemon.stop().await;
}

#[tokio::test]
async fn the_log_goes_on_and_the_files_and_the_old_client_is_told() {
    let daemon = Daemon::start().await;
    let server = server(&daemon).await;
    let ann = server.tenant("ann").await;
    let made = Made::new(&ann, &wanted("usr_ann")).await;
    let mut old = made.attach(ann.address, 0).await;
    old.say(&json!({ "type": "message", "message": "echo before" })).await;
    old.events_until(|event| says(event, "before")).await;
    let file = format!("/v1/sandboxes/{}/files?path=/workspace/kept.txt", made.sandbox);
    ann.upload(&file, "kept").await;
    let resumed = Made::of(&resume(&ann, &made.id).await);
    let (_, over) = old.rest().await;
    assert_eq!(over, Came::Close(1001, "sandbox destroyed".into()));
    let mut socket = resumed.attach(ann.address, 0).await;
    socket.say(&json!({ "type": "message", "message": "echo after" })).await;
    let events = socket.events_until(|event| says(event, "after")).await;
    assert!(events.iter().map(sequence).eq(1..=events.len() as u64));
    assert!(events.iter().any(|event| says(event, "before")));
    let file = format!("/v1/sandboxes/{}/files?path=/workspace/kept.txt", resumed.sandbox);
    let kept = ann.get(&file).await;
    assert_eq!((kept.status.as_u16(), &kept.bytes[..]), (200, &b"kept"[..]));
    server.stop().await;
    daemon.stop().await;
}

#[tokio::test]
async fn what_died_is_resumed_with_how_it_was() {
    let daemon = Daemon::start().await;
    let server = server(&daemon).await;
    let ann = server.tenant("ann").await;
    let made = Made::new(&ann, &wanted("usr_ann")).await;
    server.driver.kill(made.sandbox.parse().unwrap(), model::EndReason::Oom);
    becomes(&ann, &made, "failed").await;
    let answer = resume(&ann, &made.id).await;
    assert_eq!(answer["resumed_from"]["previous_status"], "failed");
    let resumed = Made::of(&answer);
    let mut socket = resumed.attach(ann.address, 0).await;
    socket.say(&json!({ "type": "message", "message": "echo alive" })).await;
    socket.events_until(|event| says(event, "alive")).await;
    server.stop().await;
    daemon.stop().await;
}

#[tokio::test]
async fn without_a_place_in_the_quota_it_is_refused_and_stays_as_it_was() {
    let daemon = Daemon::start().await;
    let server = server(&daemon).await;
    let ann = server.tenant("ann").await;
    let died = Made::new(&ann, &wanted("usr_ann")).await;
    let runs = Made::new(&ann, &wanted("usr_ann")).await;
    server.driver.kill(died.sandbox.parse().unwrap(), model::EndReason::Oom);
    let before = becomes(&ann, &died, "failed").await;
    // It has failed when its sandbox begins to go, and that one's place is free when it is gone.
    let path = format!("/v1/sandboxes/{}", died.sandbox);
    until(&ann, &path, |sandbox| sandbox["state"] == "destroyed").await;
    let (first, _second) = (ann.sandbox().await, ann.sandbox().await);
    let body = json!({ "chat_session_id": died.id });
    let refused = ann.post("/v1/sessions/resume", &body).await;
    refused.problem(429, "quota_exceeded");
    let wait: u64 = refused.header("retry-after").parse().unwrap();
    assert!((1..=3600).contains(&wait), "{wait}");
    assert_eq!(ann.get(&died.path()).await.json(200), before);
    // One that runs gives up its own place.
    assert_ne!(Made::of(&resume(&ann, &runs.id).await).sandbox, runs.sandbox);
    ann.delete(&first).await.json(200);
    Made::of(&resume(&ann, &died.id).await).attach(ann.address, 0).await;
    assert_eq!(ann.get(&died.path()).await.json(200)["life"], 2);
    server.stop().await;
    daemon.stop().await;
}

#[tokio::test]
async fn others_none_and_a_bundle_that_is_gone_are_told_apart_and_audited() {
    let daemon = Daemon::start().await;
    let server = server(&daemon).await;
    let (ann, bob) = (server.tenant("ann").await, server.tenant("bob").await);
    let bundle = json!({ "name": "keys", "values": { "LLM_API_KEY": "k" } });
    ann.post("/v1/tenants/me/secrets", &bundle).await.json(201);
    let mut body = wanted("usr_ann");
    body["secrets"] = json!(["keys"]);
    let made = Made::new(&ann, &body).await;
    let ask = |id: &str| json!({ "chat_session_id": id });
    let refused = bob.post("/v1/sessions/resume", &ask(&made.id)).await;
    assert_eq!(refused.status.as_u16(), 403);
    let none = "ses_01k9q5t0a7e8fbqjyx3mz2c4nd";
    bob.post("/v1/sessions/resume", &ask(none)).await.problem(404, "not_found");
    ann.delete("/v1/tenants/me/secrets/keys").await.json(200);
    let refused = ann.post("/v1/sessions/resume", &ask(&made.id)).await;
    refused.problem(502, "secret_bundle_not_found_at_resume");
    // It was not touched for that.
    made.attach(ann.address, 0).await.events_until(is_prompt).await;
    let store = crate::harness::store(server.dir.path());
    let entries = store.audit_log(0, 1000).await.unwrap();
    let denied = entries.iter().find(|one| one.entry.action == "cross_tenant_resume_denied");
    let denied = &denied.expect("it is in the audit log").entry;
    assert_eq!(denied.actor, "usr_bob");
    assert!(denied.target.contains("owner_tenant_id=usr_ann"), "{denied:?}");
    server.stop().await;
    daemon.stop().await;
}

#[tokio::test]
async fn a_fork_has_the_log_up_to_its_moment_and_the_files_and_goes_its_own_way() {
    let daemon = Daemon::start().await;
    let server = server(&daemon).await;
    let ann = server.tenant("ann").await;
    let made = Made::new(&ann, &wanted("usr_ann")).await;
    let mut socket = made.attach(ann.address, 0).await;
    let at = sequence(socket.events_until(is_prompt).await.last().unwrap());
    socket.say(&json!({ "type": "message", "message": "echo later" })).await;
    socket.events_until(|event| says(event, "later")).await;
    let file = format!("/v1/sandboxes/{}/files?path=/workspace/kept.txt", made.sandbox);
    ann.upload(&file, "kept").await;
    let path = format!("{}/fork", made.path());
    ann.post(&path, &json!({ "at": 100_000 })).await.refuses("at");
    ann.post(&path, &json!({ "ttl_seconds": 0 })).await.refuses("ttl_seconds");
    let before = Timestamp::now();
    let forked = ann.post(&path, &json!({ "at": at, "ttl_seconds": 100 })).await.json(201);
    let fork = Made::of(&forked);
    let time = |value: &Value| value.as_str().unwrap().parse::<Timestamp>().unwrap();
    let as_of = time(&forked["forked_from"]["workspace_as_of"]);
    assert!((before..=Timestamp::now()).contains(&as_of), "{as_of} is not after {before}");
    let lives = time(&forked["expires_at"]).as_second() - before.as_second();
    assert!((99..=200).contains(&lives), "{lives}");
    assert_eq!(forked["forked_from"]["at"], at);
    let mut other = fork.attach(ann.address, 0).await;
    other.say(&json!({ "type": "message", "message": "echo own" })).await;
    let events = other.events_until(|event| says(event, "own")).await;
    assert!(events.iter().map(sequence).eq(1..=events.len() as u64));
    assert!(events.iter().all(|event| event["session_id"] == fork.id));
    assert!(!events.iter().any(|event| says(event, "later")));
    let first = usize::try_from(at).unwrap();
    let parents = log(&ann, &made).await;
    for (of_fork, of_parent) in events[..first].iter().zip(&parents) {
        assert_eq!(of_fork["data"], of_parent["data"]);
    }
    assert!(parents.iter().any(|event| says(event, "later")));
    let file = format!("/v1/sandboxes/{}/files?path=/workspace/kept.txt", fork.sandbox);
    assert_eq!(&ann.get(&file).await.bytes[..], b"kept");
    server.stop().await;
    daemon.stop().await;
}

/// So much that only the end of it is told.
fn long_talk() -> Vec<Value> {
    let message = |n: usize| {
        let text = format!("message {n} {}", "x".repeat(1000));
        item("message", "user", &json!({ "type": "text", "text": text }))
    };
    (0..3000).map(message).collect()
}

#[tokio::test]
async fn an_agent_that_remembers_is_told_nothing_and_another_one_the_end_of_what_was_said() {
    for (resumed, tells) in [("native", false), ("no", true)] {
        let daemon = Double::start(resumed, long_talk()).await;
        let setup = Setup::new();
        setup.pools[0].0.set_agents(daemon.port);
        let server = setup.start().await;
        let ann = server.tenant("ann").await;
        let made = Made::new(&ann, &wanted("usr_ann")).await;
        for _ in 0..1000 {
            if log(&ann, &made).await.len() == 3000 {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        let before = daemon.puts().len();
        resume(&ann, &made.id).await;
        let puts: Vec<Value> = daemon.puts().split_off(before);
        assert_eq!(puts[0]["native_session_id"], "native-1");
        let told: Vec<&str> = puts.iter().filter_map(|put| put["history"].as_str()).collect();
        assert_eq!(puts[0]["history"], Value::Null, "nothing was read for it");
        assert_eq!(told.len(), usize::from(tells));
        for history in told {
            assert!((100 * 1024..=129 * 1024).contains(&history.len()), "{}", history.len());
            assert!(history.starts_with("User: message "), "whole messages");
            let lines: Vec<_> = history.split("\n\n").collect();
            assert!(lines.last().unwrap().starts_with("User: message 2999 "));
            let number = |line: &str| line.split(' ').nth(2).unwrap().parse::<usize>().unwrap();
            assert!(lines.iter().map(|line| number(line)).eq(3000 - lines.len()..3000));
        }
        server.stop().await;
    }
}
