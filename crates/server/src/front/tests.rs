//! A handler that panics.

use http_body_util::BodyExt;

use super::caught;

#[tokio::test]
async fn a_panic_is_a_problem_without_its_text() {
    for formatted in [false, true] {
        let answer = caught(async move {
            assert!(formatted, "secret detail");
            panic!("secret {}", "detail")
        });
        let answer = answer.await;
        assert_eq!(answer.status(), 500);
        assert_eq!(answer.headers()["content-type"], "application/problem+json");
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        let problem: api::Problem = serde_json::from_slice(&body).unwrap();
        assert_eq!(problem.code, api::Code::Internal);
        assert!(!problem.detail.contains("secret"));
    }
}
