//! Stop, start, pause, resume, update, delete: what each answers from each state.

use driver::Driver;
use driver::fake::Step;
use model::{Change, EndReason, Error, Phase};

use crate::{
    Fixture, alice, assert_invalid, assert_name_taken, assert_not_found, assert_wrong_state, by_id,
    by_name, image, named, persistent, template,
};

#[tokio::test]
async fn a_stopped_sandbox_keeps_its_workspace_and_starts_again() {
    let fixture = Fixture::new().await;
    let made = fixture.create(persistent()).await.unwrap();
    let engine = &fixture.engine;
    let body = futures_util::stream::iter([Ok("kept".into())]);
    engine.write_file(&alice(), &by_id(&made), "/workspace/f", body).await.unwrap();

    let stopped = engine.stop(&alice(), &by_id(&made)).await.unwrap();
    assert_eq!((stopped.phase, stopped.end_reason), (Phase::Stopped, Some(EndReason::UserRequest)));
    assert_eq!((stopped.incarnation, stopped.started_at), (None, None));
    assert!(stopped.generation > made.generation);

    let started = engine.start_sandbox(&alice(), &by_id(&made)).await.unwrap();
    assert_eq!((started.phase, started.end_reason), (Phase::Running, None));
    assert_ne!(started.incarnation, made.incarnation);
    let command = engine::Command::shell("cat f");
    let done = engine.exec(&alice(), &by_id(&made), command).await.unwrap();
    assert_eq!(done.output, "kept");
}

#[tokio::test]
async fn a_call_whose_state_is_reached_already_answers_with_the_sandbox() {
    let fixture = Fixture::new().await;
    let engine = &fixture.engine;
    let sandbox = by_id(&fixture.create(image()).await.unwrap());
    for _ in 0..2 {
        assert_eq!(engine.start_sandbox(&alice(), &sandbox).await.unwrap().phase, Phase::Running);
        assert_eq!(engine.resume(&alice(), &sandbox).await.unwrap().phase, Phase::Running);
    }
    for _ in 0..2 {
        assert_eq!(engine.pause(&alice(), &sandbox).await.unwrap().phase, Phase::Paused);
    }
    assert_eq!(engine.resume(&alice(), &sandbox).await.unwrap().phase, Phase::Running);
    for _ in 0..2 {
        assert_eq!(engine.stop(&alice(), &sandbox).await.unwrap().phase, Phase::Stopped);
    }
    for _ in 0..2 {
        assert_eq!(engine.delete(&alice(), &sandbox).await.unwrap().phase, Phase::Destroyed);
    }
}

#[tokio::test]
async fn a_call_that_makes_no_sense_is_a_wrong_state() {
    let fixture = Fixture::new().await;
    let engine = &fixture.engine;
    let sandbox = by_id(&fixture.create(image()).await.unwrap());
    engine.stop(&alice(), &sandbox).await.unwrap();
    assert_wrong_state(engine.pause(&alice(), &sandbox).await);
    assert_wrong_state(engine.resume(&alice(), &sandbox).await);
    let command = engine::Command::shell("true");
    assert_wrong_state(engine.exec(&alice(), &sandbox, command).await);
    assert_wrong_state(engine.logs(&alice(), &sandbox, engine::LogTail::Lines(1)).await);
    let cancel = engine.cancel(&alice(), &sandbox, engine::CancelReason::UserRequest).await;
    assert_wrong_state(cancel);
    engine.start_sandbox(&alice(), &sandbox).await.unwrap();
    engine.pause(&alice(), &sandbox).await.unwrap();
    assert_wrong_state(engine.start_sandbox(&alice(), &sandbox).await);
    let command = engine::Command::shell("true");
    assert_wrong_state(engine.exec(&alice(), &sandbox, command).await);
    assert_eq!(engine.stop(&alice(), &sandbox).await.unwrap().phase, Phase::Stopped);
}

#[tokio::test]
async fn a_destroyed_sandbox_is_shown_for_a_minute_and_refuses_everything() {
    let fixture = Fixture::new().await;
    let engine = &fixture.engine;
    let made = fixture.create(named("mine")).await.unwrap();
    let destroyed = engine.delete(&alice(), &by_id(&made)).await.unwrap();
    assert_eq!(destroyed.end_reason, Some(EndReason::UserRequest));

    for sandbox in [by_id(&made), by_name("mine")] {
        assert_eq!(engine.get(&alice(), &sandbox).await.unwrap(), destroyed);
        assert_eq!(engine.delete(&alice(), &sandbox).await.unwrap(), destroyed);
        assert_not_found(engine.start_sandbox(&alice(), &sandbox).await);
        assert_not_found(engine.stop(&alice(), &sandbox).await);
        assert_not_found(engine.pause(&alice(), &sandbox).await);
        assert_not_found(engine.update(&alice(), &sandbox, Change::default()).await);
        let command = engine::Command::shell("true");
        assert_not_found(engine.exec(&alice(), &sandbox, command).await);
        assert_not_found(engine.export(&alice(), &sandbox).await.map(|_| ()));
        assert_not_found(engine.usage(&alice(), &sandbox).await);
    }
    assert_eq!(fixture.list().await, [made.spec.id]);
    fixture.pass(61).await;
    assert_eq!(fixture.list().await, []);
    assert_not_found(engine.get(&alice(), &by_id(&made)).await);
    assert_not_found(engine.delete(&alice(), &by_id(&made)).await);
    fixture.assert_empty().await;
}

#[tokio::test]
async fn a_name_means_the_live_sandbox_before_a_destroyed_one() {
    let fixture = Fixture::new().await;
    let old = fixture.create(named("mine")).await.unwrap();
    fixture.engine.delete(&alice(), &by_id(&old)).await.unwrap();
    let new = fixture.create(named("mine")).await.unwrap();
    let found = fixture.engine.get(&alice(), &by_name("mine")).await.unwrap();
    assert_eq!(found.spec.id, new.spec.id);
    assert_eq!(fixture.list().await, [old.spec.id, new.spec.id]);
}

#[tokio::test]
async fn an_unfinished_delete_is_finished_by_the_next() {
    for step in [Step::Remove, Step::RemoveDisk] {
        let fixture = Fixture::new().await;
        let made = fixture.create(named("mine")).await.unwrap();
        fixture.driver.fail(step, 1);
        let failed = fixture.engine.delete(&alice(), &by_id(&made)).await;
        assert!(matches!(failed, Err(Error::Internal(_))), "{failed:?}");
        assert_eq!(fixture.phase(&made).await, Phase::Deleting);
        assert_wrong_state(fixture.engine.start_sandbox(&alice(), &by_id(&made)).await);
        fixture.engine.delete(&alice(), &by_id(&made)).await.unwrap();
        fixture.assert_empty().await;
    }
}

#[tokio::test]
async fn an_unfinished_delete_is_finished_by_the_sweep() {
    let fixture = Fixture::new().await;
    let made = fixture.create(image()).await.unwrap();
    fixture.driver.fail(Step::RemoveDisk, 1);
    fixture.engine.delete(&alice(), &by_id(&made)).await.unwrap_err();
    fixture.swept_until(&made, Phase::Destroyed).await;
    fixture.assert_empty().await;
}

#[tokio::test]
async fn an_unfinished_stop_is_finished_by_the_sweep_and_keeps_its_reason() {
    let fixture = Fixture::new().await;
    let made = fixture.create(image()).await.unwrap();
    fixture.driver.fail(Step::Stop, 1);
    fixture.engine.stop(&alice(), &by_id(&made)).await.unwrap_err();
    assert_eq!(fixture.phase(&made).await, Phase::Stopping);
    let stopped = fixture.swept_until(&made, Phase::Stopped).await;
    assert_eq!(stopped.end_reason, Some(EndReason::UserRequest));
}

#[tokio::test]
async fn a_failed_start_leaves_the_sandbox_stopped() {
    for step in [Step::Start, Step::MakeCompute, Step::BootGuest] {
        let fixture = Fixture::new().await;
        let made = fixture.create(persistent()).await.unwrap();
        fixture.engine.stop(&alice(), &by_id(&made)).await.unwrap();
        fixture.driver.fail(step, 1);
        fixture.engine.start_sandbox(&alice(), &by_id(&made)).await.unwrap_err();
        assert_eq!(fixture.phase(&made).await, Phase::Stopped, "{step:?}");
        fixture.engine.start_sandbox(&alice(), &by_id(&made)).await.unwrap();
    }
}

#[tokio::test]
async fn a_failed_pause_changes_nothing() {
    let fixture = Fixture::new().await;
    let made = fixture.create(image()).await.unwrap();
    fixture.driver.fail(Step::Pause, 1);
    fixture.engine.pause(&alice(), &by_id(&made)).await.unwrap_err();
    assert_eq!(fixture.phase(&made).await, Phase::Running);
    fixture.engine.pause(&alice(), &by_id(&made)).await.unwrap();
    fixture.driver.fail(Step::Resume, 1);
    fixture.engine.resume(&alice(), &by_id(&made)).await.unwrap_err();
    assert_eq!(fixture.phase(&made).await, Phase::Paused);
}

#[tokio::test]
async fn an_ephemeral_template_sandbox_goes_with_its_compute() {
    let fixture = Fixture::new().await;
    let made = fixture.create(template()).await.unwrap();
    fixture.driver.kill(made.spec.id, EndReason::Oom);
    let destroyed = fixture.until_phase(&made, Phase::Destroyed).await;
    assert_eq!(destroyed.end_reason, Some(EndReason::Oom));
    fixture.assert_empty().await;
}

#[tokio::test]
async fn any_other_sandbox_is_stopped_when_its_compute_dies() {
    let template_persistent = model::NewSandbox { tier: persistent().tier, ..template() };
    for wanted in [image(), persistent(), template_persistent] {
        let fixture = Fixture::new().await;
        let made = fixture.create(wanted).await.unwrap();
        fixture.driver.kill(made.spec.id, EndReason::Exited);
        let stopped = fixture.until_phase(&made, Phase::Stopped).await;
        assert_eq!(stopped.end_reason, Some(EndReason::Exited));
        fixture.engine.start_sandbox(&alice(), &by_id(&made)).await.unwrap();
        assert_eq!(fixture.engine.snapshot().exits_total, [(EndReason::Exited, 1)]);
    }
}

#[tokio::test]
async fn a_template_sandbox_that_was_stopped_on_purpose_stays() {
    let fixture = Fixture::new().await;
    let made = fixture.create(template()).await.unwrap();
    fixture.engine.stop(&alice(), &by_id(&made)).await.unwrap();
    fixture.pass(100).await;
    assert_eq!(fixture.phase(&made).await, Phase::Stopped);
}

#[tokio::test]
async fn an_end_that_nobody_told_is_found_by_the_sweep() {
    let fixture = Fixture::new().await;
    let made = fixture.create(image()).await.unwrap();
    // Behind the engine's back.
    fixture.driver.stop(made.spec.id, EndReason::HostLost).await.unwrap();
    assert_eq!(fixture.phase(&made).await, Phase::Running);
    let stopped = fixture.swept_until(&made, Phase::Stopped).await;
    assert_eq!(stopped.end_reason, Some(EndReason::HostLost));
}

#[tokio::test]
async fn a_lost_host_ends_everything_with_that_reason() {
    let fixture = Fixture::new().await;
    let kept = fixture.create(persistent()).await.unwrap();
    let gone = fixture.create(template()).await.unwrap();
    fixture.driver.lose_host();
    let kept = fixture.until_phase(&kept, Phase::Stopped).await;
    let gone = fixture.until_phase(&gone, Phase::Destroyed).await;
    assert_eq!(kept.end_reason, Some(EndReason::HostLost));
    assert_eq!(gone.end_reason, Some(EndReason::HostLost));
}

#[tokio::test]
async fn a_rename_moves_the_name_and_frees_the_old_one() {
    let fixture = Fixture::new().await;
    let engine = &fixture.engine;
    let made = fixture.create(named("one")).await.unwrap();
    fixture.create(named("two")).await.unwrap();
    let rename = |to: &str| Change { name: Some(to.parse().unwrap()), policy: None };
    assert_name_taken(engine.update(&alice(), &by_id(&made), rename("two")).await);
    assert_eq!(fixture.get(&made).await.unwrap().spec.name.as_str(), "one");
    let renamed = engine.update(&alice(), &by_name("one"), rename("three")).await.unwrap();
    assert_eq!(renamed.spec.name.as_str(), "three");
    assert_not_found(engine.get(&alice(), &by_name("one")).await);
    assert_eq!(engine.get(&alice(), &by_name("three")).await.unwrap().spec.id, made.spec.id);
    let observed = fixture.driver.observe(made.spec.id).await.unwrap().unwrap();
    assert_eq!(observed.spec.name.as_str(), "three");
    fixture.create(named("one")).await.unwrap();
    engine.stop(&alice(), &by_id(&made)).await.unwrap();
    engine.update(&alice(), &by_id(&made), rename("four")).await.unwrap();
}

#[tokio::test]
async fn a_failed_rename_changes_nothing() {
    let fixture = Fixture::new().await;
    let made = fixture.create(named("one")).await.unwrap();
    fixture.driver.fail(Step::Update, 1);
    let change = Change { name: Some("two".parse().unwrap()), policy: None };
    fixture.engine.update(&alice(), &by_id(&made), change).await.unwrap_err();
    assert_eq!(fixture.get(&made).await.unwrap().spec.name.as_str(), "one");
    assert_name_taken(fixture.create(named("one")).await);
    fixture.create(named("two")).await.unwrap();
    let names = fixture.store().names().await.unwrap();
    assert!(names.iter().any(|c| c.name.as_str() == "one" && c.sandbox == made.spec.id));
}

#[tokio::test]
async fn a_policy_is_changed_to_one_that_exists() {
    let fixture = Fixture::new().await;
    let made = fixture.create(image()).await.unwrap();
    assert_eq!(made.spec.policy.as_str(), "default");
    let change = |policy: &str| Change { name: None, policy: Some(policy.parse().unwrap()) };
    let both = Change { name: Some("new".parse().unwrap()), ..change("wide") };
    assert_invalid(fixture.engine.update(&alice(), &by_id(&made), both).await, "policy");
    assert_eq!(fixture.get(&made).await.unwrap().spec, made.spec, "nothing half done");
    let changed = fixture.engine.update(&alice(), &by_id(&made), change("open")).await.unwrap();
    assert_eq!(changed.spec.policy.as_str(), "open");
    let observed = fixture.driver.observe(made.spec.id).await.unwrap().unwrap();
    assert_eq!(observed.spec.policy.as_str(), "open");
}

#[tokio::test]
async fn a_cancel_reaches_attached_clients_and_says_whether_there_were_any() {
    let fixture = Fixture::new().await;
    let engine = &fixture.engine;
    let sandbox = by_id(&fixture.create(image()).await.unwrap());
    let reason = engine::CancelReason::CreditsExhausted;
    assert!(!engine.cancel(&alice(), &sandbox, reason).await.unwrap().cancelled);
    let mut client = engine.attach(&alice(), &sandbox).await.unwrap();
    assert!(engine.cancel(&alice(), &sandbox, reason).await.unwrap().cancelled);
    assert_eq!(client.notices.recv().await.unwrap(), engine::Notice::Cancel(reason));
    engine.delete(&alice(), &sandbox).await.unwrap();
    assert_eq!(client.notices.recv().await.unwrap(), engine::Notice::Destroyed);
}

#[tokio::test]
async fn a_server_that_shuts_down_takes_no_calls_and_leaves_sandboxes_running() {
    let fixture = Fixture::new().await;
    let made = fixture.create(image()).await.unwrap();
    fixture.engine.shutdown().await;
    let refused = fixture.create(image()).await;
    assert!(matches!(refused, Err(Error::Unavailable { .. })), "{refused:?}");
    let stop = fixture.engine.stop(&alice(), &by_id(&made)).await;
    assert!(matches!(stop, Err(Error::Unavailable { .. })), "{stop:?}");
    let observed = fixture.driver.observe(made.spec.id).await.unwrap().unwrap();
    assert_eq!(observed.phase, Phase::Running);
}
