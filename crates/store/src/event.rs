//! Events as they are kept: 24 hours, in the order they were committed.

use model::Event;

/// Grows with every event of the deployment; what `Last-Event-ID` carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventId(pub i64);

#[derive(Debug, Clone, PartialEq)]
pub struct StoredEvent {
    pub id: EventId,
    pub event: Event,
}
