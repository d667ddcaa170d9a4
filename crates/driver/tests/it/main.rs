//! The fake keeps every promise that a real driver keeps.

use std::sync::Arc;

use driver::conformance::{Options, check};
use driver::fake::FakeDriver;
use model::EndReason;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_fake_driver_conforms() {
    let driver = FakeDriver::new();
    let killer = driver.clone();
    let options = Options {
        template: "standard".parse().expect("a constant name"),
        kill: Box::new(move |id| killer.kill(id, EndReason::Exited)),
        memory_limit: false,
    };
    check(Arc::new(driver.clone()), options).await;
    assert_eq!(driver.count(), 0, "the suite removes what it made");
}
