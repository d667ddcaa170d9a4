//! The standard input of a process, or its terminal. Writers wait until the process has taken what
//! they wrote into its pipe; one that does not read holds up its writers and nobody else.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::{Buf as _, Bytes};
use tokio::io::unix::AsyncFd;
use tokio::sync::Semaphore;

use crate::refusal::{Code, Refusal, Result};

type Pipe = Arc<AsyncFd<OwnedFd>>;

#[derive(Debug)]
pub(crate) struct Input {
    /// `None` when it was closed, or never open.
    pipe: Mutex<Option<Pipe>>,
    /// One writer at a time, so that what two clients send is not mixed within a message.
    turn: Semaphore,
}

impl Input {
    pub(super) fn new(pipe: Option<Pipe>) -> Self {
        Self { pipe: Mutex::new(pipe), turn: Semaphore::new(1) }
    }

    pub(crate) async fn write(&self, mut bytes: Bytes) -> Result<()> {
        let Ok(_turn) = self.turn.acquire().await else { return Err(closed()) };
        let pipe = self.pipe.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(pipe) = pipe else { return Err(closed()) };
        while bytes.has_remaining() {
            let mut ready =
                pipe.writable().await.map_err(|error| Refusal::io("write input", &error))?;
            let wrote = ready.try_io(|pipe| Ok(rustix::io::write(pipe.get_ref(), &bytes)?));
            match wrote {
                Ok(Ok(len)) => bytes.advance(len),
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(Err(error)) => return Err(Refusal::io("write input", &error)),
                Err(_would_block) => {}
            }
        }
        Ok(())
    }

    /// The process sees the end once a write that is under way is done.
    pub(crate) fn close(&self) {
        self.pipe.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

fn closed() -> Refusal {
    Refusal::new(Code::FailedPrecondition, "the standard input is not open")
}
