//! The schemas of the two types whose JSON is written by hand.

use std::borrow::Cow;

use utoipa::openapi::schema::{OneOfBuilder, Schema};
use utoipa::openapi::{Ref, RefOr};
use utoipa::{PartialSchema, ToSchema};

use crate::data::{
    AgentUnparsedData, ErrorData, ItemDeltaData, ItemEventData, PermissionEventData,
    QuestionEventData, SessionEndedData, SessionStartedData,
};
use crate::event::{EventSource, UniversalEvent, UniversalEventData, UniversalEventType};

/// As [`UniversalEvent`] is written.
#[derive(ToSchema)]
#[expect(dead_code, reason = "only its schema is used")]
struct WrittenEvent {
    event_id: String,
    /// From 1, without gaps.
    sequence: u64,
    /// RFC 3339, UTC.
    time: String,
    session_id: String,
    native_session_id: Option<String>,
    /// Made by the daemon, not by the agent.
    synthetic: bool,
    source: EventSource,
    r#type: UniversalEventType,
    data: UniversalEventData,
    /// What the agent printed, if it was asked for.
    raw: Option<serde_json::Value>,
}

type Schemas = Vec<(String, RefOr<Schema>)>;

impl PartialSchema for UniversalEvent {
    fn schema() -> RefOr<Schema> {
        WrittenEvent::schema()
    }
}

impl ToSchema for UniversalEvent {
    fn name() -> Cow<'static, str> {
        Cow::Borrowed("UniversalEvent")
    }

    fn schemas(schemas: &mut Schemas) {
        WrittenEvent::schemas(schemas);
    }
}

impl PartialSchema for UniversalEventData {
    fn schema() -> RefOr<Schema> {
        let mut one_of = OneOfBuilder::new();
        for name in [
            SessionStartedData::name(),
            SessionEndedData::name(),
            ItemEventData::name(),
            ItemDeltaData::name(),
            ErrorData::name(),
            PermissionEventData::name(),
            QuestionEventData::name(),
            AgentUnparsedData::name(),
        ] {
            one_of = one_of.item(Ref::from_schema_name(name));
        }
        Schema::OneOf(one_of.build()).into()
    }
}

impl ToSchema for UniversalEventData {
    fn name() -> Cow<'static, str> {
        Cow::Borrowed("UniversalEventData")
    }

    fn schemas(schemas: &mut Schemas) {
        fn add<T: ToSchema>(schemas: &mut Schemas) {
            schemas.push((T::name().into_owned(), T::schema()));
            T::schemas(schemas);
        }
        add::<SessionStartedData>(schemas);
        add::<SessionEndedData>(schemas);
        add::<ItemEventData>(schemas);
        add::<ItemDeltaData>(schemas);
        add::<ErrorData>(schemas);
        add::<PermissionEventData>(schemas);
        add::<QuestionEventData>(schemas);
        add::<AgentUnparsedData>(schemas);
    }
}
