//! A server that dies between making a sandbox for a session and writing down whose it is.

use std::sync::Arc;
use std::time::Duration;

use driver::fake::Step;
use jiff::Timestamp;
use serde_json::json;
use store::{SessionRecord, Store};
use tokio::time::sleep;

use super::parts::{Daemon, Made, becomes, is_prompt, server_with_a_manual_clock, wanted};
use crate::client::Client;
use crate::harness::{Setup, TestServer};

/// As it is set.
const SWEEP: Duration = Duration::from_secs(10);

/// Waits until the sandbox does not run; no time passes for it meanwhile.
async fn goes(client: &Client, made: &Made) {
    let path = format!("/v1/sandboxes/{}", made.sandbox);
    for _ in 0..1000 {
        let seen = client.get(&path).await.json(200);
        if seen["state"] == "destroyed" {
            assert_eq!(seen["end_reason"], "user_request");
            return;
        }
        sleep(Duration::from_millis(10)).await;
    }
    panic!("{} is still there", made.sandbox);
}

/// As it is when its server dies before it says which sandbox the next life is in.
async fn cut_off_resume(store: &Store, made: &Made) {
    let (id, now) = (made.id.parse().unwrap(), Timestamp::now());
    let hour = Duration::from_secs(3600);
    store.claim_session(id, ("claim".into(), now + hour), (now, now - hour)).await.unwrap();
    store.begin_life(id, "claim".into(), (2, now + hour)).await.unwrap();
}

#[tokio::test]
async fn what_was_made_for_a_session_that_does_not_have_it_is_removed_by_the_next_server() {
    let daemon = Daemon::start().await;
    let server = server_with_a_manual_clock(&daemon).await;
    let (ann, bob) = (server.tenant("ann").await, server.tenant("bob").await);
    let body = wanted("usr_ann");
    let mut all = Vec::new();
    for _ in 0..3 {
        all.push(Made::new(&ann, &body).await);
    }
    let [created, resumed, runs] = &all[..] else { panic!("three") };
    // A user's own that says so: nobody believes it.
    let claims = json!({ "template": "standard", "metadata": { "session_id": created.id } });
    let own = format!("/v1/sandboxes/{}", bob.create(&claims).await["id"].as_str().unwrap());
    let (keys, driver) = ((ann.key.clone(), bob.key.clone()), server.driver.clone());
    let (clock, dir) = (server.clock.clone(), Arc::clone(&server.dir));
    server.stop().await;

    // As they are when a create is cut off there, and when a resume is.
    let store = crate::harness::store(dir.path());
    let id = created.id.parse().unwrap();
    let record = store.session(id).await.unwrap().unwrap();
    store.delete_session(id).await.unwrap();
    store.delete_session_log(id).await.unwrap();
    store.create_session(SessionRecord { sandbox: None, ..record }).await.unwrap();
    cut_off_resume(&store, resumed).await;
    drop(store);

    let pools = vec![(driver, None)];
    let server = Setup { clock, dir, pools, ..Setup::new() }.start().await;
    let ann = Client { key: keys.0, ..server.operator.clone() };
    let bob = Client { key: keys.1, ..server.operator.clone() };
    goes(&ann, created).await;
    goes(&ann, resumed).await;
    assert_eq!(becomes(&ann, resumed, "failed").await["reason"], "create_failed");
    assert_eq!(ann.get(&created.path()).await.status, 404, "nobody was answered");
    assert_eq!(bob.get(&own).await.json(200)["state"], "running");
    assert_eq!(ann.get(&runs.path()).await.json(200)["status"], "running");
    runs.attach(ann.address, 0).await.events_until(is_prompt).await;
    server.stop().await;
    daemon.stop().await;
}

/// Of a pool that did not answer when the server began to lead.
#[tokio::test]
async fn what_was_cut_off_in_a_pool_that_comes_back_is_removed_too() {
    let daemon = Daemon::start().await;
    let server = server_with_a_manual_clock(&daemon).await;
    let ann = server.tenant("ann").await;
    let (made, runs) =
        (Made::new(&ann, &wanted("usr_ann")).await, Made::new(&ann, &wanted("usr_ann")).await);
    let (key, driver) = (ann.key.clone(), server.driver.clone());
    let (clock, dir) = (server.clock.clone(), Arc::clone(&server.dir));
    server.stop().await;
    let store = crate::harness::store(dir.path());
    cut_off_resume(&store, &made).await;
    drop(store);

    driver.set_reachable(false);
    let pools = vec![(driver.clone(), None)];
    let server = Setup { clock, dir, pools, ..Setup::new() }.start().await;
    let ann = Client { key, ..server.operator.clone() };
    // It was looked for.
    becomes(&ann, &made, "failed").await;
    driver.set_reachable(true);
    until_swept_away(&server, &ann, &made).await;
    runs.attach(ann.address, 0).await.events_until(is_prompt).await;
    server.stop().await;
    daemon.stop().await;
}

/// Lets the engine sweep, and less time pass than it takes to idle away.
async fn until_swept_away(server: &TestServer, client: &Client, made: &Made) {
    let path = format!("/v1/sandboxes/{}", made.sandbox);
    for _ in 0..4 {
        server.clock.advance(SWEEP);
        for _ in 0..100 {
            let seen = client.get(&path).await;
            if seen.status == 200 && seen.json(200)["state"] == "destroyed" {
                assert_eq!(seen.json(200)["end_reason"], "user_request");
                return;
            }
            sleep(Duration::from_millis(10)).await;
        }
    }
    panic!("{} is still there", made.sandbox);
}

#[tokio::test]
async fn what_is_being_made_for_a_session_is_its_own() {
    let daemon = Daemon::start().await;
    let server = server_with_a_manual_clock(&daemon).await;
    let ann = server.tenant("ann").await;
    server.driver.delay(Step::BootGuest, Duration::from_secs(1));
    let sweeps = async {
        for _ in 0..4 {
            sleep(Duration::from_millis(150)).await;
            assert_eq!(server.driver.count(), 1, "it is there, and not written down");
            server.clock.advance(SWEEP);
        }
    };
    let body = wanted("usr_ann");
    let (made, ()) = tokio::join!(Made::new(&ann, &body), sweeps);
    made.attach(ann.address, 0).await.events_until(is_prompt).await;
    let seen = ann.get(&format!("/v1/sandboxes/{}", made.sandbox)).await.json(200);
    assert_eq!(seen["state"], "running");
    server.stop().await;
    daemon.stop().await;
}

/// Its removal keeps the files: after the next life has begun it would keep those of before.
#[tokio::test]
async fn a_resume_waits_until_what_was_cut_off_is_gone() {
    let daemon = Daemon::start().await;
    let setup = Setup::new();
    setup.pools[0].0.set_agents(daemon.port);
    let server = setup.start().await;
    let ann = server.tenant("ann").await;
    let made = Made::new(&ann, &wanted("usr_ann")).await;
    let (key, driver, dir) = (ann.key.clone(), server.driver.clone(), Arc::clone(&server.dir));
    server.stop().await;
    let store = crate::harness::store(dir.path());
    cut_off_resume(&store, &made).await;
    drop(store);

    driver.delay(Step::Remove, Duration::from_secs(2));
    let server = Setup { dir, pools: vec![(driver, None)], ..Setup::new() }.start().await;
    let ann = Client { key, ..server.operator.clone() };
    let body = json!({ "chat_session_id": made.id });
    ann.post("/v1/sessions/resume", &body).await.json(200);
    let seen = ann.get(&format!("/v1/sandboxes/{}", made.sandbox)).await.json(200);
    assert_eq!(seen["state"], "destroyed");
    server.stop().await;
    daemon.stop().await;
}
