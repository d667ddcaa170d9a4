//! Between sessions and the task that owns the app-server's process.

use serde_json::Value;
use tokio::sync::{mpsc, oneshot};

use crate::conversion::Raw;
use crate::error::{Error, Result};

/// What may wait in the queues between them.
pub(super) const QUEUE: usize = 1024;

/// From sessions.
pub(super) enum ToServer {
    Call {
        method: &'static str,
        params: Value,
        answer: oneshot::Sender<Result<Value>>,
        /// For calls that begin or resume a thread: who gets what is said about it from then on.
        follow: Option<mpsc::Sender<FromServer>>,
    },
    /// An answer to a request of the program.
    Send(Value),
    /// Nobody follows this thread any more.
    Leave { thread: String },
    /// Ends the process if nobody uses it. Dropped when that is done, or not to be done.
    EndIfUnused { done: oneshot::Sender<()> },
}

/// To sessions.
pub(super) enum FromServer {
    Message { message: Value, raw: Raw },
    Gone { exit_code: Option<i32>, stderr: String },
}

/// A running app-server. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Link(pub(super) mpsc::Sender<ToServer>);

impl Link {
    /// Never waits: a session that waited for the server could keep the server waiting for it.
    pub(super) fn send(&self, message: ToServer) -> Result<()> {
        self.0.try_send(message).map_err(|_| Error::stream("codex does not keep up, or is gone"))
    }

    /// The answer comes later.
    pub(super) fn call(
        &self,
        method: &'static str,
        params: Value,
        follow: Option<mpsc::Sender<FromServer>>,
    ) -> Result<oneshot::Receiver<Result<Value>>> {
        let (answer, receiver) = oneshot::channel();
        self.send(ToServer::Call { method, params, answer, follow })?;
        Ok(receiver)
    }
}
