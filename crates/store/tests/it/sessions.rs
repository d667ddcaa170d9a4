//! Sessions: their rows, the claim of a resume, and the log.

use std::sync::Arc;

use model::{AgentKind, Error, SandboxId, SessionId, SessionSpec, SessionStatus, Vendor};
use store::{LogEnd, Logged, Resuming, SessionRecord, SessionUse, Store};

use crate::{Fixture, at, owner};

fn session(name: &str) -> SessionRecord {
    let spec = SessionSpec {
        agent: AgentKind::Mock,
        agent_version: None,
        template: "standard".into(),
        vendor: Vendor::OpenAi,
        model: Some("gpt-5".into()),
        base_url: None,
        bundles: vec!["keys".parse().unwrap()],
        app_id: "app".into(),
        set_id: "default".into(),
        app_json: Some(serde_json::json!({ "name": "app" })),
        wire_version: 2,
        forked_from: None,
    };
    SessionRecord {
        id: SessionId::generate(),
        owner: owner(name),
        spec,
        status: SessionStatus::Running,
        reason: None,
        sandbox: None,
        life: 1,
        native_session_id: None,
        created_at: at(0),
        expires_at: at(3600),
        input_tokens: 0,
        output_tokens: 0,
        tool_calls: 0,
        resumed_at: None,
        previous_status: None,
    }
}

fn events(cursors: std::ops::Range<u64>, text: &str) -> Vec<Logged> {
    cursors.map(|cursor| Logged { cursor, event: Arc::from(format!("{text}{cursor}")) }).collect()
}

async fn claim(store: &Store, id: SessionId, who: &str, now: i64) -> Resuming {
    let claim = (who.to_owned(), at(now + 60));
    store.claim_session(id, claim, (at(now), at(now - 30))).await.unwrap()
}

#[tokio::test]
async fn a_session_is_as_it_was_written_and_ends_once() {
    let fixture = Fixture::new();
    let store = &fixture.store;
    let (mut ann, bob) = (session("ann"), session("bob"));
    store.create_session(ann.clone()).await.unwrap();
    store.create_session(bob.clone()).await.unwrap();
    assert_eq!(store.session(ann.id).await.unwrap(), Some(ann.clone()));
    assert_eq!(store.sessions(&ann.owner, None, 10).await.unwrap(), [ann.clone()]);
    assert_eq!(store.sessions(&ann.owner, Some(ann.id), 10).await.unwrap(), []);
    assert_eq!(store.running_sessions().await.unwrap(), [ann.clone(), bob]);

    let sandbox = SandboxId::generate();
    assert!(store.place_session(ann.id, 1, sandbox).await.unwrap());
    assert!(!store.place_session(ann.id, 2, SandboxId::generate()).await.unwrap());
    store.name_session(ann.id, "native-1".into()).await.unwrap();
    let used = SessionUse { input_tokens: 7, output_tokens: 3, tool_calls: 2 };
    for _ in 0..2 {
        store.count_session_use(ann.id, used).await.unwrap();
    }
    let end = |status, reason: &str| store.end_session(ann.id, 1, (status, reason.into()));
    assert!(end(SessionStatus::Failed, "oom").await.unwrap());
    assert!(!end(SessionStatus::Completed, "idle").await.unwrap(), "it has ended");
    ann.sandbox = Some(sandbox);
    ann.native_session_id = Some("native-1".into());
    (ann.input_tokens, ann.output_tokens, ann.tool_calls) = (14, 6, 4);
    (ann.status, ann.reason) = (SessionStatus::Failed, Some("oom".into()));
    assert_eq!(fixture.reopened().session(ann.id).await.unwrap(), Some(ann.clone()));

    let day = at(0).as_second().div_euclid(86_400);
    let days = store.usage(&ann.owner, day, day).await.unwrap();
    let counted = (days[0].sessions, days[0].tool_calls, days[0].input_tokens);
    assert_eq!(counted, (1, 0, 0), "the day counts what the relay saw, not what the agent tells");
    store.delete_session(ann.id).await.unwrap();
    assert_eq!(store.session(ann.id).await.unwrap(), None);
}

#[tokio::test]
async fn one_of_many_resumes_a_session_and_the_rest_hear_of_it() {
    let fixture = Fixture::new();
    let (store, other) = (&fixture.store, fixture.reopened());
    let ann = session("ann");
    store.create_session(ann.clone()).await.unwrap();
    let Resuming::Claimed(seen) = claim(store, ann.id, "a", 0).await else { panic!("not claimed") };
    assert_eq!(seen, ann);
    for (store, who) in [(store, "a"), (&other, "b")] {
        assert_eq!(claim(store, ann.id, who, 1).await, Resuming::Busy);
    }
    let lost = other.begin_life(ann.id, "b".into(), (2, at(9))).await;
    assert!(matches!(lost, Err(Error::Unavailable { .. })), "{lost:?}");
    let begun = store.begin_life(ann.id, "a".into(), (2, at(3700))).await.unwrap();
    assert_eq!((begun.life, begun.previous_status), (2, Some(SessionStatus::Running)));
    assert_eq!(claim(&other, ann.id, "b", 2).await, Resuming::Busy);
    store.settle_claim(ann.id, "a".into(), Some(at(3))).await.unwrap();
    let Resuming::Done(done) = claim(&other, ann.id, "b", 30).await else { panic!("not done") };
    assert_eq!((done.life, done.resumed_at), (2, Some(at(3))));
    assert!(matches!(claim(&other, ann.id, "b", 34).await, Resuming::Claimed(_)), "30 s are over");
    // What was claimed by somebody who is gone can be claimed again: in time, or by the next leader.
    assert_eq!(claim(store, ann.id, "c", 90).await, Resuming::Busy);
    assert!(matches!(claim(store, ann.id, "c", 95).await, Resuming::Claimed(_)));
    store.drop_session_claims().await.unwrap();
    assert!(matches!(claim(store, ann.id, "d", 96).await, Resuming::Claimed(_)));
    store.settle_claim(ann.id, "d".into(), None).await.unwrap();
    assert!(matches!(claim(store, ann.id, "e", 97).await, Resuming::Claimed(_)));
    let gone = SessionId::generate();
    let refused = store.claim_session(gone, ("x".into(), at(1)), (at(0), at(0))).await;
    assert!(matches!(refused, Err(Error::NotFound { .. })), "{refused:?}");
}

#[tokio::test]
async fn one_that_died_right_after_its_resume_is_resumed_again() {
    let fixture = Fixture::new();
    let store = &fixture.store;
    let ann = session("ann");
    store.create_session(ann.clone()).await.unwrap();
    claim(store, ann.id, "a", 0).await;
    store.begin_life(ann.id, "a".into(), (2, at(3700))).await.unwrap();
    store.settle_claim(ann.id, "a".into(), Some(at(1))).await.unwrap();
    store.end_session(ann.id, 2, (SessionStatus::Failed, "oom".into())).await.unwrap();
    assert!(matches!(claim(store, ann.id, "b", 2).await, Resuming::Claimed(_)));
}

#[tokio::test]
async fn the_log_has_everything_once_and_in_order() {
    let fixture = Fixture::new();
    let store = &fixture.store;
    let (one, two) = (SessionId::generate(), SessionId::generate());
    assert_eq!(store.session_log_end(one).await.unwrap(), LogEnd::default());
    // More than one statement takes, and not a multiple of it.
    store.append_to_session(one, (1, 0), events(1..101, "a")).await.unwrap();
    store.append_to_session(two, (1, 0), events(1..3, "other")).await.unwrap();
    store.append_to_session(one, (2, 100), events(7..8, "b")).await.unwrap();
    let end = LogEnd { sequence: 101, life: 2, cursor: 7 };
    assert_eq!(store.session_log_end(one).await.unwrap(), end);

    let all = fixture.reopened().session_log(one, 0, (1000, 1 << 20)).await.unwrap();
    assert!(all.iter().map(|row| row.sequence).eq(1..=101));
    assert_eq!((&*all[41].event, &*all[100].event), ("a42", "b7"));
    let page = store.session_log(one, 40, (3, 1 << 20)).await.unwrap();
    assert!(page.iter().map(|row| row.sequence).eq(41..=43), "{page:?}");
    assert_eq!(store.session_log(one, 101, (3, 1 << 20)).await.unwrap(), []);
    // One more than fits, and at least one.
    assert_eq!(store.session_log(one, 40, (1000, 8)).await.unwrap().len(), 3);
    assert_eq!(store.session_log(one, 40, (1000, 0)).await.unwrap().len(), 1);

    let mut backwards = all.clone();
    backwards.reverse();
    assert_eq!(store.session_log_back(one, u64::MAX, (1000, 1 << 20)).await.unwrap(), backwards);
    let page = store.session_log_back(one, 43, (3, 1 << 20)).await.unwrap();
    assert_eq!(page.iter().map(|row| row.sequence).collect::<Vec<_>>(), [42, 41, 40]);
    assert_eq!(store.session_log_back(one, 1, (3, 1 << 20)).await.unwrap(), []);
    assert_eq!(store.session_log_back(one, 43, (1000, 0)).await.unwrap().len(), 1);

    store.delete_session_log(one).await.unwrap();
    assert_eq!(store.session_log_end(one).await.unwrap(), LogEnd::default());
    assert_eq!(store.session_log(two, 0, (10, 1 << 20)).await.unwrap().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_who_append_one_is_refused() {
    let fixture = Fixture::new();
    let other = fixture.reopened();
    let id = SessionId::generate();
    for round in 0..20 {
        let [a, b] = [("a", &fixture.store), ("b", &other)].map(|(who, store)| {
            store.append_to_session(id, (1, round * 2), events(round..round + 2, who))
        });
        let (a, b) = tokio::join!(a, b);
        assert_eq!([&a, &b].into_iter().filter(|done| done.is_ok()).count(), 1, "{a:?} {b:?}");
    }
    let all = other.session_log(id, 0, (1000, 1 << 20)).await.unwrap();
    assert!(all.iter().map(|row| row.sequence).eq(1..=40));
    for pair in all.chunks(2) {
        assert_eq!(pair[0].event.get(..1), pair[1].event.get(..1), "whole batches only");
    }
}
