//! Commands in a sandbox.

use http::Method;

use super::{Call, ExecFrames, Guest, HEAD_MAX, bounded, encoded};
use crate::{Commands, ExecStart, GuestError, PREFIX};

/// A thousand ids.
const COMMANDS_BYTES_MAX: usize = 128 << 10;

impl Guest {
    /// Starts a command and gives what it writes. Dropping the frames of a command that is not
    /// detached ends it.
    pub async fn exec(&self, start: &ExecStart) -> Result<ExecFrames, GuestError> {
        let call = Call::new(Method::POST, format!("{PREFIX}exec")).json(start)?;
        Ok(ExecFrames::new(self.open(call).await?))
    }

    /// What a command wrote from `offset` on, as far as it is kept, and goes on writing.
    pub async fn exec_attach(&self, id: &str, offset: u64) -> Result<ExecFrames, GuestError> {
        let path = format!("{PREFIX}exec/{}?offset={offset}", encoded(id));
        Ok(ExecFrames::new(self.open(Call::new(Method::GET, path)).await?))
    }

    /// Detached commands that run. `NotFound` from a guest that is older than this question.
    pub async fn commands(&self) -> Result<Commands, GuestError> {
        let answer = self.call(Call::new(Method::GET, format!("{PREFIX}exec"))).await?;
        let text = bounded(HEAD_MAX, self.body(answer).collect(COMMANDS_BYTES_MAX)).await?;
        serde_json::from_slice(&text).map_err(|error| GuestError::Protocol(error.to_string()))
    }

    /// Kills the whole tree. `Ok` when it has ended already.
    pub async fn exec_kill(&self, id: &str) -> Result<(), GuestError> {
        let path = format!("{PREFIX}exec/{}", encoded(id));
        let answer = self.call(Call::new(Method::DELETE, path)).await?;
        self.finish(answer).await
    }
}
