//! Lives of sandboxes.

mod needs_root {
    use std::sync::Arc;

    use driver::{Driver, conformance};
    use model::EndReason;

    use crate::host::{self, Host, create, run};

    #[tokio::test]
    async fn it_keeps_every_promise_of_a_driver() {
        let host = Host::new();
        let driver = host.driver().await;
        let data = host.path().join("data");
        let kill = move |id: model::SandboxId| {
            assert!(host::kill(host::run_record(&data, id)["pid"].as_i64().unwrap()));
        };
        let options = conformance::Options {
            template: "host".parse().unwrap(),
            kill: Box::new(kill),
            memory_limit: true,
        };
        conformance::check(Arc::new(driver.clone()), options).await;
        driver.close().await;
    }

    #[tokio::test]
    async fn a_command_runs_isolated() {
        let host = Host::new();
        let driver = host.driver().await;
        let spec = create(&driver).await;
        let (code, text) = run(&driver, spec.id, "id -un; pwd; hostname; echo $GREETING").await;
        assert_eq!((code, text.as_str()), (0, "user\n/workspace\nsandbox\nhello\n"));
        driver.remove(spec.id, EndReason::UserRequest).await.unwrap();
        driver.close().await;
    }
}
