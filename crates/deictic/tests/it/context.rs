//! Conversations that become too long: what matters stays, and the model never has to say that it cannot.

use deictic::protocol::TurnStatus;
use serde_json::json;

use crate::model::{Asked, DIALECTS, Dialect, Model, Play, call, say};
use crate::talk::Setup;

/// Reads file after file, as often as it was told, and says what it still knows.
fn reads(asked: &Asked, files: u64) -> Play {
    if asked.system.contains("Sum it up") {
        return say("SUMMARY: the first files were read.");
    }
    match asked.number {
        n if n <= files => call(
            "shell_exec",
            json!({
                "command": format!("echo file-{n}; head -c 12000 /dev/zero | tr '\\0' x; echo end-{n}"),
            }),
        ),
        _ => {
            let task = asked.users.first().is_some_and(|text| text.contains("the task is green"));
            let last = asked.results.last().is_some_and(|text| text.len() > 12_000);
            let summed = asked.users.iter().any(|text| text.contains("SUMMARY"));
            say(&format!("task: {task}, last: {last}, summed: {summed}"))
        }
    }
}

#[tokio::test]
async fn a_long_conversation_is_made_shorter_and_keeps_what_matters() {
    for dialect in DIALECTS {
        let model = Model::serve(dialect, |asked| reads(asked, 40)).await;
        let mut setup = Setup::new(&model).limits(|limits| {
            limits.context_tokens = 30_000;
            limits.output_tokens = 2_000;
        });
        let mut talk = setup.open().await;
        assert_eq!(talk.turn("the task is green").await, TurnStatus::Completed, "{dialect:?}");
        assert_eq!(talk.errors(), Vec::<String>::new());
        let shorter = talk.statuses("compaction");
        assert!(!shorter.is_empty());
        assert!(shorter.iter().all(|one| {
            one["tokens_after"].as_u64().unwrap() < one["tokens_before"].as_u64().unwrap() / 2
        }));
        let said = talk.texts().pop().unwrap();
        assert!(said.starts_with("task: true, last: true"), "{dialect:?}: {said}");
        // What the vendor got never was too much for it.
        for asked in model.asked() {
            assert!(asked.body.to_string().len() < 30_000 * 4, "{}", asked.number);
        }
        // And that is what the next process goes on with.
        setup.start.session = Some(talk.id.clone());
        talk.close().await;
        let mut talk = setup.open().await;
        talk.turn("and now").await;
        let said = talk.texts().pop().unwrap();
        assert!(said.starts_with("task: true"), "{said}");
        talk.close().await;
        model.close();
    }
}

/// The words with which the vendors refuse.
#[tokio::test]
async fn a_refusal_for_its_length_makes_it_shorter_at_once() {
    for (dialect, words) in [
        (Dialect::Anthropic, "prompt is too long: 210000 tokens > 200000 maximum"),
        (Dialect::OpenAi, "Your input exceeds the context window of this model."),
        (Dialect::DeepSeek, "This model's maximum context length is 131072 tokens."),
        (Dialect::Google, "The input token count (1200000) exceeds the maximum number of tokens"),
    ] {
        let model = Model::serve(dialect, move |asked| {
            let bytes: usize = asked.results.iter().map(String::len).sum();
            match asked.number {
                _ if asked.system.contains("Sum it up") => say("SUMMARY"),
                n if n <= 10 => reads(asked, 10),
                _ if bytes > 40_000 => {
                    Play::Refuse { status: 400, retry_after: None, message: words }
                }
                _ => say("Now I can."),
            }
        })
        .await;
        let setup = Setup::new(&model);
        let mut talk = setup.open().await;
        let status = talk.turn("go").await;
        assert_eq!(status, TurnStatus::Completed, "{dialect:?}: {:?}", talk.errors());
        assert_eq!(talk.texts().pop().unwrap(), "Now I can.");
        assert!(!talk.statuses("compaction").is_empty());
        talk.close().await;
        model.close();
    }
}

#[tokio::test]
async fn one_that_stays_too_long_fails_and_says_so() {
    let model = Model::serve(Dialect::Anthropic, |_| Play::Refuse {
        status: 400,
        retry_after: None,
        message: "prompt is too long",
    })
    .await;
    let setup = Setup::new(&model);
    let mut talk = setup.open().await;
    assert_eq!(talk.turn("go").await, TurnStatus::Failed);
    assert_eq!(talk.errors(), ["context_length_exceeded"]);
    talk.close().await;
    model.close();
}
