//! Several agents: a planner gives steps to agents by their capability. Steps that depend on nothing that is
//! still being done run at the same time; each agent gets its task and the results of the steps that its own
//! depends on, and has its own tools only. A step that fails is tried once more, then the planner is told. An
//! agent cannot delegate: there is one level.
//!
//! ```text
//! waiting --what it needs is done--> running --> done
//!    \--what it needs failed--> skipped      \--twice--> failed
//! ```

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;

use events::{ContentPart, ItemKind, ItemRole, ItemStatus};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::app::AgentSpec;
use crate::history::History;
use crate::model::{Message, ToolSpec};
use crate::protocol::{Item, Said};
use crate::toolbox::Toolbox;
use crate::tools::Outcome;
use crate::turn::{self, Worker};

/// Steps of one plan.
const STEPS_MAX: usize = 24;

/// Steps that run at the same time.
const PARALLEL_MAX: usize = 4;

/// How often a step is begun.
const ATTEMPTS_MAX: u32 = 2;

/// What is passed on of a result.
const RESULT_BYTES_MAX: usize = 16 * 1024;

const TASK_BYTES_MAX: usize = 64 * 1024;

pub(crate) const DELEGATE: &str = "delegate";

/// Those to whom work can be given.
#[derive(Debug)]
pub(crate) struct Crew {
    members: Vec<Member>,
}

#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) agent: AgentSpec,
    pub(crate) system: Arc<str>,
    pub(crate) toolbox: Arc<Toolbox>,
}

/// A step of a plan, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Step {
    id: String,
    /// In the crew.
    member: usize,
    task: String,
    /// Earlier steps, by number.
    after: Vec<usize>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    Waiting,
    Running,
    Done(String),
    Failed(String),
    Skipped,
}

impl Crew {
    pub(crate) fn new(members: Vec<Member>) -> Self {
        Self { members }
    }

    pub(crate) fn spec(&self) -> ToolSpec {
        let names: Vec<&str> =
            self.members.iter().map(|member| member.agent.capability.as_str()).collect();
        let description = "Give steps to agents and get their results. `after` names the steps whose \
                           results a step needs; steps that need nothing run at once.";
        ToolSpec {
            name: DELEGATE.to_owned(),
            description: description.to_owned(),
            parameters: json!({
                "type": "object",
                "properties": {"steps": {"type": "array", "maxItems": STEPS_MAX, "items": {
                    "type": "object",
                    "properties": {
                        "id": {"type": "string"},
                        "capability": {"type": "string", "enum": names},
                        "task": {"type": "string"},
                        "after": {"type": "array", "items": {"type": "string"}},
                    },
                    "required": ["id", "capability", "task"],
                    "additionalProperties": false,
                }}},
                "required": ["steps"],
                "additionalProperties": false,
            }),
        }
    }

    /// Boxed, because agents make calls and this is one.
    pub(crate) fn carry_out<'a>(
        &'a self,
        planner: &'a Worker,
        arguments: &'a Value,
        call: &'a str,
    ) -> Pin<Box<dyn Future<Output = Outcome> + Send + 'a>> {
        Box::pin(async move {
            match self.plan(arguments) {
                Ok(steps) => self.run(planner, &steps, call).await,
                Err(why) => Outcome::failed(why),
            }
        })
    }

    fn plan(&self, arguments: &Value) -> Result<Vec<Step>, String> {
        let listed = arguments.get("steps").and_then(Value::as_array);
        let listed = listed.filter(|steps| !steps.is_empty()).ok_or("steps: there are none")?;
        if listed.len() > STEPS_MAX {
            return Err(format!("steps: at most {STEPS_MAX} at once"));
        }
        let mut numbers = BTreeMap::new();
        let mut steps = Vec::new();
        for (number, value) in listed.iter().enumerate() {
            let text = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default();
            let (id, capability, task) = (text("id"), text("capability"), text("task"));
            let member = self.members.iter().position(|one| one.agent.capability == capability);
            let member = member.ok_or_else(|| {
                format!("steps[{number}].capability: nobody has it: {capability}")
            })?;
            if id.is_empty() || task.is_empty() || task.len() > TASK_BYTES_MAX {
                return Err(format!("steps[{number}]: needs an id and a task"));
            }
            let needed = value.get("after").and_then(Value::as_array).into_iter().flatten();
            let after = needed
                .map(|name| {
                    let name = name.as_str().unwrap_or_default();
                    numbers.get(name).copied().ok_or_else(|| {
                        format!("steps[{number}].after: not an earlier step: {name}")
                    })
                })
                .collect::<Result<Vec<usize>, _>>()?;
            if numbers.insert(id, number).is_some() {
                return Err(format!("steps[{number}].id: used twice: {id}"));
            }
            steps.push(Step { id: id.to_owned(), member, task: task.to_owned(), after });
        }
        Ok(steps)
    }

    async fn run(&self, planner: &Worker, steps: &[Step], call: &str) -> Outcome {
        let mut states = vec![State::Waiting; steps.len()];
        let mut running = JoinSet::new();
        loop {
            skip(steps, &mut states);
            while running.len() < PARALLEL_MAX
                && let Some(number) = next(steps, &states)
            {
                states[number] = State::Running;
                let job = self.job(planner, steps, &states, (number, call));
                running.spawn(async move { (number, job.run().await) });
            }
            let Some(ended) = running.join_next().await else { break };
            match ended {
                Ok((number, Ok(text))) => states[number] = State::Done(text),
                Ok((number, Err(why))) => states[number] = State::Failed(why),
                Err(error) => return Outcome::failed(format!("an agent broke: {error}")),
            }
        }
        told(steps, &states)
    }

    fn job(
        &self,
        planner: &Worker,
        steps: &[Step],
        states: &[State],
        (number, call): (usize, &str),
    ) -> Job {
        let step = &steps[number];
        let member = &self.members[step.member];
        let mut task = step.task.clone();
        for before in &step.after {
            if let State::Done(text) = &states[*before] {
                task.push_str(&format!("\n\n[result of {}]\n{text}", steps[*before].id));
            }
        }
        let voice = planner.voice.below(call);
        let arguments = json!({"step": step.id, "task": step.task}).to_string();
        let name = member.agent.name.clone();
        let content = ContentPart::ToolCall { name, arguments, call_id: step.id.clone() };
        let shown = voice.item(ItemKind::ToolCall, ItemRole::Assistant, vec![content]);
        let worker = Worker {
            shared: Arc::clone(&planner.shared),
            system: Arc::clone(&member.system),
            toolbox: Arc::clone(&member.toolbox),
            crew: None,
            voice: voice.below(&shown.id),
            cancel: planner.cancel.clone(),
        };
        Job { worker, shown, task, step: step.id.clone() }
    }
}

/// One step at work.
struct Job {
    worker: Worker,
    shown: Item,
    task: String,
    step: String,
}

impl Job {
    async fn run(mut self) -> Result<String, String> {
        let Self { worker, shown, task, step } = &mut self;
        worker.voice.say(Said::ItemStarted { item: shown.clone() }).await;
        let mut last = String::new();
        for attempt in 1..=ATTEMPTS_MAX {
            let mut history = History::passing();
            let mut text = task.clone();
            if attempt > 1 {
                text.push_str(&format!("\n\n[it was tried before and failed: {last}]"));
            }
            // Nothing of it is on a disk.
            let _ = history.push(Message::User { text });
            let over = turn::run(worker, &mut history).await;
            match over.result {
                Ok(said) => {
                    let said = cut(said);
                    end(worker, shown, (step, &said), ItemStatus::Completed).await;
                    return Ok(said);
                }
                Err(trouble) => last = trouble.message(),
            }
            if worker.cancel.is_cancelled() {
                break;
            }
            let detail = json!({"step": step, "attempt": attempt, "message": last});
            worker.voice.status("step_failed", &detail).await;
        }
        end(worker, shown, (step, &last), ItemStatus::Failed).await;
        Err(last)
    }
}

async fn end(worker: &Worker, shown: &mut Item, (step, text): (&str, &str), status: ItemStatus) {
    let content = ContentPart::ToolResult { call_id: step.to_owned(), output: text.to_owned() };
    let mut result = worker.voice.item(ItemKind::ToolResult, ItemRole::Tool, vec![content]);
    result.status = status;
    shown.status = status;
    worker.voice.say(Said::ItemCompleted { item: shown.clone() }).await;
    worker.voice.say(Said::ItemCompleted { item: result }).await;
}

/// What needs something that will never be done.
fn skip(steps: &[Step], states: &mut [State]) {
    for (number, step) in steps.iter().enumerate() {
        let lost = |before: &usize| matches!(states[*before], State::Failed(_) | State::Skipped);
        if states[number] == State::Waiting && step.after.iter().any(lost) {
            states[number] = State::Skipped;
        }
    }
}

fn next(steps: &[Step], states: &[State]) -> Option<usize> {
    let done = |before: &usize| matches!(states[*before], State::Done(_));
    (0..steps.len())
        .find(|number| states[*number] == State::Waiting && steps[*number].after.iter().all(done))
}

/// What the planner gets.
fn told(steps: &[Step], states: &[State]) -> Outcome {
    let told: Vec<Value> = steps
        .iter()
        .zip(states)
        .map(|(step, state)| match state {
            State::Done(text) => json!({"id": step.id, "status": "done", "result": text}),
            State::Failed(why) => json!({"id": step.id, "status": "failed", "error": why}),
            State::Waiting | State::Running | State::Skipped => json!({
                "id": step.id, "status": "skipped", "error": "a step that it needs failed",
            }),
        })
        .collect();
    let text = json!({ "steps": told }).to_string();
    match states.iter().all(|state| matches!(state, State::Done(_))) {
        true => Outcome::fine(text),
        false => Outcome::failed(text),
    }
}

fn cut(mut text: String) -> String {
    if text.len() > RESULT_BYTES_MAX {
        let end = (0..=RESULT_BYTES_MAX).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
        text.push_str("\n[the rest is left out]");
    }
    text
}
