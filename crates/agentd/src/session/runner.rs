//! The task of a session: gives the agent one message at a time, passes replies on, and sees its end.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use events::{SessionEndReason, SessionEndedData, TerminatedBy, UniversalEventData};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::{Begun, Command, End, QUEUE_MAX, Session};
use crate::adapter::{Ended, Message, Opened, Order, TERMINATE_GRACE};
use crate::conversion::Conversion;
use crate::error::Error;
use crate::recorder::{Recorder, Turns};

pub(super) struct Runner {
    session: Arc<Session>,
    commands: mpsc::Receiver<Command>,
    queue: VecDeque<Waiting>,
}

struct Waiting {
    text: String,
    begun: Option<oneshot::Sender<Begun>>,
}

/// An agent that runs.
struct Agent {
    run: Pin<Box<dyn Future<Output = Ended> + Send>>,
    orders: mpsc::Sender<Order>,
    /// How many turns were over when the one that runs began.
    turn: Option<u64>,
    /// Its variables are others now: it is opened again before the next turn.
    stale: bool,
}

/// What happened.
enum Event {
    Command(Option<Command>),
    Turns,
    Ended(Ended),
}

/// Whether the task goes on.
enum Next {
    Go,
    Stop,
}

impl Runner {
    pub(super) fn new(session: Arc<Session>, commands: mpsc::Receiver<Command>) -> Self {
        Self { session, commands, queue: VecDeque::new() }
    }

    pub(super) async fn run(mut self, opened: Option<Opened>) {
        let recorder = match self.session.recorder() {
            Ok(recorder) => recorder.clone(),
            Err(error) => {
                tracing::error!("session {}: {error}", self.session.id());
                return;
            }
        };
        let mut turns = recorder.turns();
        let mut agent = opened.map(|opened| Agent::start(opened, &recorder));
        loop {
            self.begin_turn(&mut agent, &recorder).await;
            let event = tokio::select! {
                command = self.commands.recv() => Event::Command(command),
                ended = ended(&mut agent) => Event::Ended(ended),
                _ = turns.changed() => Event::Turns,
            };
            let next = match event {
                Event::Command(Some(command)) => self.obey(command, &mut agent, &recorder).await,
                Event::Command(None) => Next::Stop,
                Event::Ended(ended) => self.agent_ended(ended, &mut agent, &recorder),
                Event::Turns => {
                    let now = *turns.borrow_and_update();
                    self.look(&mut agent, &recorder, now).await
                }
            };
            if matches!(next, Next::Stop) {
                break;
            }
        }
        self.leave();
    }

    /// The next message, if no turn runs. An agent that is dormant is opened for it.
    async fn begin_turn(&mut self, agent: &mut Option<Agent>, recorder: &Recorder) {
        if agent.as_ref().is_some_and(|agent| agent.turn.is_some()) {
            return;
        }
        while let Some(waiting) = self.queue.pop_front() {
            {
                // At once, so that it is at no time as if nothing was to be done: to open an agent takes long.
                let mut live = self.session.lock_live();
                (live.queued, live.busy) = (live.queued - 1, true);
            }
            if agent.is_none() {
                match self.reopen(recorder).await {
                    Ok(opened) => *agent = Some(Agent::start(opened, recorder)),
                    Err(error) => {
                        begin(waiting.begun, recorder);
                        recorder.record_synthetic(resume_failed(&error));
                        recorder.turn_ended();
                        self.session.lock_live().busy = false;
                        continue;
                    }
                }
            }
            let Some(agent) = agent else { return };
            let before = begin(waiting.begun, recorder).turns_before;
            let context = self.session.take_context();
            let order = Order::Message(Message { text: waiting.text, context });
            match agent.orders.try_send(order) {
                Ok(()) => agent.turn = Some(before),
                Err(_) => self.session.lock_live().busy = false,
            }
            return;
        }
    }

    async fn reopen(&self, recorder: &Recorder) -> Result<Opened, Error> {
        let spec = self.session.spec_to_resume();
        let opened = self.session.adapter.open(&spec, &self.session.host, recorder).await?;
        if let Some(native) = &opened.native_session_id {
            recorder.native_session_id(native);
        }
        Ok(opened)
    }

    async fn obey(
        &mut self,
        command: Command,
        agent: &mut Option<Agent>,
        recorder: &Recorder,
    ) -> Next {
        let order = match command {
            Command::Message { text, begun } => {
                self.queue.push_back(Waiting { text, begun });
                return Next::Go;
            }
            Command::Permission { id, reply } => Order::Permission { id, reply },
            Command::Question { id, answer } => Order::Question { id, answer },
            Command::Interrupt => Order::Interrupt,
            Command::Environment(change) if self.session.takes_environment() => {
                Order::Environment(change)
            }
            Command::Environment(_) => {
                if let Some(agent) = agent {
                    agent.stale = true;
                }
                self.refresh(agent, recorder).await;
                return Next::Go;
            }
            Command::Terminate { done } => {
                self.stop_agent(agent).await;
                recorder.close(Some(last(SessionEndReason::Terminated, TerminatedBy::Daemon)));
                drop(done);
                return Next::Stop;
            }
            Command::Suspend { done } => {
                self.stop_agent(agent).await;
                recorder.mend();
                drop(done);
                return Next::Stop;
            }
        };
        if let Some(agent) = agent
            && agent.orders.try_send(order).is_err()
        {
            tracing::warn!("session {}: the agent takes no orders", self.session.id());
        }
        Next::Go
    }

    async fn look(&mut self, agent: &mut Option<Agent>, recorder: &Recorder, turns: Turns) -> Next {
        if turns.broken {
            self.stop_agent(agent).await;
            self.session.end(End::Failed {
                exit_code: None,
                stderr: Some("the log of the session cannot be written".to_owned()),
            });
            recorder.close(None);
            return Next::Stop;
        }
        if let Some(agent) = agent
            && agent.turn.is_some_and(|before| turns.ended > before)
        {
            agent.turn = None;
            self.session.lock_live().busy = false;
            self.session.save();
        }
        self.refresh(agent, recorder).await;
        Next::Go
    }

    /// An agent with variables of before is let go, once no turn runs; the next message opens it again.
    async fn refresh(&self, agent: &mut Option<Agent>, recorder: &Recorder) {
        if agent.as_ref().is_some_and(|agent| agent.stale && agent.turn.is_none()) {
            self.stop_agent(agent).await;
            self.session.adapter.let_go().await;
            recorder.withdraw_pending();
            self.session.save();
            recorder.rest();
        }
    }

    fn agent_ended(
        &mut self,
        ended: Ended,
        agent: &mut Option<Agent>,
        recorder: &Recorder,
    ) -> Next {
        let in_turn = agent.take().is_some_and(|agent| agent.turn.is_some());
        self.session.lock_live().busy = false;
        let (end, reason) = match ended {
            Ended::Dormant => {
                recorder.withdraw_pending();
                if in_turn {
                    recorder.turn_ended();
                }
                self.session.save();
                recorder.rest();
                return Next::Go;
            }
            Ended::Completed | Ended::Terminated => (End::Completed, SessionEndReason::Completed),
            Ended::Failed { code, message, exit_code, stderr } => {
                let details = serde_json::json!({ "exitCode": exit_code, "stderr": stderr });
                recorder.record_synthetic(Conversion::error(message, Some(code), Some(details)));
                (End::Failed { exit_code, stderr }, SessionEndReason::Error)
            }
        };
        self.session.end(end);
        recorder.close(Some(last(reason, TerminatedBy::Agent)));
        Next::Stop
    }

    async fn stop_agent(&self, agent: &mut Option<Agent>) {
        let Some(Agent { run, orders, .. }) = agent.take() else { return };
        let _ = orders.try_send(Order::Terminate);
        if timeout(TERMINATE_GRACE, run).await.is_err() {
            tracing::warn!("session {}: the agent did not end by itself", self.session.id());
        }
        self.session.lock_live().busy = false;
    }

    /// The session has ended, or the daemon does: what still waits is not carried out.
    fn leave(mut self) {
        self.commands.close();
        let mut live = self.session.lock_live();
        live.commands = None;
        live.busy = false;
        live.queued = 0;
        drop(live);
        self.session.save();
        if let Some(recorder) = self.session.recorder.get() {
            recorder.rest();
        }
    }
}

impl Agent {
    fn start(opened: Opened, recorder: &Recorder) -> Self {
        let (orders, receiver) = mpsc::channel(QUEUE_MAX);
        let run = opened.session.run(receiver, recorder.clone());
        Self { run, orders, turn: None, stale: false }
    }
}

async fn ended(agent: &mut Option<Agent>) -> Ended {
    match agent {
        Some(agent) => agent.run.as_mut().await,
        None => std::future::pending().await,
    }
}

fn begin(begun: Option<oneshot::Sender<Begun>>, recorder: &Recorder) -> Begun {
    let progress = recorder.progress();
    let here = Begun { after: progress.count, turns_before: progress.turns_ended };
    if let Some(begun) = begun {
        let _ = begun.send(here);
    }
    here
}

fn resume_failed(error: &Error) -> Conversion {
    Conversion::error(format!("cannot resume the session: {error}"), Some("resume_failed"), None)
}

fn last(reason: SessionEndReason, terminated_by: TerminatedBy) -> UniversalEventData {
    UniversalEventData::SessionEnded(SessionEndedData { reason, terminated_by })
}
