//! Create: what is made, what is refused, and that a failure leaves nothing.

use driver::Driver;
use driver::fake::Step;
use model::{EndReason, Error, EventKind, NewSandbox, Phase, Plan, QuotaRow, Source, Tier};

use crate::{
    Fixture, alice, assert_invalid, assert_name_taken, assert_not_found, bob, by_id, by_name,
    image, named, persistent, template,
};

#[tokio::test]
async fn a_created_sandbox_runs_and_is_found_by_id_and_by_name() {
    let fixture = Fixture::new().await;
    let sandbox = fixture.create(template()).await.unwrap();
    assert_eq!(sandbox.phase, Phase::Running);
    assert!(sandbox.rootfs.starts_with("standard@sha256:"), "{}", sandbox.rootfs);
    assert_eq!(sandbox.spec.limits.disk_gb, 5);
    assert_eq!(sandbox.spec.tier, Tier::Ephemeral);
    assert!(sandbox.incarnation.is_some() && sandbox.started_at.is_some());
    let name = by_name(sandbox.spec.name.as_str());
    assert_eq!(fixture.engine.get(&alice(), &name).await.unwrap(), sandbox);
    assert_eq!(fixture.engine.get(&alice(), &by_id(&sandbox)).await.unwrap(), sandbox);
    assert_eq!(fixture.list().await, [sandbox.spec.id]);
}

#[tokio::test]
async fn another_owner_sees_nothing_of_it() {
    let fixture = Fixture::new().await;
    let sandbox = fixture.create(named("mine")).await.unwrap();
    for reference in [by_id(&sandbox), by_name("mine")] {
        assert_not_found(fixture.engine.get(&bob(), &reference).await);
        assert_not_found(fixture.engine.delete(&bob(), &reference).await);
        assert_not_found(fixture.engine.stop(&bob(), &reference).await);
    }
    assert_eq!(fixture.engine.list(&bob()).await.unwrap().sandboxes, []);
    fixture.engine.create(&bob(), named("mine"), None).await.unwrap();
}

#[tokio::test]
async fn a_taken_name_is_refused_and_free_again_after_a_delete() {
    let fixture = Fixture::new().await;
    let sandbox = fixture.create(named("mine")).await.unwrap();
    assert_name_taken(fixture.create(named("mine")).await);
    assert_eq!(fixture.driver.count(), 1);
    fixture.engine.delete(&alice(), &by_id(&sandbox)).await.unwrap();
    fixture.create(named("mine")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_hundred_creates_of_one_name_exactly_one_succeeds() {
    let fixture = Fixture::new().await;
    let attempts = (0..100).map(|_| fixture.create(named("mine")));
    let outcomes = futures_util::future::join_all(attempts).await;
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1);
    for failure in outcomes.into_iter().filter(Result::is_err) {
        assert_name_taken(failure);
    }
    assert_eq!(fixture.driver.count(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_creates_at_once_all_succeed() {
    let fixture = Fixture::new().await;
    let outcomes = futures_util::future::join_all((0..100).map(|_| fixture.create(image()))).await;
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    assert_eq!(fixture.list().await.len(), 100);
}

#[tokio::test]
async fn a_claim_that_only_the_store_knows_of_is_respected_and_undone() {
    let fixture = Fixture::new().await;
    let other = model::SandboxId::generate();
    let claim = vec![store::Change::ClaimName("mine".parse().unwrap())];
    fixture.store().apply(alice().owner, other, claim).await.unwrap();
    assert_name_taken(fixture.create(named("mine")).await);
    assert_eq!(fixture.driver.count(), 0, "what was launched meanwhile is gone");
    assert_eq!(fixture.list().await, []);
    fixture.create(image()).await.unwrap();
}

#[tokio::test]
async fn whatever_step_of_a_launch_fails_nothing_is_left() {
    for step in Step::OF_CREATE {
        let fixture = Fixture::new().await;
        fixture.driver.fail(step, 1);
        let failed = fixture.create_with_key(named("mine"), "once", 1).await;
        assert!(matches!(failed, Err(Error::Internal(_))), "{step:?}: {failed:?}");
        fixture.assert_empty().await;
        assert_eq!(fixture.engine.snapshot().create_failures_total, 1, "{step:?}");
        let created = fixture.create_with_key(named("mine"), "once", 1).await.unwrap();
        assert!(!created.replayed, "{step:?}");
    }
}

#[tokio::test]
async fn what_a_failed_launch_left_is_removed_by_the_sweep() {
    let fixture = Fixture::new().await;
    fixture.driver.fail(Step::BootGuest, 1);
    fixture.driver.fail(Step::RemoveDisk, 1);
    fixture.create(named("mine")).await.unwrap_err();
    assert_eq!(fixture.driver.count(), 1);
    let leftover = fixture.engine.list(&alice()).await.unwrap().sandboxes.remove(0);
    assert_eq!(leftover.phase, Phase::Deleting, "what is left is shown");
    let again = fixture.create(named("mine")).await.unwrap();
    fixture.engine.delete(&alice(), &by_id(&again)).await.unwrap();
    for _ in 0..50 {
        fixture.pass(10).await;
        if fixture.driver.count() == 0 {
            break;
        }
    }
    fixture.assert_empty().await;
    fixture.create(named("mine")).await.unwrap();
}

#[tokio::test]
async fn a_create_whose_caller_went_away_is_finished() {
    let fixture = Fixture::new().await;
    fixture.driver.delay(Step::MakeDisk, std::time::Duration::from_millis(50));
    let create = fixture.create(named("mine"));
    let left = tokio::time::timeout(std::time::Duration::from_millis(10), create).await;
    assert!(left.is_err());
    let mine = by_name("mine");
    let sandbox = fixture.engine.get(&alice(), &mine).await.unwrap();
    fixture.until_phase(&sandbox, Phase::Running).await;
}

#[tokio::test]
async fn templates_and_images_are_told_apart_as_the_documents_say() {
    let fixture = Fixture::new().await;
    let from = |source| NewSandbox { source, ..template() };
    let code = |outcome: model::Result<_>| match outcome {
        Err(Error::NotImplemented { code, detail }) => (code, detail),
        other => panic!("{other:?}"),
    };
    let made = |source| fixture.create(from(source));
    let (unknown, _) = code(made(Source::Template("gentoo".into())).await);
    assert_eq!(unknown, "unknown_template");
    assert_eq!(code(made(Source::Template("No Such".into())).await).0, "unknown_template");
    for source in [Source::Template("browser".into()), Source::Image("browser".into())] {
        let (unbuilt, detail) = code(made(source).await);
        assert_eq!(unbuilt, "template_not_built");
        assert!(detail.contains("bastide template build browser"), "{detail}");
    }
    let reference = Source::Image("ghcr.io/latere-ai/sandbox-base:main".into());
    assert_eq!(code(made(reference).await).0, "image_pull_not_available");
    assert_invalid(made(Source::Image("gentoo".into())).await, "image");
    assert_invalid(made(Source::Image("No Such".into())).await, "image");
    fixture.assert_empty().await;
}

#[tokio::test]
async fn the_template_host_is_for_the_operator_unless_configured() {
    let host = || NewSandbox { source: Source::Template("host".into()), ..template() };
    let fixture = Fixture::new().await;
    fixture.create(host()).await.unwrap();
    assert_invalid(fixture.engine.create(&bob(), host(), None).await, "template");
    let open = Fixture::with(|config| config.host_template_for_all = true).await;
    open.engine.create(&bob(), host(), None).await.unwrap();
}

#[tokio::test]
async fn a_bad_request_names_its_field_and_makes_nothing() {
    let fixture = Fixture::new().await;
    let cases = [
        ("disk_gb", NewSandbox { disk_gb: Some(21), ..image() }),
        ("disk_gb", NewSandbox { disk_gb: Some(0), ..image() }),
        ("policy", NewSandbox { policy: Some("wide".parse().unwrap()), ..image() }),
        ("vcpu", NewSandbox { vcpu: Some(9), ..image() }),
        ("vcpu", NewSandbox { vcpu: Some(0), ..image() }),
        ("cpu_fraction", NewSandbox { cpu_fraction: Some(1.5), ..image() }),
        ("cpu_fraction", NewSandbox { cpu_fraction: Some(f64::NAN), ..image() }),
        ("memory_mib", NewSandbox { memory_mib: Some(1), ..image() }),
        ("memory_mib", NewSandbox { memory_mib: Some(1 << 20), ..image() }),
        ("env.TASK", NewSandbox { env: [("TASK".into(), "x".into())].into(), ..image() }),
    ];
    for (field, wanted) in cases {
        let caller =
            engine::Caller { owner: alice().owner, plan: Plan::Free, quota: QuotaRow::default() };
        assert_invalid(fixture.engine.create(&caller, wanted, None).await, field);
    }
    fixture.assert_empty().await;
}

#[tokio::test]
async fn asked_limits_are_given() {
    let fixture = Fixture::new().await;
    let wanted = NewSandbox {
        vcpu: Some(2),
        cpu_fraction: Some(1.0),
        memory_mib: Some(1024),
        disk_gb: Some(20),
        ..persistent()
    };
    let limits = fixture.create(wanted).await.unwrap().spec.limits;
    assert_eq!((limits.vcpu, limits.memory_mib, limits.disk_gb), (2, 1024, 20));
    assert!((limits.cpu_fraction - 1.0).abs() < f64::EPSILON);
}

#[tokio::test]
async fn a_failed_create_is_told_with_its_reason() {
    let fixture = Fixture::new().await;
    fixture.driver.fail(Step::BootGuest, 1);
    fixture.create(image()).await.unwrap_err();
    let mut events = fixture.engine.events(&alice(), Some(engine::EventId(0))).await.unwrap();
    for (kind, reason) in
        [(EventKind::Created, None), (EventKind::CreateFailed, Some(EndReason::CreateFailed))]
    {
        let told = crate::events::event(&mut events).await.event;
        assert_eq!((told.kind, told.reason), (kind, reason));
    }
    assert!(fixture.driver.list().await.unwrap().iter().all(|seen| seen.tombstone.is_some()));
}
