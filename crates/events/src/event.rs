//! The envelope. Its JSON is written and read by hand, because `type` and `data` are two fields
//! and one value: an event whose `data` does not fit its `type` cannot be made.

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use utoipa::ToSchema;

use crate::data::{
    AgentUnparsedData, ErrorData, ItemDeltaData, ItemEventData, PermissionEventData,
    QuestionEventData, SessionEndedData, SessionStartedData,
};

/// One event of a session.
#[derive(Debug, Clone, PartialEq)]
pub struct UniversalEvent {
    pub event_id: String,
    /// From 1, without gaps.
    pub sequence: u64,
    /// RFC 3339, UTC.
    pub time: String,
    pub session_id: String,
    pub native_session_id: Option<String>,
    /// Made by the daemon, not by the agent.
    pub synthetic: bool,
    pub source: EventSource,
    pub data: UniversalEventData,
    /// What the agent printed.
    pub raw: Option<Value>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EventSource {
    Agent,
    Daemon,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
pub enum UniversalEventType {
    #[serde(rename = "session.started")]
    SessionStarted,
    #[serde(rename = "session.ended")]
    SessionEnded,
    #[serde(rename = "item.started")]
    ItemStarted,
    #[serde(rename = "item.delta")]
    ItemDelta,
    #[serde(rename = "item.completed")]
    ItemCompleted,
    #[serde(rename = "error")]
    Error,
    #[serde(rename = "permission.requested")]
    PermissionRequested,
    #[serde(rename = "permission.resolved")]
    PermissionResolved,
    #[serde(rename = "question.requested")]
    QuestionRequested,
    #[serde(rename = "question.resolved")]
    QuestionResolved,
    #[serde(rename = "agent.unparsed")]
    AgentUnparsed,
}

/// What an event says, with its type.
#[derive(Debug, Clone, PartialEq)]
pub enum UniversalEventData {
    SessionStarted(SessionStartedData),
    SessionEnded(SessionEndedData),
    ItemStarted(ItemEventData),
    ItemDelta(ItemDeltaData),
    ItemCompleted(ItemEventData),
    Error(ErrorData),
    PermissionRequested(PermissionEventData),
    PermissionResolved(PermissionEventData),
    QuestionRequested(QuestionEventData),
    QuestionResolved(QuestionEventData),
    AgentUnparsed(AgentUnparsedData),
}

impl UniversalEventData {
    pub fn kind(&self) -> UniversalEventType {
        match self {
            Self::SessionStarted(_) => UniversalEventType::SessionStarted,
            Self::SessionEnded(_) => UniversalEventType::SessionEnded,
            Self::ItemStarted(_) => UniversalEventType::ItemStarted,
            Self::ItemDelta(_) => UniversalEventType::ItemDelta,
            Self::ItemCompleted(_) => UniversalEventType::ItemCompleted,
            Self::Error(_) => UniversalEventType::Error,
            Self::PermissionRequested(_) => UniversalEventType::PermissionRequested,
            Self::PermissionResolved(_) => UniversalEventType::PermissionResolved,
            Self::QuestionRequested(_) => UniversalEventType::QuestionRequested,
            Self::QuestionResolved(_) => UniversalEventType::QuestionResolved,
            Self::AgentUnparsed(_) => UniversalEventType::AgentUnparsed,
        }
    }

    /// Reads the `data` of an event of this type.
    pub fn from_value(kind: UniversalEventType, data: Value) -> serde_json::Result<Self> {
        fn read<T: DeserializeOwned>(data: Value) -> serde_json::Result<T> {
            serde_json::from_value(data)
        }
        Ok(match kind {
            UniversalEventType::SessionStarted => Self::SessionStarted(read(data)?),
            UniversalEventType::SessionEnded => Self::SessionEnded(read(data)?),
            UniversalEventType::ItemStarted => Self::ItemStarted(read(data)?),
            UniversalEventType::ItemDelta => Self::ItemDelta(read(data)?),
            UniversalEventType::ItemCompleted => Self::ItemCompleted(read(data)?),
            UniversalEventType::Error => Self::Error(read(data)?),
            UniversalEventType::PermissionRequested => Self::PermissionRequested(read(data)?),
            UniversalEventType::PermissionResolved => Self::PermissionResolved(read(data)?),
            UniversalEventType::QuestionRequested => Self::QuestionRequested(read(data)?),
            UniversalEventType::QuestionResolved => Self::QuestionResolved(read(data)?),
            UniversalEventType::AgentUnparsed => Self::AgentUnparsed(read(data)?),
        })
    }
}

/// The data alone, without its type.
impl Serialize for UniversalEventData {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::SessionStarted(data) => data.serialize(serializer),
            Self::SessionEnded(data) => data.serialize(serializer),
            Self::ItemStarted(data) | Self::ItemCompleted(data) => data.serialize(serializer),
            Self::ItemDelta(data) => data.serialize(serializer),
            Self::Error(data) => data.serialize(serializer),
            Self::PermissionRequested(data) | Self::PermissionResolved(data) => {
                data.serialize(serializer)
            }
            Self::QuestionRequested(data) | Self::QuestionResolved(data) => {
                data.serialize(serializer)
            }
            Self::AgentUnparsed(data) => data.serialize(serializer),
        }
    }
}

#[derive(Serialize)]
struct Written<'a> {
    event_id: &'a str,
    sequence: u64,
    time: &'a str,
    session_id: &'a str,
    native_session_id: Option<&'a str>,
    synthetic: bool,
    source: EventSource,
    r#type: UniversalEventType,
    data: &'a UniversalEventData,
    raw: Option<&'a Value>,
}

#[derive(Deserialize)]
struct Read {
    event_id: String,
    sequence: u64,
    time: String,
    session_id: String,
    #[serde(default)]
    native_session_id: Option<String>,
    synthetic: bool,
    source: EventSource,
    r#type: UniversalEventType,
    data: Value,
    #[serde(default)]
    raw: Option<Value>,
}

impl Serialize for UniversalEvent {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let written = Written {
            event_id: &self.event_id,
            sequence: self.sequence,
            time: &self.time,
            session_id: &self.session_id,
            native_session_id: self.native_session_id.as_deref(),
            synthetic: self.synthetic,
            source: self.source,
            r#type: self.data.kind(),
            data: &self.data,
            raw: self.raw.as_ref(),
        };
        written.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for UniversalEvent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let read = Read::deserialize(deserializer)?;
        let data =
            UniversalEventData::from_value(read.r#type, read.data).map_err(D::Error::custom)?;
        Ok(Self {
            event_id: read.event_id,
            sequence: read.sequence,
            time: read.time,
            session_id: read.session_id,
            native_session_id: read.native_session_id,
            synthetic: read.synthetic,
            source: read.source,
            data,
            raw: read.raw,
        })
    }
}
