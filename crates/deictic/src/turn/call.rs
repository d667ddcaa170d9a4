//! Making the calls of one answer, one after the other: shown, permitted, made, answered. Every call gets a
//! result, whatever happens, because a conversation without one cannot go on.

use events::{ContentPart, ItemKind, ItemRole, ItemStatus};
use serde_json::{Value, json};

use super::watch::Watch;
use super::{Trouble, Worker};
use crate::desk::{Verdict, Wanted};
use crate::model::{Call, CallResult};
use crate::protocol::{Item, PermissionMode, Said};
use crate::toolbox::Entry;
use crate::tools::{End, Outcome, Tool};

/// Calls of one answer. A model that makes more is told so.
const CALLS_MAX: usize = 64;

const APPROVE: &str = "approve";
const REJECT: &str = "reject";

pub(super) async fn make_all(
    worker: &Worker,
    calls: &[Call],
    watch: &mut Watch,
) -> (Vec<CallResult>, Option<Trouble>) {
    let mut results = Vec::new();
    let mut trouble = None;
    for (number, call) in calls.iter().enumerate() {
        let skipped = match () {
            () if worker.cancel.is_cancelled() => Some("not done: interrupted"),
            () if trouble.is_some() => Some("not done"),
            () if number >= CALLS_MAX => Some("not done: too many calls at once"),
            () => None,
        };
        if let Some(why) = skipped {
            results.push(result_of(call, &Outcome::failed(why)));
            continue;
        }
        let shown = begin(worker, call).await;
        let outcome = match worker.toolbox.find(&call.name) {
            None => {
                trouble = watch.unknown(call);
                let names = worker.toolbox.names().join(", ");
                Outcome::failed(format!("there is no such tool; there are: {names}"))
            }
            Some(entry) => {
                let outcome = one(worker, call, entry, &shown).await;
                trouble = watch.called(call, &outcome);
                outcome
            }
        };
        end(worker, shown, call, &outcome).await;
        results.push(result_of(call, &outcome));
    }
    if worker.cancel.is_cancelled() {
        trouble = Some(Trouble::Interrupted);
    }
    (results, trouble)
}

fn result_of(call: &Call, outcome: &Outcome) -> CallResult {
    CallResult {
        id: call.id.clone(),
        name: call.name.clone(),
        output: outcome.output.clone(),
        failed: outcome.end != End::Fine,
    }
}

async fn begin(worker: &Worker, call: &Call) -> Item {
    worker.shared.meter.called();
    let content = ContentPart::ToolCall {
        name: call.name.clone(),
        arguments: call.arguments.clone(),
        call_id: call.id.clone(),
    };
    let item = worker.voice.item(ItemKind::ToolCall, ItemRole::Assistant, vec![content]);
    worker.voice.say(Said::ItemStarted { item: item.clone() }).await;
    item
}

async fn end(worker: &Worker, mut shown: Item, call: &Call, outcome: &Outcome) {
    let status = match outcome.end {
        End::Fine => ItemStatus::Completed,
        End::Failed | End::TimedOut | End::DiskFull => ItemStatus::Failed,
    };
    let (call_id, output) = (call.id.clone(), outcome.output.clone());
    let mut content = vec![ContentPart::ToolResult { call_id, output }];
    content.extend(outcome.file.clone());
    let mut result =
        worker.voice.below(&shown.id).item(ItemKind::ToolResult, ItemRole::Tool, content);
    shown.status = status;
    result.status = status;
    worker.voice.say(Said::ItemCompleted { item: shown }).await;
    worker.voice.say(Said::ItemCompleted { item: result }).await;
}

async fn one(worker: &Worker, call: &Call, entry: &Entry, shown: &Item) -> Outcome {
    let arguments = match call.parsed() {
        Ok(arguments) => arguments,
        Err(why) => return Outcome::failed(why),
    };
    match entry {
        Entry::AskUser => ask_user(worker, &arguments).await,
        Entry::ExitPlan => exit_plan(worker, &arguments).await,
        Entry::Delegate(_) => match &worker.crew {
            Some(crew) => crew.carry_out(worker, &arguments, &shown.id).await,
            None => Outcome::failed("there is nobody to give work to"),
        },
        Entry::Own(tool) => match permitted(worker, call, Some(*tool), &arguments).await {
            Ok(()) => tool.call(&arguments, &worker.shared.workplace, &worker.cancel).await,
            Err(denied) => denied,
        },
        Entry::Mcp(tool) => match permitted(worker, call, None, &arguments).await {
            Ok(()) => {
                let made = tool.call(&arguments);
                let made = worker.cancel.run_until_cancelled(made).await;
                made.unwrap_or_else(|| Outcome::failed("interrupted"))
            }
            Err(denied) => denied,
        },
    }
}

async fn permitted(
    worker: &Worker,
    call: &Call,
    tool: Option<Tool>,
    arguments: &Value,
) -> Result<(), Outcome> {
    let wanted = Wanted { name: &call.name, tool, arguments };
    match worker.shared.desk.permit(wanted, &worker.voice, &worker.cancel).await {
        Verdict::Allowed => Ok(()),
        Verdict::Denied(why) => Err(Outcome::failed(why)),
        Verdict::Interrupted => Err(Outcome::failed("interrupted")),
    }
}

async fn ask_user(worker: &Worker, arguments: &Value) -> Outcome {
    let Some(question) = arguments.get("question").and_then(Value::as_str) else {
        return Outcome::failed("question: is missing, or is not a string");
    };
    let options = arguments.get("options").and_then(Value::as_array).into_iter().flatten();
    let options = options.filter_map(Value::as_str).map(str::to_owned).collect();
    let desk = &worker.shared.desk;
    match desk.ask(question.to_owned(), options, &worker.voice, &worker.cancel).await {
        Some(answer) => Outcome::fine(answer.join(", ")),
        None => Outcome::failed("nobody answered; go on without the answer, or stop"),
    }
}

async fn exit_plan(worker: &Worker, arguments: &Value) -> Outcome {
    let desk = &worker.shared.desk;
    if desk.mode() != PermissionMode::Plan {
        return Outcome::failed("you are not planning");
    }
    let plan = arguments.get("plan").and_then(Value::as_str).unwrap_or_default();
    worker.voice.status("plan", &json!({ "plan": plan })).await;
    let prompt = format!("Carry out this plan?\n\n{plan}");
    let options = vec![APPROVE.to_owned(), REJECT.to_owned()];
    let answer = desk.ask(prompt, options, &worker.voice, &worker.cancel).await;
    let answer = answer.and_then(|answer| answer.into_iter().next()).unwrap_or_default();
    match answer.trim() {
        said if said.eq_ignore_ascii_case(APPROVE) => {
            desk.leave_plan();
            Outcome::fine("the user approves of the plan; carry it out")
        }
        said if said.is_empty() || said.eq_ignore_ascii_case(REJECT) => {
            Outcome::failed("the user does not approve of the plan")
        }
        said => Outcome::failed(format!("the user wants the plan changed: {said}")),
    }
}
