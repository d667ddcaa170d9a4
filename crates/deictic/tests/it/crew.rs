//! Several agents: the task is split, each works with its own tools, and what comes of it is one answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use deictic::protocol::{Heard, Item, PermissionMode, Reply, Said, TurnStatus};
use events::{ContentPart, ItemKind, ItemStatus};
use serde_json::{Value, json};

use crate::model::{Asked, DIALECTS, Dialect, Model, Play, call, say};
use crate::talk::{Setup, Talk};

fn app() -> Value {
    let agent = |name: &str, capability: &str, tools: Value| {
        json!({"name": name, "capability_name": capability,
            "capability_description": format!("{capability} things"), "tools": tools})
    };
    json!({"name": "Test app", "capability_sets": [
        {"name": "one", "agents": [agent("Reader", "reading", json!(["file_read", "search"]))]},
        {"name": "two", "agents": [agent("Writer", "writing", json!(["write_file", "shell"]))]},
    ]})
}

fn step(id: &str, capability: &str, task: &str, after: &[&str]) -> Value {
    json!({"id": id, "capability": capability, "task": task, "after": after})
}

fn delegate(steps: &[Value]) -> Play {
    call("delegate", json!({ "steps": steps }))
}

fn is_planner(asked: &Asked) -> bool {
    asked.tools.iter().any(|tool| tool == "delegate")
}

/// The step whose tool call has this step's id, and the result of it.
fn step_item(talk: &Talk, wanted: &str) -> Item {
    let found = talk.items().into_iter().find(|item| {
        item.kind == ItemKind::ToolCall
            && matches!(item.content.first(), Some(ContentPart::ToolCall { call_id, .. })
                if call_id == wanted)
    });
    found.unwrap_or_else(|| panic!("no step {wanted}: {:#?}", talk.items()))
}

#[tokio::test]
async fn a_task_is_split_given_out_and_answered_in_one() {
    for dialect in DIALECTS {
        let model = Model::serve(dialect, |asked| {
            if is_planner(asked) {
                return match asked.results.len() {
                    0 => delegate(&[
                        step("w", "writing", "write it", &[]),
                        step("r", "reading", "read it", &["w"]),
                    ]),
                    _ => say(&format!("All: {}", asked.last_result())),
                };
            }
            let done = !asked.results.is_empty();
            match asked.last_user() {
                "write it" if !done => call("write_file", json!({"path": "f", "content": "ink"})),
                "write it" => say("written to f"),
                task if !done => {
                    assert!(task.contains("[result of w]\nwritten to f"), "{task}");
                    call("read_file", json!({"path": "f"}))
                }
                _ => say(&format!("it says {}", asked.last_result().trim())),
            }
        })
        .await;
        let setup = Setup::new(&model).app(app());
        let mut talk = setup.open().await;
        assert_eq!(talk.turn("go").await, TurnStatus::Completed, "{:#?}", talk.turn);
        let last = talk.texts().pop().unwrap();
        assert!(last.starts_with("All: ") && last.contains("it says ink"), "{last}");
        talk.assert_closed();
        // What an agent says and does belongs to its step, and the step to the call.
        let (write, read) = (step_item(&talk, "w"), step_item(&talk, "r"));
        assert!(write.parent.is_some() && write.parent == read.parent);
        let items = talk.items();
        let said = items.iter().find(|item| item.content == [ContentPart::text("written to f")]);
        assert_eq!(said.unwrap().parent, Some(write.id.clone()));
        // Each has its own tools and nobody's history.
        for asked in model.asked() {
            match asked.last_user() {
                "go" => assert_eq!(asked.tools, ["delegate", "ask_user"]),
                "write it" => assert_eq!(asked.tools, ["write_file", "shell_exec"]),
                _ => assert_eq!(asked.tools, ["read_file", "search"]),
            }
        }
        let used = talk.statuses("runtime_event");
        assert_eq!(used[0]["model_calls"], 6, "all of them count: {used:?}");
        talk.close().await;
        model.close();
    }
}

#[tokio::test]
async fn independent_steps_run_at_the_same_time() {
    let busy = Arc::new(AtomicUsize::new(0));
    let most = Arc::clone(&busy);
    // Each waits until all four are there: one after the other would never end.
    let model = Model::serve(Dialect::Anthropic, move |asked| {
        if is_planner(asked) {
            return match asked.results.len() {
                0 => delegate(
                    &(0..4)
                        .map(|n| step(&format!("s{n}"), "writing", "meet", &[]))
                        .collect::<Vec<_>>(),
                ),
                _ => say("met"),
            };
        }
        match asked.results.len() {
            0 => {
                most.fetch_add(1, Ordering::SeqCst);
                call(
                    "shell_exec",
                    json!({"command": "touch here-$$; for i in $(seq 600); do \
                    [ $(ls here-* | wc -l) = 4 ] && exit 0; sleep 0.05; done; exit 1"}),
                )
            }
            _ => say(asked.last_result()),
        }
    })
    .await;
    let setup = Setup::new(&model).app(app());
    let mut talk = setup.open().await;
    assert_eq!(talk.turn("go").await, TurnStatus::Completed);
    assert_eq!(busy.load(Ordering::SeqCst), 4);
    for n in 0..4 {
        assert_eq!(step_item(&talk, &format!("s{n}")).status, ItemStatus::Completed);
    }
    assert!(talk.results().iter().all(|(_, fine)| *fine), "{:?}", talk.results());
    talk.close().await;
    model.close();
}

#[tokio::test]
async fn a_failed_step_is_tried_again_and_then_planned_around() {
    let model = Model::serve(Dialect::OpenAi, |asked| {
        if is_planner(asked) {
            return match asked.results.len() {
                0 => delegate(&[
                    step("bad", "reading", "break", &[]),
                    step("flaky", "reading", "stumble", &[]),
                    step("needs", "writing", "never", &["bad"]),
                ]),
                1 => delegate(&[step("other", "writing", "instead", &[])]),
                _ => say("in the end it worked"),
            };
        }
        let task = asked.last_user();
        match task {
            "instead" => say("done instead"),
            _ if task.starts_with("stumble\n") && task.contains("tried before") => say("ok now"),
            _ => Play::Refuse { status: 400, retry_after: None, message: "as ordered" },
        }
    })
    .await;
    let setup = Setup::new(&model).app(app());
    let mut talk = setup.open().await;
    assert_eq!(talk.turn("go").await, TurnStatus::Completed, "{:#?}", talk.turn);
    assert_eq!(talk.texts().pop().unwrap(), "in the end it worked");
    assert_eq!(step_item(&talk, "bad").status, ItemStatus::Failed);
    assert_eq!(step_item(&talk, "flaky").status, ItemStatus::Completed);
    let asked = model.asked();
    let planner = asked.iter().filter(|one| is_planner(one)).nth(1).unwrap();
    let told: Value = serde_json::from_str(planner.last_result()).unwrap();
    let states: Vec<_> =
        told["steps"].as_array().unwrap().iter().map(|one| one["status"].clone()).collect();
    assert_eq!(states, ["failed", "done", "skipped"]);
    assert!(!asked.iter().any(|one| one.last_user() == "never"));
    let tries = asked.iter().filter(|one| one.last_user().starts_with("break")).count();
    assert_eq!(tries, 2);
    talk.close().await;
    model.close();
}

#[tokio::test]
async fn plans_that_make_no_sense_are_refused_by_name() {
    let plans: Vec<(Value, &str)> = vec![
        (json!({"steps": []}), "there are none"),
        (json!({"steps": [step("a", "flying", "x", &[])]}), "nobody has it: flying"),
        (json!({"steps": [step("a", "reading", "x", &["b"])]}), "not an earlier step: b"),
        (
            json!({"steps": [step("a", "reading", "x", &[]), step("a", "reading", "y", &[])]}),
            "used twice: a",
        ),
    ];
    for (plan, wanted) in plans {
        let model = Model::serve(Dialect::DeepSeek, move |asked| match asked.results.len() {
            0 => call("delegate", plan.clone()),
            _ => say(asked.last_result()),
        })
        .await;
        let setup = Setup::new(&model).app(app());
        let mut talk = setup.open().await;
        assert_eq!(talk.turn("go").await, TurnStatus::Completed);
        assert!(talk.texts()[0].contains(wanted), "{wanted}: {:?}", talk.texts());
        talk.close().await;
        model.close();
    }
}

#[tokio::test]
async fn agents_ask_for_permission_and_an_interrupt_ends_all_of_them() {
    let model = Model::serve(Dialect::Google, |asked| {
        if is_planner(asked) {
            return match asked.last_user() {
                "well" => say("fine"),
                _ => delegate(&[
                    step("a", "writing", "sleep", &[]),
                    step("b", "writing", "sleep", &[]),
                ]),
            };
        }
        call("shell_exec", json!({"command": "echo begun; sleep 1000"}))
    })
    .await;
    let setup = Setup::new(&model).mode(PermissionMode::Default).app(app());
    let mut talk = setup.open().await;
    talk.say("go").await;
    for _ in 0..2 {
        let (id, _) = talk.permission().await;
        talk.reply(&id, Reply::Once).await;
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    talk.tell(&Heard::Interrupt).await;
    assert_eq!(talk.end_of_turn().await, TurnStatus::Interrupted);
    talk.assert_closed();
    assert_eq!(talk.errors(), Vec::<String>::new());
    assert_eq!(talk.turn("well").await, TurnStatus::Completed);
    talk.close().await;
    model.close();
}

#[tokio::test]
async fn an_application_that_makes_no_sense_is_refused_by_field() {
    let model = Model::serve(Dialect::Anthropic, |_| say("unheard")).await;
    let agent = |tools: Value| {
        json!({"capability_sets": [{"agents": [
            {"name": "a", "capability_name": "b", "tools": tools}]}]})
    };
    let twice = json!({"capability_sets": {"x": {"agents": [
        {"name": "a", "capability_name": "b"}, {"name": "c", "capability_name": "b"}]}}});
    for (app, wanted) in [
        (json!([]), "app_json: not an object"),
        (json!({"tools": []}), "app_json.tools: the flat form"),
        (json!({"name": "x", "colour": 1}), "app_json.colour: unknown field"),
        (agent(json!(["teleport"])), "agents[0].tools[0]: no such tool: teleport"),
        (agent(json!(["mcp__no__x"])), "no such tool server: no"),
        (twice, "app_json.capability_sets.x.agents[1].capability_name"),
    ] {
        let message = Setup::new(&model).app(app).refusal().await;
        assert!(message.contains(wanted), "{wanted}: {message}");
    }
    // The words of the catalogue, and a single agent that is no planner.
    let setup =
        Setup::new(&model).app(agent(json!(["file_read", "file_write", "shell", "search"])));
    let mut talk = setup.open_after_statuses().await;
    let tools = talk.turn.iter().find_map(|said| match said {
        Said::Ready { tools, .. } => Some(tools.clone()),
        _ => None,
    });
    assert_eq!(tools.unwrap(), ["read_file", "write_file", "shell_exec", "search", "ask_user"]);
    talk.turn("go").await;
    talk.close().await;
    model.close();
}
