//! Made, stopped, started, paused, changed.

use std::time::Duration;

use model::{Conflict, EndReason, Error, Name, Phase, Policy, SandboxId};

use super::ASKED;
use super::bench::{Bench, policy};
use crate::Update;

pub(super) async fn a_template_is_listed_and_found_by_name(bench: &Bench) {
    let name = &bench.options.template;
    let templates = bench.driver.templates().await.expect("templates can be listed");
    let listed = templates.iter().find(|template| template.name == *name);
    let listed = listed.expect("the template is listed");
    assert!(listed.digest.starts_with("sha256:"), "{listed:?}");
    let found = bench.driver.template(name).await.expect("a template can be found");
    assert_eq!(found.as_ref(), Some(listed));
    let unknown = "no-such-template".parse().expect("a constant name");
    assert_eq!(bench.driver.template(&unknown).await.expect("nothing is found"), None);
}

pub(super) async fn what_does_not_exist_is_not_observed_and_can_be_removed(bench: &Bench) {
    let id = SandboxId::generate();
    bench.remove(id).await;
    assert!(bench.driver.observe(id).await.expect("nothing is observed").is_none());
    assert!(bench.driver.guest(id).is_err());
    let missing = [
        bench.driver.stop(id, ASKED).await.err(),
        bench.driver.pause(id).await.err(),
        bench.driver.resume(id).await.err(),
        bench.driver.update(id, Update::default()).await.err(),
        bench.driver.start(id, Policy::none()).await.err(),
        bench.driver.usage(id).await.err(),
        bench.driver.maintenance(id).await.err(),
    ];
    for error in missing {
        assert!(matches!(error, Some(Error::NotFound { .. })), "{error:?}");
    }
}

pub(super) async fn a_created_sandbox_runs_and_is_listed(bench: &Bench) {
    let launch = bench.launch();
    let spec = launch.spec.clone();
    let made = bench.driver.create(launch).await.expect("a sandbox can be made");
    assert_eq!(made.spec, spec);
    assert_eq!(made.phase, Phase::Running, "{made:?}");
    assert!(made.incarnation.is_some() && made.started_at.is_some(), "{made:?}");
    bench.guest(spec.id).health().await.expect("its guest answers");

    let listed = bench.driver.list().await.expect("sandboxes can be listed");
    let listed = listed.iter().find(|seen| seen.spec.id == spec.id).expect("it is listed");
    assert_eq!(listed.spec, spec);
    assert_eq!((listed.phase, &listed.incarnation), (Phase::Running, &made.incarnation));
    let observed = bench.observe(spec.id).await;
    assert_eq!((observed.phase, &observed.incarnation), (Phase::Running, &made.incarnation));
    bench.driver.usage(spec.id).await.expect("its use can be read");
    bench.remove(spec.id).await;
}

pub(super) async fn an_id_is_created_once(bench: &Bench) {
    let launch = bench.launch();
    let id = launch.spec.id;
    let made = bench.driver.create(launch.clone()).await.expect("a sandbox can be made");
    let again = bench.driver.create(launch).await;
    let conflict = matches!(again, Err(Error::Conflict { code: Conflict::WrongState, .. }));
    assert!(conflict, "{again:?}");
    assert_eq!(bench.observe(id).await.incarnation, made.incarnation, "the first is untouched");
    bench.remove(id).await;
}

pub(super) async fn a_stopped_sandbox_keeps_its_workspace_and_starts_again(bench: &Bench) {
    let made = bench.create().await;
    let id = made.spec.id;
    bench.write(id, "/workspace/kept", b"kept over a stop").await;
    for _ in 0..2 {
        bench.driver.stop(id, EndReason::Idle).await.expect("a sandbox can be stopped");
        bench.assert_phase(id, Phase::Stopped).await;
        assert_eq!(bench.observe(id).await.end_reason, Some(EndReason::Idle));
    }
    let started = bench.driver.start(id, Policy::none()).await.expect("it can be started");
    assert_eq!(started.phase, Phase::Running);
    assert_ne!(started.incarnation, made.incarnation, "every start is an incarnation of its own");
    assert_eq!(started.end_reason, None, "it runs");
    let again = bench.driver.start(id, Policy::none()).await.expect("it runs already");
    assert_eq!(again.incarnation, started.incarnation);
    assert_eq!(bench.read(id, "/workspace/kept").await, b"kept over a stop");
    assert_eq!(bench.sh(id, "cat kept").await.stdout, "kept over a stop");
    bench.remove(id).await;
}

pub(super) async fn two_sandboxes_are_made_at_once_and_do_not_share_a_workspace(bench: &Bench) {
    let (one, two) = tokio::join!(bench.create(), bench.create());
    let (one, two) = (one.spec.id, two.spec.id);
    bench.write(one, "/workspace/whose", b"one").await;
    bench.write(two, "/workspace/whose", b"two").await;
    assert_eq!(bench.read(one, "/workspace/whose").await, b"one");
    assert_eq!(bench.read(two, "/workspace/whose").await, b"two");
    bench.remove(one).await;
    assert_eq!(bench.sh(two, "cat whose").await.stdout, "two", "its neighbour went");
    bench.remove(two).await;
}

pub(super) async fn a_name_and_a_policy_can_be_changed(bench: &Bench) {
    let id = bench.create().await.spec.id;
    let name = Name::generate();
    let update =
        Update { name: Some(name.clone()), policy: Some((policy("open"), Policy::open())) };
    bench.driver.update(id, update).await.expect("it can be changed while it runs");
    let changed = bench.observe(id).await.spec;
    assert_eq!((changed.name, changed.policy), (name, policy("open")));
    bench.driver.stop(id, ASKED).await.expect("a sandbox can be stopped");
    let name = Name::generate();
    let update = Update { name: Some(name.clone()), policy: None };
    bench.driver.update(id, update).await.expect("it can be changed while it is stopped");
    bench.driver.start(id, Policy::open()).await.expect("it can be started");
    let changed = bench.observe(id).await.spec;
    assert_eq!((changed.name, changed.policy), (name, policy("open")));
    bench.remove(id).await;
}

pub(super) async fn a_collection_does_no_harm(bench: &Bench) {
    let (runs, stopped) = tokio::join!(bench.create(), bench.create());
    let (runs, stopped) = (runs.spec.id, stopped.spec.id);
    bench.write(stopped, "/workspace/kept", b"kept").await;
    bench.driver.stop(stopped, ASKED).await.expect("a sandbox can be stopped");
    bench.driver.collect().await.expect("a collection can be made");
    assert_eq!(bench.sh(runs, "echo still here").await.stdout, "still here\n");
    bench.driver.start(stopped, Policy::none()).await.expect("it can be started");
    assert_eq!(bench.read(stopped, "/workspace/kept").await, b"kept");
    bench.remove(runs).await;
    bench.remove(stopped).await;
}

pub(super) async fn a_paused_sandbox_does_nothing_until_it_is_resumed(bench: &Bench) {
    let made = bench.create().await;
    let id = made.spec.id;
    for _ in 0..2 {
        bench.driver.pause(id).await.expect("a sandbox can be paused");
        bench.assert_phase(id, Phase::Paused).await;
    }
    let guest = bench.guest(id);
    let silent = tokio::time::timeout(Duration::from_millis(300), guest.health()).await;
    assert!(silent.is_err(), "a paused guest does not answer: {silent:?}");
    for _ in 0..2 {
        bench.driver.resume(id).await.expect("a sandbox can be resumed");
        bench.assert_phase(id, Phase::Running).await;
    }
    assert_eq!(bench.observe(id).await.incarnation, made.incarnation, "it was never stopped");
    assert_eq!(bench.sh(id, "echo awake").await.stdout, "awake\n");
    bench.driver.stop(id, ASKED).await.expect("a sandbox can be stopped");
    let stopped = bench.driver.pause(id).await;
    assert!(matches!(stopped, Err(Error::Conflict { .. })), "{stopped:?}");
    bench.remove(id).await;
}
