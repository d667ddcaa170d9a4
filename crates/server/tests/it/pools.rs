//! Several pools: partial lists, none that answers, none with room.

use driver::fake::{FakeDriver, Step};
use serde_json::json;

use crate::harness::{Setup, TestServer};

async fn two_pools() -> (TestServer, FakeDriver) {
    let second = FakeDriver::new();
    let mut setup = Setup::new();
    setup.pools[0].1 = Some(1);
    setup.pools.push((second.clone(), None));
    (setup.start().await, second)
}

#[tokio::test]
async fn a_pool_that_fails_makes_the_list_partial() {
    let (server, second) = two_pools().await;
    let operator = &server.operator;
    operator.sandbox().await;
    operator.sandbox().await;
    assert_eq!((server.driver.count(), second.count()), (1, 1));
    let whole = operator.get("/v1/sandboxes").await.json(200);
    assert_eq!(whole.as_array().unwrap().len(), 2);
    second.set_reachable(false);
    let partial = operator.get("/v1/sandboxes").await.json(200);
    assert_eq!(partial["partial"], true);
    assert_eq!(partial["sandboxes"].as_array().unwrap().len(), 1);
    server.driver.set_reachable(false);
    operator.get("/v1/sandboxes").await.problem(503, "unavailable");
    let create = operator.post("/v1/sandboxes", &json!({ "template": "standard" })).await;
    create.problem(503, "unavailable");
    second.set_reachable(true);
    server.driver.set_reachable(true);
    assert!(operator.get("/v1/sandboxes").await.json(200).is_array());
    server.stop().await;
}

#[tokio::test]
async fn without_room_anywhere_a_create_is_409() {
    let mut setup = Setup::new();
    setup.pools[0].1 = Some(1);
    let server = setup.start().await;
    let operator = &server.operator;
    let first = operator.sandbox().await;
    let body = json!({ "template": "standard" });
    operator.post("/v1/sandboxes", &body).await.problem(409, "no_capacity");
    operator.post_nothing(&format!("{first}/stop")).await.json(200);
    let second = operator.sandbox().await;
    operator.post_nothing(&format!("{first}/start")).await.problem(409, "no_capacity");
    operator.delete(&second).await.json(200);
    operator.post_nothing(&format!("{first}/start")).await.json(200);
    server.stop().await;
}

#[tokio::test]
async fn a_create_that_fails_leaves_nothing_and_tells_nothing() {
    let server = TestServer::start().await;
    let body = json!({ "template": "standard", "name": "mine" });
    for step in Step::OF_CREATE {
        server.driver.fail(step, 1);
        let answer = server.operator.post("/v1/sandboxes", &body).await;
        let problem = answer.problem(500, "internal");
        assert!(!problem.to_string().contains("told to fail"), "{problem}");
    }
    assert_eq!(server.driver.count(), 0);
    server.operator.create(&body).await;
    server.stop().await;
}
