//! Removed, killed, out of memory.

use model::{EndReason, Error, Phase, Policy, SandboxId};

use super::ASKED;
use super::bench::{Bench, SOON};
use crate::{Exit, Update};

pub(super) async fn a_removed_sandbox_leaves_a_tombstone(bench: &Bench) {
    let id = bench.create().await.spec.id;
    bench.driver.remove(id, EndReason::Lifetime).await.expect("a sandbox can be removed");
    assert_tombstone(bench, id, EndReason::Lifetime).await;
    bench.driver.remove(id, EndReason::Idle).await.expect("removing it again is fine");
    assert_tombstone(bench, id, EndReason::Lifetime).await;
    let listed = bench.driver.list().await.expect("sandboxes can be listed");
    let listed = listed.iter().find(|seen| seen.spec.id == id).expect("its tombstone is listed");
    assert!(listed.tombstone.is_some(), "{listed:?}");
    bench.driver.collect().await.expect("a collection can be made");
    assert_tombstone(bench, id, EndReason::Lifetime).await;
}

pub(super) async fn a_sandbox_can_be_removed_from_any_state(bench: &Bench) {
    let stopped = bench.create().await.spec.id;
    bench.driver.stop(stopped, ASKED).await.expect("a sandbox can be stopped");
    bench.remove(stopped).await;
    assert_tombstone(bench, stopped, ASKED).await;

    let dead = bench.create().await;
    (bench.options.kill)(dead.spec.id);
    bench.remove(dead.spec.id).await;
    assert_tombstone(bench, dead.spec.id, ASKED).await;

    let at_once = bench.create().await.spec.id;
    let remove = || bench.driver.remove(at_once, ASKED);
    let (one, two) = tokio::join!(remove(), remove());
    one.expect("one of two removals");
    two.expect("the other of two removals");
    assert_tombstone(bench, at_once, ASKED).await;
}

pub(super) async fn removed_is_removed_for_every_call(bench: &Bench) {
    let id = bench.create().await.spec.id;
    bench.remove(id).await;
    assert!(bench.driver.guest(id).is_err());
    let refused = [
        bench.driver.start(id, Policy::none()).await.err(),
        bench.driver.stop(id, ASKED).await.err(),
        bench.driver.update(id, Update::default()).await.err(),
        bench.driver.usage(id).await.err(),
        bench.driver.maintenance(id).await.err(),
    ];
    for error in refused {
        assert!(matches!(error, Some(Error::NotFound { .. })), "{error:?}");
    }
    assert_tombstone(bench, id, ASKED).await;
}

pub(super) async fn an_unasked_end_is_told_and_the_workspace_kept(bench: &Bench) {
    let made = bench.create().await;
    let id = made.spec.id;
    bench.write(id, "/workspace/kept", b"kept over an end").await;
    bench.guest(id).sync("/workspace").await.expect("it can be flushed");
    (bench.options.kill)(id);
    let exit = exit_of(bench, id).await;
    assert_eq!(Some(exit.incarnation), made.incarnation);
    assert_eq!(exit.reason, EndReason::Exited);
    bench.assert_phase(id, Phase::Stopped).await;
    assert_eq!(bench.observe(id).await.end_reason, Some(EndReason::Exited));

    bench.driver.start(id, Policy::none()).await.expect("it can be started again");
    assert_eq!(bench.read(id, "/workspace/kept").await, b"kept over an end");
    bench.remove(id).await;
}

pub(super) async fn a_paused_sandbox_can_be_stopped_and_removed(bench: &Bench) {
    let stopped = bench.create().await.spec.id;
    bench.write(stopped, "/workspace/kept", b"kept").await;
    bench.driver.pause(stopped).await.expect("a sandbox can be paused");
    bench.driver.stop(stopped, ASKED).await.expect("a paused sandbox can be stopped");
    bench.assert_phase(stopped, Phase::Stopped).await;
    bench.driver.start(stopped, Policy::none()).await.expect("it can be started");
    assert_eq!(bench.read(stopped, "/workspace/kept").await, b"kept");
    bench.driver.pause(stopped).await.expect("a sandbox can be paused");
    bench.remove(stopped).await;
    assert_tombstone(bench, stopped, ASKED).await;
}

/// Either the kernel kills the eater and the sandbox goes on, or the sandbox ends for it; never a
/// hang, and the host knows.
pub(super) async fn eating_memory_ends_and_is_counted(bench: &Bench) {
    let id = bench.create().await.spec.id;
    let guest = bench.guest(id);
    let command =
        super::bench::start("head -c 1000000000 /dev/zero | tail -c 900000000 >/dev/null; exit $?");
    let eaten = async {
        let frames = guest.exec(&command).await?;
        futures_util::StreamExt::collect::<Vec<_>>(frames).await.into_iter().next_back().transpose()
    };
    let ended = tokio::time::timeout(SOON, eaten).await.expect("it ends");
    if bench.observe(id).await.phase == Phase::Running {
        let usage = bench.driver.usage(id).await.expect("its use can be read");
        assert!(usage.oom_kills > 0, "{usage:?}, {ended:?}");
        assert_eq!(bench.sh(id, "echo alive").await.stdout, "alive\n");
    } else {
        assert_eq!(exit_of(bench, id).await.reason, EndReason::Oom);
    }
    bench.remove(id).await;
}

async fn assert_tombstone(bench: &Bench, id: SandboxId, reason: EndReason) {
    let observed = bench.observe(id).await;
    assert_eq!(observed.phase, Phase::Destroyed, "{observed:?}");
    assert_eq!(observed.incarnation, None, "{observed:?}");
    let tombstone = observed.tombstone.expect("a removed sandbox leaves a tombstone");
    assert_eq!(tombstone.end_reason, reason);
}

/// The next exit of that sandbox; those of others are skipped.
async fn exit_of(bench: &Bench, id: SandboxId) -> Exit {
    let taken = bench.exits.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
    let mut exits = taken.expect("one assertion at a time waits for exits");
    let exit = tokio::time::timeout(SOON, async {
        loop {
            let exit = exits.recv().await.expect("the driver goes on telling exits");
            if exit.id == id {
                return exit;
            }
        }
    })
    .await
    .expect("an end is told soon");
    *bench.exits.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(exits);
    exit
}
