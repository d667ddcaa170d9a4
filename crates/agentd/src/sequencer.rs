//! Turns what adapters say into events: items get their ids, starts and deltas that are missing are
//! put in, and what was said before is dropped. Pure; it does not number, store or send.

use std::collections::{BTreeMap, HashMap, VecDeque};

use events::{
    AgentUnparsedData, ContentPart, ItemDeltaData, ItemEventData, ItemKind, ItemRole, ItemStatus,
    PermissionEventData, PermissionStatus, QuestionEventData, QuestionStatus, SessionEndReason,
    SessionEndedData, SessionStartedData, TerminatedBy, UniversalEvent, UniversalEventData,
    UniversalItem,
};

use crate::conversion::{Conversion, Item};

/// Complete items whose native ids are remembered. An older id that comes again is a new item.
const ITEMS_REMEMBERED: usize = 4096;

/// Items that are begun and not complete of which a stop of the daemon makes failed ones.
const OPEN_ITEMS_MAX: usize = 256;

/// An event without its number.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Draft {
    pub(crate) data: UniversalEventData,
    /// Made here; the agent did not say it.
    pub(crate) synthetic: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Sequencer {
    items: HashMap<String, Known>,
    complete: VecDeque<String>,
    last_item: u64,
    /// Begun and not complete, by native id.
    open: BTreeMap<String, UniversalItem>,
    agent_started: bool,
    permissions: BTreeMap<String, PermissionEventData>,
    questions: BTreeMap<String, QuestionEventData>,
}

#[derive(Debug, Clone, Copy)]
struct Known {
    number: u64,
    started: bool,
    delta: bool,
    complete: bool,
}

fn agent(data: UniversalEventData) -> Draft {
    Draft { data, synthetic: false }
}

fn daemon(data: UniversalEventData) -> Draft {
    Draft { data, synthetic: true }
}

impl Sequencer {
    /// The events of one conversion, in order; none if it says nothing new.
    pub(crate) fn apply(&mut self, conversion: Conversion) -> Vec<Draft> {
        match conversion {
            Conversion::SessionStarted { metadata } => {
                if std::mem::replace(&mut self.agent_started, true) {
                    return Vec::new();
                }
                vec![agent(UniversalEventData::SessionStarted(SessionStartedData { metadata }))]
            }
            Conversion::ItemStarted(item) => self.item_started(item),
            Conversion::ItemDelta { native_item_id, delta } => self.delta(native_item_id, delta),
            Conversion::ItemCompleted(item) => self.item_completed(item),
            Conversion::PermissionRequested { id, action, metadata } => {
                self.permission_requested(id, action, metadata)
            }
            Conversion::PermissionResolved { id, approved } => {
                self.resolve_permission(&id, approved).map(agent).into_iter().collect()
            }
            Conversion::QuestionRequested { id, prompt, options } => {
                self.question_requested(id, prompt, options)
            }
            Conversion::QuestionResolved { id, response } => {
                let answered = response.is_some();
                self.resolve_question(&id, answered, response).map(agent).into_iter().collect()
            }
            Conversion::Error(data) => vec![agent(UniversalEventData::Error(data))],
            Conversion::Unparsed { error, location } => {
                let data = AgentUnparsedData { error, location, raw_hash: None };
                vec![daemon(UniversalEventData::AgentUnparsed(data))]
            }
            Conversion::SessionEnded => {
                let (reason, terminated_by) = (SessionEndReason::Completed, TerminatedBy::Agent);
                let data = SessionEndedData { reason, terminated_by };
                vec![daemon(UniversalEventData::SessionEnded(data))]
            }
        }
    }

    /// `None` if it is not pending.
    pub(crate) fn resolve_permission(
        &mut self,
        id: &str,
        approved: bool,
    ) -> Option<UniversalEventData> {
        let mut data = self.permissions.remove(id)?;
        data.status = if approved { PermissionStatus::Approved } else { PermissionStatus::Denied };
        Some(UniversalEventData::PermissionResolved(data))
    }

    /// `None` if it is not pending. An answer may be empty.
    pub(crate) fn resolve_question(
        &mut self,
        id: &str,
        answered: bool,
        response: Option<String>,
    ) -> Option<UniversalEventData> {
        let mut data = self.questions.remove(id)?;
        data.status = if answered { QuestionStatus::Answered } else { QuestionStatus::Rejected };
        data.response = response;
        Some(UniversalEventData::QuestionResolved(data))
    }

    /// Every permission is denied, every question rejected.
    pub(crate) fn withdraw_pending(&mut self) -> Vec<UniversalEventData> {
        let permissions: Vec<String> = self.permissions.keys().cloned().collect();
        let questions: Vec<String> = self.questions.keys().cloned().collect();
        let mut all = Vec::with_capacity(permissions.len() + questions.len());
        all.extend(permissions.iter().filter_map(|id| self.resolve_permission(id, false)));
        all.extend(questions.iter().filter_map(|id| self.resolve_question(id, false, None)));
        all
    }

    /// Completes what was begun, as failed.
    pub(crate) fn fail_open_items(&mut self) -> Vec<UniversalEventData> {
        let open = std::mem::take(&mut self.open);
        let mut failed = Vec::with_capacity(open.len());
        for (native, item) in open {
            let known = self.known(Some(&native));
            self.update(Some(&native), Known { complete: true, ..known });
            self.forget_old(native);
            let item = UniversalItem { status: ItemStatus::Failed, ..item };
            failed.push(UniversalEventData::ItemCompleted(ItemEventData { item }));
        }
        failed
    }

    pub(crate) fn item_count(&self) -> u64 {
        self.last_item
    }

    /// Learns from an event that was stored before a restart.
    pub(crate) fn recall(&mut self, event: &UniversalEvent) {
        match &event.data {
            UniversalEventData::ItemStarted(data) => self.recall_item(&data.item, false),
            UniversalEventData::ItemCompleted(data) => self.recall_item(&data.item, true),
            UniversalEventData::SessionStarted(_) => self.agent_started |= !event.synthetic,
            UniversalEventData::PermissionRequested(data) => {
                self.permissions.insert(data.permission_id.clone(), data.clone());
            }
            UniversalEventData::PermissionResolved(data) => {
                self.permissions.remove(&data.permission_id);
            }
            UniversalEventData::QuestionRequested(data) => {
                self.questions.insert(data.question_id.clone(), data.clone());
            }
            UniversalEventData::QuestionResolved(data) => {
                self.questions.remove(&data.question_id);
            }
            UniversalEventData::ItemDelta(_)
            | UniversalEventData::SessionEnded(_)
            | UniversalEventData::Error(_)
            | UniversalEventData::AgentUnparsed(_) => {}
        }
    }

    fn recall_item(&mut self, item: &UniversalItem, complete: bool) {
        let number = item.item_id.strip_prefix("itm_").and_then(|number| number.parse().ok());
        let Some(number) = number else { return };
        self.last_item = self.last_item.max(number);
        if let Some(native) = &item.native_item_id {
            let known = Known { number, started: true, delta: true, complete };
            self.items.insert(native.clone(), known);
            if complete {
                self.open.remove(native);
                self.forget_old(native.clone());
            } else {
                self.opened(item);
            }
        }
    }

    fn item_started(&mut self, item: Item) -> Vec<Draft> {
        let known = self.known(item.native_id.as_deref());
        if known.started || known.complete {
            return Vec::new();
        }
        self.update(item.native_id.as_deref(), Known { started: true, ..known });
        let item =
            UniversalItem { status: ItemStatus::InProgress, ..self.universal(item, known.number) };
        vec![agent(UniversalEventData::ItemStarted(ItemEventData { item }))]
    }

    fn opened(&mut self, item: &UniversalItem) {
        if let Some(native) = &item.native_item_id
            && self.open.len() < OPEN_ITEMS_MAX
        {
            self.open.insert(native.clone(), item.clone());
        }
    }

    fn delta(&mut self, native: String, delta: String) -> Vec<Draft> {
        let known = self.known(Some(&native));
        if known.complete {
            return Vec::new();
        }
        let mut drafts = Vec::with_capacity(2);
        if !known.started {
            let stub = Item::new(native.clone(), ItemKind::Message, ItemRole::Assistant);
            let item = self.universal(stub, known.number);
            self.opened(&item);
            drafts.push(daemon(UniversalEventData::ItemStarted(ItemEventData { item })));
        }
        self.update(Some(&native), Known { started: true, delta: true, ..known });
        drafts.push(agent(delta_of(known.number, Some(native), delta)));
        drafts
    }

    fn item_completed(&mut self, item: Item) -> Vec<Draft> {
        let known = self.known(item.native_id.as_deref());
        if known.complete {
            return Vec::new();
        }
        let native = item.native_id.clone();
        let item = self.universal(item, known.number);
        let mut drafts = Vec::with_capacity(3);
        if !known.started && item.kind != ItemKind::Status {
            let item = UniversalItem { status: ItemStatus::InProgress, ..item.clone() };
            drafts.push(daemon(UniversalEventData::ItemStarted(ItemEventData { item })));
        }
        if !known.delta && item.kind == ItemKind::Message {
            let text = text_of(&item.content);
            if !text.is_empty() {
                drafts.push(daemon(delta_of(known.number, native.clone(), text)));
            }
        }
        drafts.push(agent(UniversalEventData::ItemCompleted(ItemEventData { item })));
        let done = Known { started: true, delta: true, complete: true, ..known };
        self.update(native.as_deref(), done);
        if let Some(native) = native {
            self.open.remove(&native);
            self.forget_old(native);
        }
        drafts
    }

    fn permission_requested(
        &mut self,
        id: String,
        action: String,
        metadata: Option<serde_json::Value>,
    ) -> Vec<Draft> {
        let status = PermissionStatus::Requested;
        let data = PermissionEventData { permission_id: id.clone(), action, status, metadata };
        if self.permissions.insert(id, data.clone()).is_some() {
            return Vec::new();
        }
        vec![agent(UniversalEventData::PermissionRequested(data))]
    }

    fn question_requested(
        &mut self,
        id: String,
        prompt: String,
        options: Vec<String>,
    ) -> Vec<Draft> {
        let status = QuestionStatus::Requested;
        let question_id = id.clone();
        let data = QuestionEventData { question_id, prompt, options, response: None, status };
        if self.questions.insert(id, data.clone()).is_some() {
            return Vec::new();
        }
        vec![agent(UniversalEventData::QuestionRequested(data))]
    }

    fn known(&mut self, native: Option<&str>) -> Known {
        if let Some(known) = native.and_then(|native| self.items.get(native)) {
            return *known;
        }
        self.last_item += 1;
        let fresh = Known { number: self.last_item, started: false, delta: false, complete: false };
        self.update(native, fresh);
        fresh
    }

    fn update(&mut self, native: Option<&str>, known: Known) {
        if let Some(native) = native {
            self.items.insert(native.to_owned(), known);
        }
    }

    fn forget_old(&mut self, native: String) {
        self.complete.push_back(native);
        if self.complete.len() > ITEMS_REMEMBERED
            && let Some(oldest) = self.complete.pop_front()
        {
            self.items.remove(&oldest);
        }
    }

    fn universal(&self, item: Item, number: u64) -> UniversalItem {
        let parent = item.native_parent.and_then(|native| self.items.get(&native));
        UniversalItem {
            item_id: format!("itm_{number}"),
            native_item_id: item.native_id,
            parent_id: parent.map(|known| format!("itm_{}", known.number)),
            kind: item.kind,
            role: item.role,
            content: item.content,
            status: item.status,
        }
    }
}

fn delta_of(number: u64, native_item_id: Option<String>, delta: String) -> UniversalEventData {
    let item_id = format!("itm_{number}");
    UniversalEventData::ItemDelta(ItemDeltaData { item_id, native_item_id, delta })
}

fn text_of(content: &[ContentPart]) -> String {
    let texts = content.iter().filter_map(|part| match part {
        ContentPart::Text { text } => Some(text.as_str()),
        ContentPart::Json { .. }
        | ContentPart::ToolCall { .. }
        | ContentPart::ToolResult { .. }
        | ContentPart::FileRef { .. }
        | ContentPart::Reasoning { .. }
        | ContentPart::Image { .. }
        | ContentPart::Status { .. } => None,
    });
    texts.collect::<Vec<_>>().join("\n")
}
