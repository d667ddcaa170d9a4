//! Callers that go away before they are answered, as those do who have waited long enough.

#![expect(clippy::unwrap_used, reason = "what tests share: a panic is how it tells")]

mod needs_root {
    use std::pin::pin;
    use std::task::Poll;

    use driver::{Driver, Launch, Update};
    use driver_linux::LinuxDriver;
    use model::{EndReason, Name, Phase, Policy, SandboxId};

    use crate::host::{Host, create, run, spec, until};

    /// The answer, or none if it takes more polls.
    async fn leave_after<T>(polls: usize, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        let mut left = polls;
        std::future::poll_fn(|context| {
            if left == 0 {
                return Poll::Ready(None);
            }
            left -= 1;
            work.as_mut().poll(context).map(Some)
        })
        .await
    }

    async fn phase(driver: &LinuxDriver, id: SandboxId) -> Phase {
        driver.observe(id).await.unwrap().unwrap().phase
    }

    #[tokio::test]
    async fn what_nobody_waits_for_is_done_to_its_end_before_the_next_thing() {
        let host = Host::new();
        let driver = host.driver().await;
        let id = create(&driver).await.id;
        for polls in 0..4 {
            let stopped = leave_after(polls, driver.stop(id, EndReason::UserRequest)).await;
            assert!(polls > 0 || stopped.is_none());
            driver.stop(id, EndReason::UserRequest).await.unwrap();
            assert_eq!(phase(&driver, id).await, Phase::Stopped, "left after {polls}");
            drop(leave_after(polls, driver.maintenance(id)).await);
            drop(leave_after(polls, driver.start(id, Policy::none())).await);
            // As whoever asked for a start that failed does then.
            driver.stop(id, EndReason::Unknown).await.unwrap();
            assert_eq!(phase(&driver, id).await, Phase::Stopped, "left after {polls}");
            let name: Name = format!("name-{polls}").parse().unwrap();
            let update = Update { name: Some(name.clone()), policy: None };
            let updated = leave_after(polls, driver.update(id, update)).await;
            driver.start(id, Policy::none()).await.unwrap();
            let spec = driver.observe(id).await.unwrap().unwrap().spec;
            assert!(spec.name == name || polls == 0, "left after {polls}: {updated:?}");
            assert_eq!(run(&driver, id, "echo one").await.1, "one\n", "left after {polls}");
            until("one", async || driver.uid_ranges_in_use() == 1).await;
        }
        driver.remove(id, EndReason::UserRequest).await.unwrap();
        driver.close().await;
    }

    #[tokio::test]
    async fn a_create_and_a_removal_that_nobody_waits_for_leave_nothing() {
        let host = Host::new();
        let driver = host.driver().await;
        for polls in 0..4 {
            let spec = spec("host");
            let launch = Launch { spec: spec.clone(), policy: Policy::none() };
            drop(leave_after(polls, driver.create(launch)).await);
            drop(leave_after(polls, driver.remove(spec.id, EndReason::CreateFailed)).await);
            driver.remove(spec.id, EndReason::CreateFailed).await.unwrap();
            let left = driver.observe(spec.id).await.unwrap().map(|left| left.phase);
            assert!(matches!(left, None | Some(Phase::Destroyed)), "{left:?} left after {polls}");
            until("nothing", async || driver.uid_ranges_in_use() == 0).await;
        }
        driver.close().await;
    }
}
