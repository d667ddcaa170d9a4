//! A server without the lease, beside the one that has it: it uses what runs, and the other one knows.

use std::sync::Arc;
use std::time::Duration;

use engine::{Command, Engine, ExecEvent, Followed};
use futures_util::StreamExt;
use model::{Change, EndReason, Phase, Result, SandboxRef};

use crate::{Fixture, alice, bob, by_id, image, template};

/// Longer than anything here takes.
const SOON: Duration = Duration::from_secs(20);

fn follower(fixture: &Fixture) -> Engine {
    let view = Arc::new(fixture.driver.clone());
    let followed = Followed { name: "local".into(), view };
    Engine::follow(fixture.config.clone(), vec![followed], fixture.store())
}

/// Until what the other server wrote is read here.
async fn usable(follower: &Engine, sandbox: &SandboxRef) {
    for _ in 0..500 {
        if follower.can_use(&alice(), sandbox).await.unwrap() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{sandbox} cannot be used");
}

async fn says(follower: &Engine, sandbox: &SandboxRef, word: &str) -> Result<String> {
    let command = Command::shell(format!("echo {word}"));
    let done = follower.exec(&alice(), sandbox, command).await?;
    Ok(String::from_utf8(done.stdout.to_vec()).unwrap())
}

#[tokio::test]
async fn what_runs_can_be_used_by_its_owner_by_id_and_by_name() {
    let fixture = Fixture::new().await;
    let made = fixture.create(image()).await.unwrap();
    let (id, name) = (by_id(&made), SandboxRef::Name(made.spec.name.clone()));
    let follower = follower(&fixture);
    usable(&follower, &id).await;
    assert_eq!(says(&follower, &id, "one").await.unwrap(), "one\n");
    usable(&follower, &name).await;
    assert_eq!(says(&follower, &name, "two").await.unwrap(), "two\n");
    assert!(!follower.can_use(&bob(), &id).await.unwrap());
    assert!(!follower.can_use(&bob(), &name).await.unwrap());

    let renamed: model::Name = "another-name".parse().unwrap();
    let change = Change { name: Some(renamed.clone()), ..Change::default() };
    fixture.engine.update(&alice(), &id, change).await.unwrap();
    assert!(!follower.can_use(&alice(), &name).await.unwrap());
    let renamed = SandboxRef::Name(renamed);
    usable(&follower, &renamed).await;
    assert_eq!(says(&follower, &renamed, "three").await.unwrap(), "three\n");
}

#[tokio::test]
async fn what_does_not_run_is_left_to_the_other_server() {
    let fixture = Fixture::new().await;
    let made = fixture.create(image()).await.unwrap();
    let id = by_id(&made);
    let follower = follower(&fixture);
    usable(&follower, &id).await;
    fixture.engine.pause(&alice(), &id).await.unwrap();
    assert!(!follower.can_use(&alice(), &id).await.unwrap());
    fixture.engine.resume(&alice(), &id).await.unwrap();
    assert!(follower.can_use(&alice(), &id).await.unwrap());
    fixture.engine.stop(&alice(), &id).await.unwrap();
    assert!(!follower.can_use(&alice(), &id).await.unwrap());
    fixture.engine.start_sandbox(&alice(), &id).await.unwrap();
    // Another incarnation, another guest.
    usable(&follower, &id).await;
    assert_eq!(says(&follower, &id, "again").await.unwrap(), "again\n");
    fixture.engine.delete(&alice(), &id).await.unwrap();
    assert!(!follower.can_use(&alice(), &id).await.unwrap());
}

#[tokio::test]
async fn a_stream_ends_with_the_reason_when_the_other_server_stops_the_sandbox() {
    let fixture = Fixture::new().await;
    let made = fixture.create(image()).await.unwrap();
    let id = by_id(&made);
    let follower = follower(&fixture);
    usable(&follower, &id).await;
    let sleeps = Command::shell("sleep 1000");
    let (_, mut output) = follower.exec_start(&alice(), &id, sleeps).await.unwrap();
    fixture.engine.stop(&alice(), &id).await.unwrap();
    let last = tokio::time::timeout(SOON, async {
        let mut last = None;
        while let Some(event) = output.next().await {
            last = Some(event.unwrap());
        }
        last
    });
    let ended = ExecEvent::SandboxEnded { reason: EndReason::UserRequest };
    assert_eq!(last.await.unwrap(), Some(ended));
}

#[tokio::test]
async fn a_call_through_the_follower_keeps_a_sandbox_from_idling() {
    let fixture = Fixture::new().await;
    let made = fixture.create(template()).await.unwrap();
    let id = by_id(&made);
    let follower = follower(&fixture);
    usable(&follower, &id).await;
    let alice = alice();
    let call = follower.exec(&alice, &id, Command::shell("sleep 1000"));
    let used = async {
        // Its task has said so once it had a moment.
        tokio::time::sleep(Duration::from_millis(200)).await;
        for _ in 0..5 {
            fixture.pass(61).await;
        }
        assert_eq!(fixture.phase(&made).await, Phase::Running);
    };
    tokio::select! {
        ended = call => panic!("{ended:?}"),
        () = used => {}
    }
    // The client went away: it is idle from then on.
    fixture.swept_until(&made, Phase::Destroyed).await;
}
