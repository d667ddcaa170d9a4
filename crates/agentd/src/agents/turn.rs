//! The turn of a program that is spoken to over its standard input and output: whether one runs, when one that
//! was interrupted is given up on, and what is said of its end and of the program's.

use std::process::ExitStatus;
use std::time::Duration;

use events::{ContentPart, ItemKind, ItemRole};
use serde_json::json;
use tokio::time::{Instant, sleep_until, timeout};

use super::apply::apply;
use super::decoded::Decoded;
use crate::adapter::Ended;
use crate::conversion::Item;
use crate::process::AgentProcess;
use crate::recorder::Recorder;

#[derive(Debug, Default)]
pub(super) struct Turn {
    runs: bool,
    /// When an interrupted one is given up on.
    give_up: Option<Instant>,
}

/// How a program left that was to go on.
pub(super) struct Left {
    status: Option<ExitStatus>,
    stderr: Option<String>,
}

impl Turn {
    /// A message of the user's begins it, which is in the log from now on.
    pub(super) fn begin(&mut self, text: &str, recorder: &Recorder) {
        self.runs = true;
        let id = format!("user:{}", uuid::Uuid::new_v4());
        let item = Item::new(id, ItemKind::Message, ItemRole::User)
            .with_content(vec![ContentPart::text(text)]);
        recorder.record_synthetic(item.completed());
    }

    pub(super) fn runs(&self) -> bool {
        self.runs
    }

    /// The program was told. It is given up on if it goes on for so long.
    pub(super) fn interrupted(&mut self, patience: Duration) {
        self.give_up.get_or_insert(Instant::now() + patience);
    }

    /// Waits until it is given up on: for ever, unless it was interrupted.
    pub(super) async fn given_up(&self) {
        match self.give_up {
            Some(until) => sleep_until(until).await,
            None => std::future::pending().await,
        }
    }

    /// The program said that it is over.
    pub(super) fn over(&mut self) {
        *self = Self::default();
    }

    /// It ends without a word of the program's: what the decoder has `left` open is closed. Whether one ran.
    pub(super) fn close(
        &mut self,
        recorder: &Recorder,
        mut left: Vec<Decoded>,
        status: &str,
    ) -> bool {
        let ran = std::mem::take(self).runs;
        if ran {
            left.push(Decoded::TurnOver(json!({"status": status})));
        }
        apply(recorder, left, None);
        ran
    }
}

impl Left {
    /// Its output has ended: it is gone, or about to be.
    pub(super) async fn of(process: &mut AgentProcess, patience: Duration) -> Self {
        let status = timeout(patience, process.wait()).await.ok().and_then(Result::ok);
        process.kill().await;
        let stderr = Some(process.stderr()).filter(|text| !text.is_empty());
        Self { status, stderr }
    }

    pub(super) fn well(&self) -> bool {
        self.status.is_some_and(|status| status.success())
    }

    /// `None` if it was killed, or did not go.
    pub(super) fn code(&self) -> Option<i32> {
        self.status?.code()
    }

    pub(super) fn failed(self, program: &str) -> Ended {
        let exit_code = self.code();
        let message = match exit_code {
            Some(code) => format!("{program} exited with code {code}"),
            None => format!("{program} was killed"),
        };
        Ended::Failed { code: "process_exit", message, exit_code, stderr: self.stderr }
    }
}
