//! Who resumes at once at two servers, also while one of them dies: everybody gets one answer, and there is one
//! sandbox.

use futures_util::future::join_all;
use model::SessionStatus;
use serde_json::{Value, json};
use tokio::time::{Duration, sleep};

use super::parts::{Dice, Made, becomes, is_prompt, log, wanted};
use super::town::Town;
use crate::client::Client;
use crate::harness::store;

const CALLERS: usize = 50;
/// Leaders that die.
const ROUNDS: u64 = 8;
/// At most so long after they were asked.
const DIES_WITHIN_MS: u64 = 250;

/// Asks, and asks another server when this one does not answer.
async fn resume(first: &Client, then: &Client, id: &str) -> Value {
    let body = json!({ "chat_session_id": id });
    for at in [first, then, then] {
        if let Some(answer) = at.try_post("/v1/sessions/resume", &body).await {
            return answer;
        }
    }
    panic!("nobody resumes it");
}

/// Half of the callers ask each of the servers; the second one does not die.
async fn all_resume(first: &Client, second: &Client, id: &str) -> Made {
    let asked = (0..CALLERS).map(|n| match n % 2 {
        0 => resume(first, second, id),
        _ => resume(second, second, id),
    });
    let answers = join_all(asked).await;
    for answer in &answers {
        assert_eq!(answer, &answers[0]);
    }
    Made::of(&answers[0])
}

/// Everything of that owner's that runs.
async fn running(at: &Client) -> Vec<String> {
    let list = at.get("/v1/sandboxes").await.json(200);
    let all = list.as_array().unwrap().iter().filter(|one| one["state"] == "running");
    all.map(|one| one["id"].as_str().unwrap().to_owned()).collect()
}

/// What was half made goes when it is found.
async fn until_one(town: &Town) {
    for _ in 0..500 {
        if town.driver.count() == 1 {
            return;
        }
        sleep(Duration::from_millis(10)).await;
    }
    panic!("{} sandboxes", town.driver.count());
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_who_resume_at_two_servers_get_one_answer_one_sandbox_and_one_life() {
    let (town, leader, follower) = Town::of_two().await;
    let ann = leader.tenant("ann").await;
    let there = follower.asked_by(&ann);
    let made = Made::new(&ann, &wanted("usr_ann")).await;
    made.attach(there.address, 0).await.events_until(is_prompt).await;
    let resumed = all_resume(&ann, &there, &made.id).await;
    assert_eq!(resumed.id, made.id);
    assert_ne!(resumed.sandbox, made.sandbox);
    assert_eq!(running(&there).await, [&*resumed.sandbox]);
    assert_eq!(town.driver.count(), 1);
    let shown = there.get(&made.path()).await.json(200);
    assert_eq!((&shown["life"], &shown["sandbox_id"]), (&json!(2), &json!(resumed.sandbox)));
    let mut socket = resumed.attach(there.address, 0).await;
    socket.echo("once").await;
    let began = |event: &&Value| event["type"] == "session.started" && event["source"] == "daemon";
    assert_eq!(log(&ann, &made).await.iter().filter(began).count(), 2);
    town.end([follower, leader]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_dies_in_a_resume_leaves_one_sandbox_and_everybody_gets_one_answer() {
    let (town, mut leader, mut follower) = Town::of_two().await;
    let ann = leader.tenant("ann").await;
    let mut made = Made::new(&ann, &wanted("usr_ann")).await;
    let mut dice = Dice(5);
    for round in 0..ROUNDS {
        let (here, there) = (leader.asked_by(&ann), follower.asked_by(&ann));
        if round % 2 == 0 {
            // Of one that has died; the others run.
            town.driver.kill(made.sandbox.parse().unwrap(), model::EndReason::Oom);
            becomes(&there, &made, "failed").await;
        } else {
            forget_resume(&town, &made).await;
        }
        let dies = async {
            sleep(Duration::from_millis(dice.roll(DIES_WITHIN_MS))).await;
            leader.kill();
        };
        let (resumed, ()) = tokio::join!(all_resume(&here, &there, &made.id), dies);
        assert_ne!(resumed.sandbox, made.sandbox, "in round {round}");
        made = resumed;
        follower.until_leads().await;
        until_one(&town).await;
        assert_eq!(running(&there).await, [&*made.sandbox], "in round {round}");
        made.attach(there.address, 0).await.echo(&format!("round {round}")).await;
        (leader, follower) = (follower, town.join().await);
    }
    town.end([follower, leader]).await;
}

/// As if it were long ago: within half a minute the answer would be the same.
async fn forget_resume(town: &Town, made: &Made) {
    let (store, now) = (store(town.dir.path()), jiff::Timestamp::now());
    let id = made.id.parse().unwrap();
    let until = now + jiff::SignedDuration::from_secs(60);
    let asked = store.claim_session(id, ("test".into(), until), (now, now)).await.unwrap();
    assert!(matches!(asked, store::Resuming::Claimed(_)), "{asked:?}");
    store.settle_claim(id, "test".into(), None).await.unwrap();
}

/// What a leader leaves that dies when the next life has begun and its sandbox is there, or not yet.
#[tokio::test(flavor = "multi_thread")]
async fn a_launch_that_was_cut_off_leaves_no_sandbox_and_no_agent_without_its_past() {
    let (town, leader, follower) = Town::of_two().await;
    let ann = follower.tenant("ann").await;
    let (placed, stray) =
        (Made::new(&ann, &wanted("usr_ann")).await, Made::new(&ann, &wanted("usr_ann")).await);
    let mut socket = placed.attach(ann.address, 0).await;
    socket.echo("walnut").await;
    leader.kill();
    follower.until_leads().await;
    for made in [&placed, &stray] {
        made.attach(ann.address, 0).await.events_until(is_prompt).await;
    }
    let store = store(town.dir.path());
    for made in [&placed, &stray] {
        let (id, now) = (made.id.parse().unwrap(), jiff::Timestamp::now());
        let until = now + jiff::SignedDuration::from_secs(3600);
        let claim = ("dead".to_owned(), until);
        store.claim_session(id, claim, (now, now)).await.unwrap();
        store.begin_life(id, "dead".into(), (2, until)).await.unwrap();
    }
    let id = placed.id.parse().unwrap();
    assert!(store.place_session(id, 2, placed.sandbox.parse().unwrap()).await.unwrap());
    let third = town.join().await;
    follower.kill();
    let ann = third.asked_by(&ann);
    becomes(&ann, &stray, SessionStatus::Failed.as_str()).await;
    until_one(&town).await;
    assert_eq!(running(&ann).await, [&*placed.sandbox]);
    // The next life of the other one runs, with what was said in the first.
    let mut socket = placed.attach(ann.address, 0).await;
    socket.echo("on").await;
    let told = Client { address: ([127, 0, 0, 1], town.daemon.port).into(), key: None };
    let path = format!("/internal/sessions/{}-2", placed.id);
    let put = told.request("PUT", &path).header("content-type", "application/json");
    let put = put.body(json!({ "agent": "mock" }).to_string().into()).unwrap();
    let told = told.send(put).await.json(200);
    assert_ne!(told["resumed"], "no", "{told}");
    town.end([third]).await;
}
