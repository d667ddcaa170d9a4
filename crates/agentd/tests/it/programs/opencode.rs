//! `OpenCode`.

use agentd::adapter::{PermissionReply, SessionSpec};
use events::{ItemKind, UniversalEventData};
use serde_json::json;

use super::desk::{Town, status};
use super::model::KEY;

/// It takes the address of its model, and what it asks for, from a file.
async fn town() -> Town {
    let town = Town::new("opencode", &[]).await;
    let options = json!({"baseURL": format!("{}/v1", town.model.url()), "apiKey": KEY});
    let config = json!({
        "autoupdate": false,
        "share": "disabled",
        "model": "test/test-model",
        "small_model": "test/test-model",
        "permission": {"bash": {"*": "ask", "echo *": "allow", "exit *": "allow", "sleep *": "allow"}},
        "provider": {"test": {
            "npm": "@ai-sdk/openai-compatible",
            "options": options,
            "models": {"test-model": {}},
        }},
    });
    let dir = town.home().join(".config/opencode");
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("opencode.json"), config.to_string()).unwrap();
    town
}

#[tokio::test]
async fn opencode_talks_thinks_runs_and_remembers() {
    let town = town().await;
    let mut desk = town.open(&town.spec()).await;
    desk.turn("remember:walnut play:think").await;
    assert_eq!(desk.said(), ["Thought done."]);
    desk.assert_raw();
    desk.turn("play:run echo tool-ran-ok").await;
    assert_eq!(desk.call(), ("bash".to_owned(), "tool-ran-ok\n".to_owned(), true));
    assert_eq!(desk.said(), ["I run a command.", "It came to: tool-ran-ok\n"]);
    desk.turn("play:run exit 3").await;
    assert!(!desk.call().2, "{:?}", desk.call());
    let mut other = town.open(&town.spec()).await;
    other.turn("play:recall").await;
    assert_eq!(other.said(), ["The word is unknown."]);
    other.terminate().await;
    let resume = desk.native_id.clone();
    desk.terminate().await;
    let mut desk = town.open(&SessionSpec { resume, ..town.spec() }).await;
    desk.turn("play:recall").await;
    assert_eq!(desk.said(), ["The word is walnut."]);
    assert_eq!(desk.errors(), []);
    desk.terminate().await;
    town.close().await;
}

#[tokio::test]
async fn opencode_asks_for_permission_and_asks_questions() {
    let town = town().await;
    let mut desk = town.open(&town.spec()).await;
    let made = town.work().join("made.txt");
    desk.say("play:run touch made.txt").await;
    let (id, action) = desk.permission().await;
    assert_eq!(action, "bash");
    desk.reply(&id, PermissionReply::Reject).await;
    assert_eq!(desk.end_of_turn().await, "completed");
    assert!(!desk.call().2 && !made.exists(), "it was not run");

    desk.say("play:run touch made.txt").await;
    let (id, _) = desk.permission().await;
    desk.reply(&id, PermissionReply::Once).await;
    desk.end_of_turn().await;
    assert!(desk.call().2 && made.exists());

    desk.say("play:run touch made.txt").await;
    let (id, _) = desk.permission().await;
    desk.reply(&id, PermissionReply::Always).await;
    desk.end_of_turn().await;
    desk.turn("play:run touch made.txt").await;
    assert!(desk.call().2, "it was not asked for again");

    desk.say("play:ask").await;
    let (id, prompt, options) = desk.question().await;
    assert_eq!((prompt.as_str(), options.join(" ")), ("Which color?", "Red Blue".to_owned()));
    desk.answer(&id, Some("Blue")).await;
    desk.end_of_turn().await;
    assert!(desk.call().1.contains("Blue"), "{:?}", desk.call());
    desk.say("play:ask").await;
    let (id, ..) = desk.question().await;
    desk.answer(&id, None).await;
    desk.end_of_turn().await;
    assert!(!desk.call().2, "it was declined");
    desk.terminate().await;

    // Always was for that session.
    let mut desk = town.open(&town.spec()).await;
    desk.say("play:run touch made.txt").await;
    let (id, _) = desk.permission().await;
    desk.reply(&id, PermissionReply::Reject).await;
    desk.end_of_turn().await;
    desk.terminate().await;
    town.close().await;
}

#[tokio::test]
async fn opencode_survives_errors_and_interruptions() {
    let town = town().await;
    let mut desk = town.open(&town.spec()).await;
    desk.say("play:error 401").await;
    assert_eq!(desk.end_of_turn().await, "failed");
    assert_eq!(desk.errors().len(), 1, "{:?}", desk.errors());
    assert_eq!(desk.errors()[0].0, "api_error_401");

    // It would try again for ever.
    desk.say("play:error 500").await;
    desk.until("a retry", |data| status(data).filter(|(label, _)| *label == "retry").map(|_| ()))
        .await;
    assert_eq!(desk.stop().await, "interrupted");

    desk.say("play:slow").await;
    assert_eq!(desk.interrupt().await, "interrupted");
    assert_eq!(desk.errors(), []);
    desk.turn("play:text").await;
    assert_eq!(desk.said(), ["Hello from the model."]);

    // Planning is one of its agents.
    let spec = SessionSpec { agent_mode: "plan".to_owned(), ..town.spec() };
    let mut planner = town.open(&spec).await;
    planner.turn("play:text").await;
    assert_eq!(planner.said(), ["Hello from the model."]);
    planner.terminate().await;

    // In the middle of a turn.
    desk.say("play:run sleep 1000").await;
    desk.until("the call", |data| match data {
        UniversalEventData::ItemStarted(data) => {
            (data.item.kind == ItemKind::ToolCall).then_some(())
        }
        _ => None,
    })
    .await;
    desk.terminate().await;
    town.close().await;
}
