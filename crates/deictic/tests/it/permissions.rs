//! What is asked for, in each mode, and what the answers do.

use deictic::protocol::{Heard, PermissionMode, Reply, Said, TurnStatus};
use serde_json::json;

use crate::model::{Asked, Dialect, Model, Play, call, say};
use crate::talk::Setup;

/// Whoever says "run X" gets it run.
fn obey(asked: &Asked) -> Play {
    let last = asked.body["messages"].as_array().unwrap().last().unwrap();
    if last["content"][0]["type"] == "tool_result" {
        return say(&format!("It came to: {}", asked.last_result().trim()));
    }
    let (verb, rest) = asked.last_user().split_once(' ').unwrap();
    match verb {
        "run" => call("shell_exec", json!({ "command": rest })),
        "write" => call("write_file", json!({"path": rest, "content": "x"})),
        "read" => call("read_file", json!({ "path": rest })),
        "ask" => call("ask_user", json!({"question": rest, "options": ["Red", "Blue"]})),
        "plan" => call("exit_plan", json!({ "plan": rest })),
        _ => say("what?"),
    }
}

#[tokio::test]
async fn by_default_reading_is_free_and_the_rest_is_asked_for() {
    let model = Model::serve(Dialect::Anthropic, obey).await;
    let setup = Setup::new(&model).mode(PermissionMode::Default);
    std::fs::write(setup.work().join("there.txt"), "it is").unwrap();
    let made = setup.work().join("made");
    let mut talk = setup.open().await;
    talk.turn("read there.txt").await;
    assert_eq!(talk.texts(), ["It came to: it is"]);

    talk.say("run touch made").await;
    let (id, action) = talk.permission().await;
    assert_eq!(action, "shell_exec");
    talk.reply(&id, Reply::Reject).await;
    assert_eq!(talk.end_of_turn().await, TurnStatus::Completed);
    assert!(!talk.results()[0].1 && !made.exists());

    talk.say("run touch made").await;
    let (id, _) = talk.permission().await;
    talk.reply(&id, Reply::Always).await;
    talk.end_of_turn().await;
    assert!(made.exists());
    talk.turn("run touch made").await;
    assert!(talk.results()[0].1, "the same command is not asked for again");
    talk.say("run touch other").await;
    let (id, _) = talk.permission().await;
    talk.reply(&id, Reply::Once).await;
    talk.end_of_turn().await;
    assert!(setup.work().join("other").exists());

    talk.say("write a.txt").await;
    let (id, action) = talk.permission().await;
    assert_eq!(action, "write_file");
    talk.reply(&id, Reply::Always).await;
    talk.end_of_turn().await;
    talk.turn("write b.txt").await;
    assert!(setup.work().join("b.txt").exists(), "files are, whatever their name");
    talk.close().await;
    model.close();
}

#[tokio::test]
async fn an_interrupt_withdraws_what_is_asked() {
    let model = Model::serve(Dialect::Anthropic, obey).await;
    let setup = Setup::new(&model).mode(PermissionMode::Default);
    let mut talk = setup.open().await;
    talk.say("run touch made").await;
    let (asked, _) = talk.permission().await;
    talk.tell(&Heard::Interrupt).await;
    assert_eq!(talk.end_of_turn().await, TurnStatus::Interrupted);
    let withdrawn = talk.turn.iter().find_map(|said| match said {
        Said::PermissionWithdrawn { id } => Some(id.clone()),
        _ => None,
    });
    assert_eq!(withdrawn, Some(asked.clone()));
    // An answer that comes too late is nobody's.
    talk.reply(&asked, Reply::Once).await;
    talk.say("ask Which?").await;
    let (id, prompt, options) = talk.question().await;
    assert_eq!((prompt.as_str(), options.join(" ")), ("Which?", "Red Blue".to_owned()));
    talk.answer(&id, Some("Blue")).await;
    talk.end_of_turn().await;
    assert_eq!(talk.texts(), ["It came to: Blue"]);
    talk.say("ask Which?").await;
    let (id, ..) = talk.question().await;
    talk.answer(&id, None).await;
    assert_eq!(talk.end_of_turn().await, TurnStatus::Completed);
    assert!(!talk.results()[0].1);
    assert!(!setup.work().join("made").exists());
    talk.close().await;
    model.close();
}

#[tokio::test]
async fn a_plan_is_made_by_reading_and_carried_out_when_it_is_approved() {
    let model = Model::serve(Dialect::Anthropic, obey).await;
    let setup = Setup::new(&model).mode(PermissionMode::Plan);
    let mut talk = setup.open().await;
    talk.turn("run touch made").await;
    assert!(!talk.results()[0].1 && talk.results()[0].0.contains("exit_plan"));
    talk.turn("write made").await;
    assert!(!talk.results()[0].1);
    talk.say("plan 1. Do it").await;
    let (id, prompt, options) = talk.question().await;
    assert!(prompt.ends_with("1. Do it") && options == ["approve", "reject"], "{prompt}");
    talk.answer(&id, Some("reject")).await;
    talk.end_of_turn().await;
    assert!(!talk.results()[0].1);
    talk.say("plan 2. Do it well").await;
    let (id, ..) = talk.question().await;
    talk.answer(&id, Some("approve")).await;
    talk.end_of_turn().await;
    assert!(talk.results()[0].1);
    // From now on it is asked for.
    talk.say("run touch made").await;
    let (id, _) = talk.permission().await;
    talk.reply(&id, Reply::Once).await;
    talk.end_of_turn().await;
    assert!(setup.work().join("made").exists());
    talk.close().await;
    model.close();
}

#[tokio::test]
async fn files_outside_are_out_of_reach_unless_everything_is_allowed() {
    let model = Model::serve(Dialect::Anthropic, obey).await;
    let setup = Setup::new(&model).mode(PermissionMode::Default);
    std::os::unix::fs::symlink("/etc/passwd", setup.work().join("link")).unwrap();
    std::os::unix::fs::symlink("../../../../../etc", setup.work().join("up")).unwrap();
    let mut talk = setup.open().await;
    for path in
        ["/etc/passwd", "../../../../../etc/passwd", "link", "up/passwd", "/proc/self/environ"]
    {
        talk.turn(&format!("read {path}")).await;
        let (output, fine) = talk.results()[0].clone();
        assert!(!fine && !output.contains("root:"), "{path}: {output}");
    }
    talk.close().await;
    let setup = setup.mode(PermissionMode::Bypass);
    let mut talk = setup.open().await;
    talk.turn("read /etc/passwd").await;
    assert!(talk.results()[0].0.contains("root:"));
    talk.turn("read /proc/self/environ").await;
    assert!(!talk.results()[0].1, "its own environment has the key");
    talk.turn("run echo key=$LLM_API_KEY.").await;
    assert_eq!(talk.results()[0].0, "key=.\n", "commands do not get the key");
    talk.close().await;
    model.close();
}
