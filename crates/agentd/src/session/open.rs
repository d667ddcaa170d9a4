//! Opening an agent for the first time in a session, which may be one of before.

use std::sync::Arc;

use super::record::{Record, Resumed};
use crate::adapter::{Adapter, Opened, SessionSpec};
use crate::error::Result;
use crate::host::Host;
use crate::recorder::Recorder;

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
