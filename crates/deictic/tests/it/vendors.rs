//! The four vendors' formats (and the one of gateways): the same conversation in each.

use deictic::protocol::TurnStatus;
use serde_json::json;

use crate::model::{Asked, DIALECTS, Dialect, Model, Play, Words, call, halves, say};
use crate::talk::Setup;

fn script(asked: &Asked) -> Play {
    match asked.number {
        1 => Play::Say(Words {
            thinking: Some("Let me think.".to_owned()),
            pieces: halves("I run a command."),
            calls: vec![("shell_exec".to_owned(), json!({"command": "echo ran-$((40 + 2))"}))],
            ..Words::default()
        }),
        2 => say(&format!("It came to: {}", asked.last_result().trim())),
        _ => say(&format!("You said {} things.", asked.users.len())),
    }
}

#[tokio::test]
async fn every_vendor_streams_thinks_calls_and_counts() {
    for dialect in DIALECTS {
        let model = Model::serve(dialect, script).await;
        let setup = Setup::new(&model);
        let mut talk = setup.open().await;
        assert_eq!(talk.turn("hello").await, TurnStatus::Completed, "{:#?}", talk.turn);
        assert_eq!(talk.errors(), Vec::<String>::new());
        assert_eq!(talk.thoughts(), ["Let me think."], "{dialect:?}");
        assert_eq!(talk.texts(), ["I run a command.", "It came to: ran-42"], "{dialect:?}");
        assert_eq!(talk.results(), [("ran-42\n".to_owned(), true)]);
        talk.assert_closed();
        let used = talk.statuses("runtime_event");
        assert_eq!(used.len(), 1);
        assert_eq!(used[0]["input_tokens"], 20, "{dialect:?}: {used:?}");
        assert_eq!(used[0]["output_tokens"], 14, "{dialect:?}: {used:?}");
        assert_eq!(used[0]["cached_input_tokens"], 8, "{dialect:?}: {used:?}");
        assert_eq!((&used[0]["tool_calls"], &used[0]["model_calls"]), (&json!(1), &json!(2)));
        assert_eq!(used[0]["vendor"], dialect.vendor());
        // And it goes on.
        assert_eq!(talk.turn("again").await, TurnStatus::Completed);
        assert_eq!(talk.texts(), ["You said 2 things."]);
        talk.close().await;
        let asked = model.asked();
        assert!(asked[0].system.contains("deictic"), "{}", asked[0].system);
        let tools = ["read_file", "write_file", "list_directory", "shell_exec", "ask_user"];
        assert_eq!(asked[0].tools, tools);
        model.close();
    }
}

#[tokio::test]
async fn several_calls_of_one_answer_are_all_made() {
    for dialect in DIALECTS {
        let model = Model::serve(dialect, |asked| match asked.number {
            1 => crate::model::calls(vec![
                ("write_file", json!({"path": "a.txt", "content": "one"})),
                ("read_file", json!({"path": "a.txt"})),
                ("list_directory", json!({})),
            ]),
            _ => say(&asked.results.join("|")),
        })
        .await;
        let setup = Setup::new(&model);
        let mut talk = setup.open().await;
        assert_eq!(talk.turn("go").await, TurnStatus::Completed);
        assert_eq!(talk.texts(), ["wrote 3 bytes|one\n|a.txt  3 bytes\n"], "{dialect:?}");
        talk.close().await;
        model.close();
    }
}

#[tokio::test]
async fn how_hard_to_think_is_said_in_each_vendors_words() {
    for dialect in DIALECTS {
        let model = Model::serve(dialect, |_| say("yes")).await;
        let mut setup = Setup::new(&model);
        setup.start.effort = Some("low".to_owned());
        let mut talk = setup.open().await;
        assert_eq!(talk.turn("go").await, TurnStatus::Completed);
        talk.close().await;
        let body = model.asked()[0].body.clone();
        let said = match dialect {
            Dialect::Anthropic => body["thinking"]["budget_tokens"] == 2048,
            Dialect::OpenAi => body["reasoning"]["effort"] == "low",
            Dialect::OpenAiChat => body["reasoning_effort"] == "low",
            Dialect::DeepSeek => body["thinking"]["type"] == "enabled",
            Dialect::Google => body["generationConfig"]["thinkingConfig"]["thinkingBudget"] == 2048,
        };
        assert!(said, "{dialect:?}: {body}");
        model.close();
    }
}

#[tokio::test]
async fn what_is_missing_is_named() {
    let model = Model::serve(Dialect::Anthropic, |_| say("yes")).await;
    let mut setup = Setup::new(&model);
    setup.start.model = None;
    assert!(setup.refusal().await.contains("needs a model"));
    setup.start.model = Some("unheard-of".to_owned());
    setup.start.vendor = None;
    assert!(setup.refusal().await.starts_with("vendor: "));
    setup.start.model = Some("claude-x".to_owned());
    setup.environment.remove("LLM_API_KEY");
    assert!(setup.refusal().await.contains("LLM_API_KEY or ANTHROPIC_API_KEY"));
    setup.environment.insert("ANTHROPIC_API_KEY".to_owned(), "k".to_owned());
    setup.start.base_url = Some("file:///etc/passwd".to_owned());
    assert!(setup.refusal().await.starts_with("base_url: "));
    model.close();
}

#[tokio::test]
async fn a_vendor_is_known_by_the_models_name_and_the_environment() {
    let model = Model::serve(Dialect::OpenAiChat, |_| call("ask_user", json!({}))).await;
    let mut setup = Setup::new(&model).limits(|limits| limits.steps = 1);
    setup.start.vendor = None;
    setup.start.base_url = None;
    setup.start.model = Some(format!("openai-chat/{}", crate::model::MODEL));
    setup.environment.insert("OPENAI_BASE_URL".to_owned(), model.url().to_owned());
    let mut talk = setup.open().await;
    assert_eq!(talk.turn("go").await, TurnStatus::Failed);
    assert_eq!(talk.errors(), ["too_many_steps"]);
    talk.close().await;
    model.close();
}
