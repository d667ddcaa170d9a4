//! Random calls, faults and deaths on one sandbox: whatever happens, its generation only grows, the
//! end is the end, and nothing is left.

use std::time::Duration;

use driver::fake::Step;
use model::{Change, EndReason, Error, Name, Phase};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::{Fixture, alice, by_id, image, persistent, template};

#[derive(Debug, Clone, Copy)]
enum Move {
    Start,
    Stop,
    Pause,
    Resume,
    Rename,
    Exec,
    Delete,
    Kill,
    Fail(Step),
    Pass(u64),
    Restart,
}

fn moves() -> impl Strategy<Value = Move> {
    let steps = [
        Step::Start,
        Step::MakeCompute,
        Step::BootGuest,
        Step::Stop,
        Step::Pause,
        Step::Resume,
        Step::Remove,
        Step::RemoveDisk,
        Step::Update,
    ];
    prop_oneof![
        3 => Just(Move::Start),
        3 => Just(Move::Stop),
        2 => Just(Move::Pause),
        2 => Just(Move::Resume),
        1 => Just(Move::Rename),
        1 => Just(Move::Exec),
        1 => Just(Move::Delete),
        2 => Just(Move::Kill),
        3 => proptest::sample::select(steps.to_vec()).prop_map(Move::Fail),
        2 => (1_u64..1000).prop_map(Move::Pass),
        1 => Just(Move::Restart),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_ever_leaks_and_the_end_is_the_end(kind in 0..3, moves in vec(moves(), 1..25)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(play(kind, moves));
    }
}

async fn play(kind: i32, moves: Vec<Move>) {
    let mut fixture = Fixture::new().await;
    let wanted =
        vec![template(), image(), persistent()].swap_remove(usize::try_from(kind).unwrap());
    let made = fixture.create(wanted).await.unwrap();
    let mut last = made.clone();
    for step in moves {
        let outcome = apply(&mut fixture, &made, step).await;
        let internal = matches!(outcome, Err(Error::Internal(_)));
        let Ok(seen) = fixture.get(&made).await else {
            // Destroyed and forgotten.
            break;
        };
        if !matches!(step, Move::Restart) {
            assert!(seen.generation >= last.generation, "{step:?}: {last:?} then {seen:?}");
        }
        if last.phase == Phase::Destroyed {
            assert_eq!(seen.phase, Phase::Destroyed, "{step:?}");
            assert!(!internal, "{step:?}: {outcome:?}");
        }
        last = seen;
    }
    finish(&fixture, &made).await;
}

async fn apply(fixture: &mut Fixture, made: &engine::Sandbox, step: Move) -> model::Result<()> {
    let (caller, sandbox) = (alice(), by_id(made));
    let engine = fixture.engine.clone();
    match step {
        Move::Start => engine.start_sandbox(&caller, &sandbox).await.map(drop),
        Move::Stop => engine.stop(&caller, &sandbox).await.map(drop),
        Move::Pause => engine.pause(&caller, &sandbox).await.map(drop),
        Move::Resume => engine.resume(&caller, &sandbox).await.map(drop),
        Move::Rename => {
            let change = Change { name: Some(Name::generate()), policy: None };
            engine.update(&caller, &sandbox, change).await.map(drop)
        }
        Move::Exec => {
            let command = engine::Command::shell("true");
            engine.exec(&caller, &sandbox, command).await.map(drop)
        }
        Move::Delete => engine.delete(&caller, &sandbox).await.map(drop),
        Move::Kill => {
            fixture.driver.kill(made.spec.id, EndReason::Exited);
            Ok(())
        }
        Move::Fail(step) => {
            fixture.driver.fail(step, 1);
            Ok(())
        }
        Move::Pass(seconds) => {
            fixture.pass(seconds).await;
            Ok(())
        }
        Move::Restart => {
            drop(engine);
            fixture.restart().await;
            Ok(())
        }
    }
}

/// Deletes it, against whatever faults are still planned, and looks for what is left.
async fn finish(fixture: &Fixture, made: &engine::Sandbox) {
    for _ in 0..20 {
        match fixture.engine.delete(&alice(), &by_id(made)).await {
            Ok(_) | Err(Error::NotFound { .. }) => break,
            Err(_) => tokio::time::sleep(Duration::from_millis(1)).await,
        }
    }
    fixture.assert_empty().await;
}
