//! Lives of sandboxes.

mod needs_root {
    use driver::Driver;
    use model::EndReason;

    use crate::host::{Host, create, run};

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
