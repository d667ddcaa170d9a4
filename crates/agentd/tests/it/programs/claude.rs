//! Claude Code.

use agentd::adapter::{PermissionMode, PermissionReply};

use super::desk::Town;

async fn town() -> Town {
    Town::new("claude", &[("CLAUDE_CODE_MAX_RETRIES", "1"), ("IS_SANDBOX", "1")]).await
}

#[tokio::test]
async fn claude_talks_thinks_runs_and_remembers() {
    let town = town().await;
    let mut desk = town.open(&town.spec()).await;
    desk.turn("remember:walnut play:text").await;
    assert_eq!(desk.said(), ["Hello from the model."]);
    desk.assert_raw();
    desk.turn("play:run echo tool-ran-ok").await;
    assert_eq!(desk.call(), ("Bash".to_owned(), "tool-ran-ok".to_owned(), true));
    assert_eq!(desk.said(), ["I run a command.", "It came to: tool-ran-ok"]);
    desk.turn("play:recall").await;
    assert_eq!(desk.said(), ["The word is walnut."]);
    assert_eq!(desk.errors(), []);
    let native = desk.recorder.events(false).unwrap().pop().unwrap().native_session_id;
    desk.terminate().await;

    // Another process goes on with it.
    let mut desk = town.open(&agentd::adapter::SessionSpec { resume: native, ..town.spec() }).await;
    desk.turn("play:recall").await;
    assert_eq!(desk.said(), ["The word is walnut."]);
    desk.terminate().await;
    town.close().await;
}

#[tokio::test]
async fn claude_asks_for_permission() {
    let town = town().await;
    let mut desk = town.open(&town.spec()).await;
    let made = town.work().join("made.txt");

    desk.say("play:run touch made.txt").await;
    let (id, action) = desk.permission().await;
    assert_eq!(action, "Bash");
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
    desk.terminate().await;
    assert!(!town.work().join(".claude").exists(), "nothing of it outlives the session");

    let mut desk = town.open(&town.spec()).await;
    desk.say("play:run touch made.txt").await;
    let (id, _) = desk.permission().await;
    desk.reply(&id, PermissionReply::Reject).await;
    desk.end_of_turn().await;
    desk.terminate().await;
    town.close().await;
}

#[tokio::test]
async fn claude_asks_questions_and_has_plans_approved() {
    let town = town().await;
    let mut desk = town.open(&town.spec()).await;
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

    let spec = agentd::adapter::SessionSpec {
        agent_mode: "plan".to_owned(),
        permission_mode: PermissionMode::Plan,
        ..town.spec()
    };
    let mut desk = town.open(&spec).await;
    desk.say("play:plan").await;
    let (id, prompt, options) = desk.question().await;
    assert!(prompt.ends_with("1. Do it"), "{prompt}");
    desk.answer(&id, Some(&options[0])).await;
    assert_eq!(desk.end_of_turn().await, "completed");
    assert!(desk.call().2, "{:?}", desk.call());
    desk.terminate().await;
    town.close().await;
}

#[tokio::test]
async fn claude_survives_errors_and_interruptions() {
    let town = town().await;
    let spec =
        agentd::adapter::SessionSpec { permission_mode: PermissionMode::Bypass, ..town.spec() };
    let mut desk = town.open(&spec).await;
    for (status, code) in [(401, "api_error_401"), (500, "api_error_500")] {
        desk.say(&format!("play:error {status}")).await;
        assert_eq!(desk.end_of_turn().await, "failed");
        assert_eq!(desk.errors().len(), 1, "{:?}", desk.errors());
        assert_eq!(desk.errors()[0].0, code);
    }
    desk.say("play:slow").await;
    assert_eq!(desk.interrupt().await, "interrupted");
    assert_eq!(desk.errors(), []);
    // Nothing is asked for.
    desk.turn("play:run touch made.txt").await;
    assert!(desk.call().2 && town.work().join("made.txt").exists());
    // In the middle of a turn.
    desk.say("play:run sleep 1000").await;
    desk.until("the call", |data| match data {
        events::UniversalEventData::ItemStarted(data) => {
            (data.item.kind == events::ItemKind::ToolCall).then_some(())
        }
        _ => None,
    })
    .await;
    desk.terminate().await;
    town.close().await;
}
