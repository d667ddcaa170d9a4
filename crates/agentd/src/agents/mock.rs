//! The mock agent: built in, the same every time, for those who write clients. It shows every kind of
//! event, waits for no reply, and takes a moment between what it says.

mod flood;
mod script;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::mpsc;
use tokio::time::sleep;

use self::flood::{Flood, Next};
use self::script::{Step, prompt, steps};
use crate::adapter::{
    Adapter, AgentSession, Description, Ended, Mode, Opened, Order, PermissionMode, SessionSpec,
};
use crate::api::AgentCapabilities;
use crate::conversion::{Conversion, Raw};
use crate::error::Result;
use crate::host::Host;
use crate::recorder::Recorder;

static DESCRIPTION: Description = Description {
    id: "mock",
    program: None,
    capabilities: AgentCapabilities { shared_process: false, ..AgentCapabilities::ALL },
    modes: &[
        Mode { id: "build", name: "Build", description: "Mock agent for UI testing" },
        Mode { id: "plan", name: "Plan", description: "Plan-only mock mode" },
    ],
    modes_are_open: false,
    permission_modes: &[PermissionMode::Default, PermissionMode::Plan, PermissionMode::Bypass],
    marks_turns: false,
    state_variable: None,
    takes_environment: true,
};

#[derive(Debug, Default)]
pub(super) struct Mock;

#[async_trait]
impl Adapter for Mock {
    fn description(&self) -> &'static Description {
        &DESCRIPTION
    }

    async fn open(
        &self,
        spec: &SessionSpec,
        host: &Arc<Host>,
        recorder: &Recorder,
    ) -> Result<Opened> {
        if spec.resume.is_none() {
            let metadata = Some(serde_json::json!({ "mock": true }));
            recorder.record(Conversion::SessionStarted { metadata });
            for step in prompt(0) {
                act(step, recorder);
            }
        }
        // Turns of before a restart made at least one item each, so that no name comes twice.
        let turn = if spec.resume.is_some() { recorder.item_count() } else { 0 };
        let session = Box::new(Session { delay: host.mock_delay, turn });
        let native_session_id = Some(format!("mock-{}", spec.session_id));
        Ok(Opened { native_session_id, session })
    }
}

struct Session {
    delay: Duration,
    turn: u64,
}

/// How a pause ends.
enum Pause {
    Over,
    Interrupted,
    Terminated,
}

#[async_trait]
impl AgentSession for Session {
    async fn run(
        mut self: Box<Self>,
        mut orders: mpsc::Receiver<Order>,
        recorder: Recorder,
    ) -> Ended {
        while let Some(order) = orders.recv().await {
            let message = match order {
                Order::Message(message) => message,
                Order::Terminate => return Ended::Terminated,
                Order::Permission { .. }
                | Order::Question { .. }
                | Order::Interrupt
                | Order::Environment(_) => continue,
            };
            self.turn += 1;
            if let Some(flood) = Flood::asked(self.turn, &message.text) {
                if !rush(flood, &mut orders, &recorder).await {
                    return Ended::Terminated;
                }
                recorder.turn_ended();
                continue;
            }
            for (n, step) in steps(self.turn, &message.text).into_iter().enumerate() {
                let pause = if n > 0 { self.pause(&mut orders).await } else { Pause::Over };
                match pause {
                    Pause::Over => act(step, &recorder),
                    Pause::Interrupted => break,
                    Pause::Terminated => return Ended::Terminated,
                }
            }
            recorder.turn_ended();
        }
        Ended::Dormant
    }
}

/// Until it is over or nobody wants it any more. `false`: nor anything else.
async fn rush(mut flood: Flood, orders: &mut mpsc::Receiver<Order>, recorder: &Recorder) -> bool {
    loop {
        tokio::select! {
            biased;
            order = orders.recv() => match order {
                None | Some(Order::Terminate) => return false,
                Some(Order::Interrupt) => return true,
                Some(_) => {}
            },
            next = flood.next() => match next {
                Next::Over => return true,
                Next::Say(all) => all.into_iter().for_each(|one| recorder.record(one)),
            },
        }
    }
}

impl Session {
    async fn pause(&self, orders: &mut mpsc::Receiver<Order>) -> Pause {
        let over = async {
            if self.delay.is_zero() {
                tokio::task::yield_now().await;
            } else {
                sleep(self.delay).await;
            }
        };
        tokio::pin!(over);
        loop {
            tokio::select! {
                order = orders.recv() => match order {
                    Some(Order::Terminate) | None => return Pause::Terminated,
                    Some(Order::Interrupt) => return Pause::Interrupted,
                    Some(
                        Order::Message(_)
                        | Order::Permission { .. }
                        | Order::Question { .. }
                        | Order::Environment(_),
                    ) => {}
                },
                () = &mut over => return Pause::Over,
            }
        }
    }
}

fn act(step: Step, recorder: &Recorder) {
    match step {
        Step::Say(conversion) => recorder.record(conversion),
        Step::Fail(conversion) => recorder.record_synthetic(conversion),
        Step::Garble(conversion, raw) => recorder.record_raw(conversion, &Raw::of_text(raw)),
    }
}
