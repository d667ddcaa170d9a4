//! Opening an agent for the first time in a session, which may be one of before.

use std::sync::Arc;

use super::Session;
use super::record::{Record, Resumed};
use crate::adapter::{Adapter, Opened, SessionSpec};
use crate::error::Result;
use crate::host::Host;
use crate::recorder::Recorder;

impl Session {
    /// What was said before, for a session that goes on from nothing. It is late once something was said here.
    pub(crate) fn remember(&self, history: String) {
        let begun = self.recorder.get().is_none_or(|log| log.progress().turns_ended > 0);
        if begun || self.is_busy() {
            return;
        }
        {
            let mut record = self.lock_record();
            if record.resumed != Resumed::No {
                return;
            }
            (record.resumed, record.context) = (Resumed::History, Some(history));
        }
        self.save();
    }
}

/// Where it left off, if it knows; else it is to be told what was said before.
pub(super) async fn open(
    record: &mut Record,
    adapter: &dyn Adapter,
    host: &Arc<Host>,
    recorder: &Recorder,
) -> Result<Opened> {
    let native = record.native_session_id.take();
    if let Some(native) = native.filter(|native| adapter.knows(native, record.spec(), host)) {
        let spec = SessionSpec { resume: Some(native), ..record.spec().clone() };
        match adapter.open(&spec, host, recorder).await {
            Ok(opened) => {
                (record.resumed, record.context) = (Resumed::Native, None);
                return Ok(opened);
            }
            Err(error) => tracing::warn!("the agent cannot go on where it left off: {error}"),
        }
    }
    if record.context.is_some() {
        record.resumed = Resumed::History;
    }
    adapter.open(record.spec(), host, recorder).await
}
