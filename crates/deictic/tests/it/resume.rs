//! A session goes on in another process, by its id.

use std::io::Write as _;

use deictic::protocol::TurnStatus;
use serde_json::json;

use crate::model::{Asked, DIALECTS, Dialect, Model, Play, Words, say};
use crate::talk::Setup;

fn recall(asked: &Asked) -> Play {
    match asked.last_user() {
        "think" if asked.results.is_empty() => Play::Say(Words {
            thinking: Some("Hm.".to_owned()),
            calls: vec![("shell_exec".to_owned(), json!({"command": "echo walnut"}))],
            ..Words::default()
        }),
        _ => say(&format!("{} and {}", asked.users.join(","), asked.results.join(",").trim())),
    }
}

#[tokio::test]
async fn a_session_goes_on_with_everything_that_was_said() {
    for dialect in DIALECTS {
        let model = Model::serve(dialect, recall).await;
        let mut setup = Setup::new(&model);
        let mut talk = setup.open().await;
        talk.turn("think").await;
        let id = talk.id.clone();
        // One process at a time has it.
        setup.start.session = Some(id.clone());
        assert!(setup.refusal().await.contains("another process has this session"));
        talk.close().await;
        let mut talk = setup.open().await;
        assert_eq!(talk.id, id);
        assert_eq!(talk.turn("more").await, TurnStatus::Completed, "{:#?}", talk.turn);
        assert_eq!(talk.texts(), ["think,more and walnut"], "{dialect:?}");
        talk.close().await;
        model.close();
    }
}

/// A crash in the middle of writing, and in the middle of a call.
#[tokio::test]
async fn what_was_torn_off_is_not_missed() {
    let model = Model::serve(Dialect::Anthropic, recall).await;
    let mut setup = Setup::new(&model);
    let mut talk = setup.open().await;
    talk.turn("first").await;
    let id = talk.id.clone();
    talk.close().await;
    let path = setup.state().join(format!("{id}.jsonl"));
    let call = json!({"id": "toolu_x", "name": "shell_exec", "arguments": "{}", "token": null});
    let message = json!({"role": "assistant", "blocks": [{"type": "call", "call": call}]});
    let entry = json!({"type": "message", "message": message});
    let mut file = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
    write!(file, "{entry}\n{{\"type\": \"message\", \"mess").unwrap();
    drop(file);
    setup.start.session = Some(id);
    let mut talk = setup.open().await;
    assert_eq!(talk.turn("second").await, TurnStatus::Completed, "{:#?}", talk.turn);
    assert!(talk.texts()[0].contains("the session was stopped meanwhile"), "{:?}", talk.texts());
    talk.close().await;
    // The call that nobody made is the only thing that the model could complain about.
    assert_eq!(model.asked().len(), 2);
}

#[tokio::test]
async fn another_vendor_gets_the_words_without_the_thoughts() {
    let model = Model::serve(Dialect::Anthropic, recall).await;
    let mut setup = Setup::new(&model);
    let mut talk = setup.open().await;
    talk.turn("think").await;
    setup.start.session = Some(talk.id.clone());
    talk.close().await;
    model.close();
    let other = Model::serve(Dialect::OpenAi, |asked| {
        let kinds = asked.body["input"].as_array().unwrap().iter();
        let kinds: Vec<_> = kinds.map(|item| item["type"].as_str().unwrap()).collect();
        say(&kinds.join(" "))
    })
    .await;
    setup.start.vendor = Some("openai".to_owned());
    setup.start.base_url = Some(other.url().to_owned());
    let mut talk = setup.open().await;
    talk.turn("more").await;
    let kinds = "message function_call function_call_output message message";
    assert_eq!(talk.texts(), [kinds]);
    talk.close().await;
}

#[tokio::test]
async fn an_id_is_no_path() {
    let model = Model::serve(Dialect::Anthropic, recall).await;
    let mut setup = Setup::new(&model);
    for id in ["../x", "dei_../../etc/passwd", "dei_", "", "dei_unknown"] {
        setup.start.session = Some(id.to_owned());
        let message = setup.refusal().await;
        assert!(message.starts_with("cannot go on with session"), "{message}");
    }
    model.close();
}
