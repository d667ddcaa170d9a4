//! Other secrets while a session goes on. An agent that takes them gets them at once; of the others the
//! process is let go between turns, and the next message opens it again where it left off.

use std::sync::Arc;

use serde::Serialize;

use super::{Command, Session};
use crate::secrets::Secrets;

/// When an agent has other secrets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Applies {
    NextToolCall,
    NextTurn,
    Never,
}

impl Session {
    pub(super) fn takes_environment(&self) -> bool {
        self.adapter.description().takes_environment
    }

    /// From now on these are its secrets: which names changed, and when its agent has them.
    pub(crate) fn change_secrets(self: &Arc<Self>, new: Secrets) -> (Vec<String>, Applies) {
        let (change, ended) = {
            let mut record = self.lock_record();
            let change = new.since(&record.spec.secrets);
            record.spec.secrets = new;
            (change, record.end.is_some())
        };
        let applies = match self.takes_environment() {
            _ if ended => Applies::Never,
            true => Applies::NextToolCall,
            false => Applies::NextTurn,
        };
        let names = change.names();
        // An agent that does not run begins with them.
        let commands = self.lock_live().commands.clone();
        if let Some(commands) = commands.filter(|_| !ended && !change.is_empty())
            && commands.try_send(Command::Environment(change)).is_err()
        {
            tracing::warn!("session {}: the agent does not get its new variables", self.id());
        }
        (names, applies)
    }
}
