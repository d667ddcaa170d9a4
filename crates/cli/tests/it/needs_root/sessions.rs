//! Sessions with real sandboxes: our own agent and the real command line agents over a WebSocket, with a model
//! that does as it is told and checks the key that it is sent.

pub(super) mod display;
mod replicas;
mod talk;
mod town;

use serde_json::json;

use self::talk::Talk;
use self::town::{NEW_KEY, Town};
use crate::model::KEY;

/// In one session, one after the other: what a conversation can meet.
#[test]
fn a_conversation_outlives_its_connections_its_server_and_its_sandbox() {
    let mut town = Town::new(&[]);
    town.bundle("POST", &json!({ "LLM_API_KEY": KEY, "TOKEN": "one" }));
    let session = town.create("deictic", &json!({}));
    let mut talk = session.connect(0);

    talk.say("remember:walnut play:text");
    assert_eq!(talk.end_of_turn(), "completed");
    assert_eq!(talk.said(), ["Hello from the model."]);
    // A permission, answered over the socket.
    talk.say("play:run echo \"<$TOKEN>\" | tee /workspace/made");
    talk.permit("reject");
    assert_eq!(talk.end_of_turn(), "completed");
    talk.say("play:run echo \"<$TOKEN>\" | tee /workspace/made");
    talk.permit("always");
    assert_eq!(talk.end_of_turn(), "completed");
    assert_eq!(talk.output(), "<one>\n");
    talk.say("play:slow");
    talk.until_delta("slow");
    talk.send(&json!({ "type": "interrupt" }));
    assert_eq!(talk.end_of_turn(), "interrupted");

    // Other secrets: the next call of the model has the new key, the next command the new value.
    town.model.rotate(NEW_KEY);
    town.bundle("PUT", &json!({ "LLM_API_KEY": NEW_KEY, "TOKEN": "two" }));
    assert_eq!(talk.control("config_update")["keys"], json!(["LLM_API_KEY", "TOKEN"]));
    talk.say("play:run echo \"<$TOKEN>\" | tee /workspace/made");
    assert_eq!(talk.end_of_turn(), "completed");
    assert_eq!(talk.output(), "<two>\n");

    // The server is killed in a turn, which goes on. The next one sends what came meanwhile.
    talk.say("play:slow");
    talk.until_delta("slow");
    town.kill_server();
    let mut talk = session.connect_again(talk.last());
    talk.until_delta("slow");
    talk.send(&json!({ "type": "interrupt" }));
    assert_eq!(talk.end_of_turn(), "interrupted");
    talk.say("play:recall");
    talk.end_of_turn();
    assert_eq!(talk.said(), ["The word is walnut."]);
    town.assert_nothing_is_readable(&["one", "two"].map(|value| format!("TOKEN={value}")));

    // Its sandbox is killed: told, and gone on with in another one, with its files and what it knows.
    town.kill_sandbox(&session.sandbox);
    assert!(talk.until_end().contains("session.ended"), "{:?}", talk.seen());
    let resumed = town.resume(&session);
    assert_eq!(resumed.answer["resumed_from"]["previous_status"], "failed", "{}", resumed.answer);
    assert_ne!(resumed.sandbox, session.sandbox);
    let mut talk = resumed.connect(talk.last());
    talk.say("play:recall");
    talk.end_of_turn();
    assert_eq!(talk.said(), ["The word is walnut."]);
    talk.say("play:run cat /workspace/made; echo $TOKEN");
    talk.permit("once");
    talk.end_of_turn();
    assert_eq!(talk.output(), "<two>\ntwo\n");
    assert_eq!(talk.errors(), Vec::<String>::new());

    // All of it is in the log, once: what one who comes late reads is what was said.
    let last = talk.last();
    drop(talk);
    let mut late = resumed.connect(0);
    late.read_to(last);
    drop(late);
    town.delete(&resumed);
    town.end();
}

/// Talks, asks, has another key, and is gone on with in another sandbox.
fn converses(agent: &str, asks: bool) {
    let town = Town::new(&[&format!("agent-{agent}")]);
    town.bundle("POST", &json!({ "LLM_API_KEY": KEY, "TOKEN": "one" }));
    let openai = json!({ "llm": { "vendor": "openai", "model": "gpt-5",
        "base_url": format!("{}/v1", town.model.url()) } });
    let changes = if agent == "codex" { openai } else { json!({}) };
    let session = town.create(agent, &changes);
    let mut talk = session.connect(0);
    talk.say("remember:walnut play:run touch /workspace/made-$TOKEN");
    if asks {
        talk.permit("once");
    }
    assert_eq!(talk.end_of_turn(), "completed", "{:#?}", talk.seen());

    town.model.rotate(NEW_KEY);
    town.bundle("PUT", &json!({ "LLM_API_KEY": NEW_KEY, "TOKEN": "two" }));
    talk.control("config_update");
    talk.say("play:run touch /workspace/made-$TOKEN; ls /workspace");
    if asks {
        talk.permit("once");
    }
    assert_eq!(talk.end_of_turn(), "completed", "{:#?}", talk.seen());
    assert!(talk.output().contains("made-one\nmade-two"), "{}", talk.output());
    talk.say("play:slow");
    talk.until_delta("slow");
    talk.send(&json!({ "type": "interrupt" }));
    assert_eq!(talk.end_of_turn(), "interrupted");

    town.kill_sandbox(&session.sandbox);
    talk.until_end();
    let resumed = town.resume(&session);
    let mut talk = resumed.connect(talk.last());
    talk.say("play:recall");
    assert_eq!(talk.end_of_turn(), "completed", "{:#?}", talk.seen());
    assert_eq!(talk.said(), ["The word is walnut."]);
    town.delete(&resumed);
    town.end();
}

#[test]
fn claude_converses_over_a_websocket() {
    converses("claude", true);
}

#[test]
fn codex_converses_over_a_websocket() {
    converses("codex", true);
}

#[test]
fn opencode_converses_over_a_websocket() {
    converses("opencode", false);
}
