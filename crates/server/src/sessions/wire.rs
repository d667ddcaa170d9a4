//! Events as they are in the log, read again for who wants them in another form.

use events::UniversalEvent;

/// As wire version 1 says it, if it does.
pub(crate) fn plain(event: &str) -> Option<String> {
    let event = read(event)?;
    let frame = events::plain(&event)?;
    serde_json::to_string(&frame).ok()
}

/// What is in the log was written by us; what a later version wrote there may be unknown.
pub(crate) fn read(event: &str) -> Option<UniversalEvent> {
    let read = serde_json::from_str(event);
    if let Err(error) = &read {
        tracing::debug!(error = error.to_string(), "an event in the log cannot be read");
    }
    read.ok()
}
