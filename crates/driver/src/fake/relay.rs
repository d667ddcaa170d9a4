//! Connections to the model relay, made by tests in the place of programs inside.

use std::sync::{Mutex, PoisonError};

use model::SandboxId;
use tokio::io::{DuplexStream, duplex};
use tokio::sync::mpsc;

use crate::RelayConnection;

const WAITING_MAX: usize = 64;
const BUFFER_BYTES: usize = 64 * 1024;

#[derive(Default)]
pub(super) struct Relays {
    taker: Mutex<Option<mpsc::Sender<RelayConnection>>>,
}

impl Relays {
    pub(super) fn take(&self) -> Option<mpsc::Receiver<RelayConnection>> {
        // A new engine on the same machine takes them from the old one.
        let (sender, receiver) = mpsc::channel(WAITING_MAX);
        *self.taker.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender);
        Some(receiver)
    }

    pub(super) async fn connect(&self, sandbox: SandboxId) -> DuplexStream {
        let (inside, outside) = duplex(BUFFER_BYTES);
        let connection = RelayConnection { sandbox, stream: Box::new(outside), hold: Box::new(()) };
        let taker = self.taker.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let sent = taker.expect("nobody took the relay").send(connection).await;
        assert!(sent.is_ok(), "nobody serves the relay");
        inside
    }
}
