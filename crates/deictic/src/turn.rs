//! A turn: the model says something, its calls are made, their results are given back, until it calls nothing.
//!
//! ```text
//! asking --answer without calls--> over            asking --fault--> failed
//!   ^  \--answer with calls--> calling --results--> asking
//!   |                            \-- interrupted: the rest of the calls are answered so, and it is over
//!   \-- too long: made shorter, asked again
//! ```

mod ask;
mod call;
mod watch;

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use self::watch::Watch;
use crate::context;
use crate::crew::Crew;
use crate::desk::Desk;
use crate::fault::Fault;
use crate::history::History;
use crate::limits::Limits;
use crate::meter::Meter;
use crate::model::{Answer, Client, Environment, Message, Stop};
use crate::toolbox::Toolbox;
use crate::tools::Workplace;
use crate::voice::Voice;

pub(crate) use self::ask::ask_once;

/// How often one turn may be made shorter because the model could not read it.
const SHORTENED_MAX: u32 = 3;

/// What all agents of a session share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) client: Client,
    pub(crate) desk: Desk,
    pub(crate) meter: Meter,
    pub(crate) workplace: Workplace,
    pub(crate) limits: Limits,
}

impl Shared {
    /// From the next command, and the next call of the model, on. Why a key cannot be used.
    pub(crate) fn environment(&self, set: &Environment, unset: &[String]) -> Result<(), String> {
        self.workplace.environment.change(set, unset);
        self.client.endpoint.change_key(set)
    }
}

/// An agent at work.
#[derive(Debug, Clone)]
pub(crate) struct Worker {
    pub(crate) shared: Arc<Shared>,
    pub(crate) system: Arc<str>,
    pub(crate) toolbox: Arc<Toolbox>,
    /// Whom it may give work to.
    pub(crate) crew: Option<Arc<Crew>>,
    pub(crate) voice: Voice,
    pub(crate) cancel: CancellationToken,
}

/// Why a turn did not end well.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Trouble {
    Interrupted,
    Model(Fault),
    Other { code: &'static str, message: String },
}

impl Trouble {
    pub(crate) fn other(code: &'static str, message: impl Into<String>) -> Self {
        Self::Other { code, message: message.into() }
    }

    pub(crate) fn code(&self) -> String {
        match self {
            Self::Interrupted => "interrupted".to_owned(),
            Self::Model(fault) => fault.code(),
            Self::Other { code, .. } => (*code).to_owned(),
        }
    }

    pub(crate) fn message(&self) -> String {
        match self {
            Self::Interrupted => "interrupted".to_owned(),
            Self::Model(fault) => fault.to_string(),
            Self::Other { message, .. } => message.clone(),
        }
    }

    pub(crate) fn of_disk(error: &std::io::Error) -> Self {
        let code = match error.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => "disk_full",
            _ => "transcript_failed",
        };
        Self::other(code, format!("cannot keep the conversation: {error}"))
    }
}

/// What a turn came to.
#[derive(Debug)]
pub(crate) struct Over {
    pub(crate) steps: u32,
    /// The last thing that was said.
    pub(crate) result: Result<String, Trouble>,
}

/// Carries out what was said last in the history.
pub(crate) async fn run(worker: &Worker, history: &mut History) -> Over {
    let mut steps = 0;
    let result = work(worker, history, &mut steps).await;
    Over { steps, result }
}

async fn work(worker: &Worker, history: &mut History, steps: &mut u32) -> Result<String, Trouble> {
    let limits = &worker.shared.limits;
    let mut watch = Watch::default();
    while *steps < limits.steps {
        *steps += 1;
        let answer = next_answer(worker, history).await?;
        let calls = answer.calls();
        let text = answer.text();
        if calls.is_empty() && text.trim().is_empty() {
            return Err(match answer.stop {
                Stop::Refused => Trouble::other("model_refused", "the model refused to answer"),
                Stop::Length => Trouble::other(
                    "output_limit",
                    "the model used up what it may say before it said anything",
                ),
                Stop::Done | Stop::ContextFull => {
                    Trouble::other("no_answer", "the model said nothing")
                }
            });
        }
        let said = Message::Assistant { blocks: answer.blocks };
        history.push(said).map_err(|error| Trouble::of_disk(&error))?;
        if calls.is_empty() {
            if answer.stop == Stop::Length {
                let limit = serde_json::json!({"output_tokens": limits.output_tokens});
                worker.voice.status("output_limit", &limit).await;
            }
            return Ok(text);
        }
        let (results, trouble) = call::make_all(worker, &calls, &mut watch).await;
        let kept = history.push(Message::Results { results });
        if let Some(trouble) = trouble {
            return Err(trouble);
        }
        kept.map_err(|error| Trouble::of_disk(&error))?;
    }
    Err(Trouble::other("too_many_steps", format!("the turn took more than {} steps", limits.steps)))
}

/// Asks, with the conversation made shorter where it has to be.
async fn next_answer(worker: &Worker, history: &mut History) -> Result<Answer, Trouble> {
    let shared = &worker.shared;
    let mut shortened = 0;
    if history.tokens() > context::room(&shared.limits) {
        context::shorten(worker, history, shortened).await?;
    }
    loop {
        if shared.meter.tokens() > shared.limits.turn_tokens {
            let message = format!("the turn used more than {} tokens", shared.limits.turn_tokens);
            return Err(Trouble::other("token_limit", message));
        }
        let fault = match ask::ask(worker, history.messages()).await {
            Ok(answer) if answer.stop == Stop::ContextFull && answer.calls().is_empty() => {
                Fault::ContextFull { message: "it stopped in its answer".to_owned() }
            }
            Ok(answer) => {
                history.answered(&answer);
                return Ok(answer);
            }
            Err(Trouble::Model(fault)) => fault,
            Err(trouble) => return Err(trouble),
        };
        if !matches!(fault, Fault::ContextFull { .. }) || shortened >= SHORTENED_MAX {
            return Err(Trouble::Model(fault));
        }
        shortened += 1;
        context::shorten(worker, history, shortened).await?;
    }
}
