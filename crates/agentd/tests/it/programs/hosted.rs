//! Sessions as a server has them, with the real programs.

use serde_json::{Value, json};

use super::registry::programs;
use crate::hosted::{Place, goes_on_elsewhere, shown};

async fn place() -> Place {
    let bin = programs().await.join("bin");
    let variables = [
        ("PATH", format!("{}:/usr/local/bin:/usr/bin:/bin", bin.display())),
        ("LANG", "C.UTF-8".to_owned()),
        ("IS_SANDBOX", "1".to_owned()),
        // Whatever is not for the model ends here.
        ("HTTPS_PROXY", "http://127.0.0.1:9".to_owned()),
        ("HTTP_PROXY", "http://127.0.0.1:9".to_owned()),
        ("NO_PROXY", "127.0.0.1,localhost".to_owned()),
    ];
    Place::new(variables.into()).await
}

/// What a server asks for beside what it asks for every agent.
fn of(place: &Place, agent: &str) -> Value {
    match agent {
        "codex" => json!({"vendor": "openai", "model": "test-model",
            "base_url": format!("{}/v1", place.model.url())}),
        // Whether it asks is its own configuration.
        "opencode" => json!({"permission_mode": "default"}),
        _ => json!({}),
    }
}

/// No process of it is told: the next one has them, and goes on where the last one was.
async fn other_secrets(agent: &str) {
    let mut place = place().await;
    let (daemon, data) = place.machine().await;
    let mut wanted = place.wanted(agent, &of(&place, agent));
    wanted["secrets"] = json!({"TOKEN": "hush-1"});
    daemon.host(&wanted).await;
    let run = "play:run echo \"<$TOKEN>\"";
    let events = daemon.turn(&format!("remember:walnut {run}")).await;
    assert!(shown(&events, "tool_result", "output").contains("<hush-1>"), "{events:#?}");
    let changed = daemon.change(&json!({"secrets": {"TOKEN": "hush-2"}})).await;
    assert_eq!(changed, json!({"keys": ["TOKEN"], "applies": "next_turn"}));
    let events = daemon.turn(run).await;
    assert!(shown(&events, "tool_result", "output").contains("<hush-2>"), "{events:#?}");
    let events = daemon.turn("play:recall").await;
    assert!(shown(&events, "text", "text").ends_with("The word is walnut."), "{events:#?}");
    assert!(daemon.events().await.iter().all(|event| event["type"] != "error"));
    let record = std::fs::read_to_string(data.join("sessions/00000001/session.json")).unwrap();
    assert!(!record.contains("hush"), "{record}");
    daemon.stop().await;
    place.end();
}

async fn elsewhere(agent: &str) {
    let mut place = place().await;
    let changes = of(&place, agent);
    goes_on_elsewhere(&mut place, agent, &changes).await;
    place.end();
}

#[tokio::test]
async fn claude_gets_other_secrets_with_the_next_turn() {
    other_secrets("claude").await;
}

#[tokio::test]
async fn codex_gets_other_secrets_with_the_next_turn() {
    other_secrets("codex").await;
}

#[tokio::test]
async fn opencode_gets_other_secrets_with_the_next_turn() {
    other_secrets("opencode").await;
}

#[tokio::test]
async fn claude_goes_on_elsewhere() {
    elsewhere("claude").await;
}

#[tokio::test]
async fn codex_goes_on_elsewhere() {
    elsewhere("codex").await;
}

#[tokio::test]
async fn opencode_goes_on_elsewhere() {
    elsewhere("opencode").await;
}
