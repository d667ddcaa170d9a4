//! Codex.

use agentd::adapter::{PermissionMode, PermissionReply, SessionSpec};
use events::{ItemKind, UniversalEventData};

use super::desk::Town;

/// It takes the address of its model from a file.
async fn town() -> Town {
    let town = Town::new("codex", &[]).await;
    let config = format!(
        "model = \"test-model\"\n\
         model_provider = \"test\"\n\
         [features]\n\
         plugins = false\n\
         apps = false\n\
         [model_providers.test]\n\
         name = \"test\"\n\
         base_url = \"{}/v1\"\n\
         wire_api = \"responses\"\n\
         env_key = \"OPENAI_API_KEY\"\n\
         request_max_retries = 0\n\
         stream_max_retries = 0\n",
        town.model.url()
    );
    std::fs::create_dir_all(town.home().join(".codex")).unwrap();
    std::fs::write(town.home().join(".codex/config.toml"), config).unwrap();
    town
}

#[tokio::test]
async fn codex_talks_thinks_runs_and_remembers() {
    let town = town().await;
    let spec = SessionSpec { permission_mode: PermissionMode::Bypass, ..town.spec() };
    let mut desk = town.open(&spec).await;
    desk.turn("remember:walnut play:think").await;
    assert_eq!(desk.said(), ["Thought done."]);
    desk.assert_raw();
    desk.turn("play:run echo tool-ran-ok").await;
    assert_eq!(desk.call(), ("exec_command".to_owned(), "tool-ran-ok\n".to_owned(), true));
    assert!(desk.said()[1].contains("tool-ran-ok"), "{:?}", desk.said());
    desk.turn("play:run exit 3").await;
    assert!(!desk.call().2, "{:?}", desk.call());
    desk.turn("play:recall").await;
    assert_eq!(desk.said(), ["The word is walnut."]);
    assert_eq!(desk.errors(), []);
    // Two sessions of one process do not hear each other.
    let mut other = town.open(&town.spec()).await;
    other.turn("play:recall").await;
    assert_eq!(other.said(), ["The word is unknown."]);
    let resume = desk.native_id.clone();
    desk.terminate().await;
    let mut desk = town.open(&SessionSpec { resume, ..town.spec() }).await;
    desk.turn("play:recall").await;
    assert_eq!(desk.said(), ["The word is walnut."]);
    desk.terminate().await;
    other.terminate().await;
    town.close().await;
}

#[tokio::test]
async fn codex_asks_for_permission() {
    let town = town().await;
    let mut desk = town.open(&town.spec()).await;
    let made = town.work().join("made.txt");
    desk.say("play:run touch made.txt").await;
    let (id, action) = desk.permission().await;
    assert_eq!(action, "commandExecution");
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

    let patch = "apply_patch '*** Begin Patch\\n*** Add File: new.txt\\n+hello\\n*** End Patch'";
    desk.say(&format!("play:run {}", patch.replace("apply_patch '", "apply_patch $'"))).await;
    let (id, action) = desk.permission().await;
    assert!(["fileChange", "commandExecution"].contains(&action.as_str()), "{action}");
    desk.reply(&id, PermissionReply::Reject).await;
    desk.end_of_turn().await;
    assert!(!town.work().join("new.txt").exists());
    desk.terminate().await;
    town.close().await;
}

#[tokio::test]
async fn codex_asks_questions_also_when_it_plans() {
    let town = town().await;
    for agent_mode in ["build", "plan"] {
        let spec = SessionSpec { agent_mode: agent_mode.to_owned(), ..town.spec() };
        let mut desk = town.open(&spec).await;
        desk.say("play:ask").await;
        let (id, prompt, options) = desk.question().await;
        assert_eq!((prompt.as_str(), options.join(" ")), ("Which color?", "Red Blue".to_owned()));
        desk.answer(&id, Some("Blue")).await;
        desk.end_of_turn().await;
        assert!(desk.said()[0].contains("Blue"), "{:?}", desk.said());
        desk.say("play:ask").await;
        let (id, ..) = desk.question().await;
        desk.answer(&id, None).await;
        assert_eq!(desk.end_of_turn().await, "completed");
        assert!(!desk.said()[0].contains("Blue"), "{:?}", desk.said());
        desk.terminate().await;
    }
    town.close().await;
}

#[tokio::test]
async fn codex_survives_errors_interruptions_and_its_own_end() {
    let town = town().await;
    let spec = SessionSpec { permission_mode: PermissionMode::Bypass, ..town.spec() };
    let mut desk = town.open(&spec).await;
    for status in [401, 500] {
        desk.say(&format!("play:error {status}")).await;
        assert_eq!(desk.end_of_turn().await, "failed");
        assert_eq!(desk.errors().len(), 1, "{:?}", desk.errors());
    }
    desk.say("play:slow").await;
    assert_eq!(desk.interrupt().await, "interrupted");
    assert_eq!(desk.errors(), []);
    desk.turn("play:run touch made.txt").await;
    assert!(desk.call().2 && town.work().join("made.txt").exists());

    // The shared process dies in the middle of a turn: the session goes on in the next one.
    let resume = desk.native_id.clone();
    desk.say("play:run kill -9 $(ps -o ppid= -p $$)").await;
    let died = desk.until("the end of the process", |data| match data {
        UniversalEventData::Error(error) => error.code.clone(),
        _ => None,
    });
    assert_eq!(died.await, "server_exit");
    let status = town.adapter.server_status().unwrap();
    assert_eq!(status.restart_count, 1, "{status:?}");
    let mut desk = town.open(&SessionSpec { resume, ..spec }).await;
    desk.turn("play:text").await;
    assert_eq!(desk.said(), ["Hello from the model."]);

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
