//! What the recorder's lock guards: the sequencer, the log, and what every event carries.

use std::io;
use std::path::Path;

use events::{ErrorData, SessionStartedData, UniversalEventData};
use jiff::Timestamp;

use crate::conversion::{Conversion, Raw};
use crate::log::{Log, Numbered, is_terminal};
use crate::sequencer::{Draft, Sequencer};

/// What may be recorded before a session is open. An agent that says more then is not waited for.
const HELD_MAX: usize = 1024;

#[derive(Debug)]
pub(super) struct State {
    session_id: String,
    marks_turns: bool,
    native_id: Option<String>,
    sequencer: Sequencer,
    log: Log,
    stage: Stage,
    /// What was pending at the end. A late reply to it is told that the session ended.
    withdrawn: Withdrawn,
}

#[derive(Debug, Default)]
struct Withdrawn {
    permissions: Vec<UniversalEventData>,
    questions: Vec<UniversalEventData>,
}

#[derive(Debug)]
enum Stage {
    Holding(Vec<(Conversion, Option<Raw>)>),
    Recording,
    Closed,
}

impl State {
    pub(super) fn new(log: Log, session_id: &str, marks_turns: bool) -> Self {
        Self {
            session_id: session_id.to_owned(),
            marks_turns,
            native_id: None,
            sequencer: Sequencer::default(),
            log,
            stage: Stage::Holding(Vec::new()),
            withdrawn: Withdrawn::default(),
        }
    }

    pub(super) fn recall(path: &Path, session_id: &str, marks_turns: bool) -> io::Result<Self> {
        let mut sequencer = Sequencer::default();
        let mut native_id = None;
        let log = Log::open(path, |event| {
            sequencer.recall(event);
            if native_id.is_none() {
                native_id.clone_from(&event.native_session_id);
            }
        })?;
        let session_id = session_id.to_owned();
        let (stage, withdrawn) = (Stage::Recording, Withdrawn::default());
        Ok(Self { session_id, marks_turns, native_id, sequencer, log, stage, withdrawn })
    }

    pub(super) fn count(&self) -> u64 {
        self.log.count()
    }

    pub(super) fn native_id(&self) -> Option<&str> {
        self.native_id.as_deref()
    }

    pub(super) fn learn_native_id(&mut self, id: &str) {
        if self.native_id.is_none() {
            self.native_id = Some(id.to_owned());
        }
    }

    pub(super) fn log(&mut self) -> &mut Log {
        &mut self.log
    }

    pub(super) fn begin(
        &mut self,
        metadata: serde_json::Value,
        native: Option<&str>,
        followed: bool,
    ) -> io::Result<()> {
        if let Some(native) = native {
            self.learn_native_id(native);
        }
        let held = match std::mem::replace(&mut self.stage, Stage::Recording) {
            Stage::Holding(held) => held,
            Stage::Recording | Stage::Closed => return Ok(()),
        };
        let data = SessionStartedData { metadata: Some(metadata) };
        let started = Draft { data: UniversalEventData::SessionStarted(data), synthetic: true };
        self.store(&[started], None, followed)?;
        for (conversion, raw) in held {
            self.convert(conversion, raw.as_ref(), followed)?;
        }
        Ok(())
    }

    pub(super) fn convert(
        &mut self,
        conversion: Conversion,
        raw: Option<&Raw>,
        followed: bool,
    ) -> io::Result<()> {
        match &mut self.stage {
            Stage::Holding(held) => {
                if held.len() < HELD_MAX {
                    held.push((conversion, raw.cloned()));
                }
                Ok(())
            }
            Stage::Recording => {
                let drafts = self.sequencer.apply(conversion);
                self.store(&drafts, raw, followed)
            }
            Stage::Closed => Ok(()),
        }
    }

    pub(super) fn convert_synthetic(
        &mut self,
        conversion: Conversion,
        followed: bool,
    ) -> io::Result<()> {
        let mut drafts = self.sequencer.apply(conversion);
        for draft in &mut drafts {
            draft.synthetic = true;
        }
        self.store(&drafts, None, followed)
    }

    pub(super) fn resolve_permission(
        &mut self,
        id: &str,
        approved: bool,
    ) -> Option<UniversalEventData> {
        let late = &mut self.withdrawn.permissions;
        let resolved = self.sequencer.resolve_permission(id, approved);
        resolved.or_else(|| take_late(late, |data| is_permission(data, id)))
    }

    pub(super) fn resolve_question(
        &mut self,
        id: &str,
        answered: bool,
        response: Option<String>,
    ) -> Option<UniversalEventData> {
        let late = &mut self.withdrawn.questions;
        let resolved = self.sequencer.resolve_question(id, answered, response);
        resolved.or_else(|| take_late(late, |data| is_question(data, id)))
    }

    pub(super) fn withdraw_pending(&mut self, followed: bool) -> io::Result<()> {
        let all = self.sequencer.withdraw_pending();
        self.store(&synthetic(all), None, followed)
    }

    pub(super) fn withdraw_at_end(&mut self, followed: bool) -> io::Result<()> {
        let all = self.sequencer.withdraw_pending();
        for data in &all {
            match data {
                UniversalEventData::PermissionResolved(_) => &mut self.withdrawn.permissions,
                _ => &mut self.withdrawn.questions,
            }
            .push(data.clone());
        }
        self.store(&synthetic(all), None, followed)
    }

    pub(super) fn mend(&mut self, followed: bool) -> io::Result<()> {
        let mut all = self.sequencer.withdraw_pending();
        all.extend(self.sequencer.fail_open_items());
        if all.is_empty() {
            return Ok(());
        }
        all.push(UniversalEventData::Error(ErrorData {
            message: "the daemon was restarted during the turn".to_owned(),
            code: Some("daemon_restarted".to_owned()),
            details: None,
        }));
        self.store(&synthetic(all), None, followed)
    }

    pub(super) fn item_count(&self) -> u64 {
        self.sequencer.item_count()
    }

    pub(super) fn close(&mut self) {
        self.stage = Stage::Closed;
    }

    /// Numbers and appends. A raw payload goes with what the agent said, and with what could not be
    /// read of it.
    pub(super) fn store(
        &mut self,
        drafts: &[Draft],
        raw: Option<&Raw>,
        followed: bool,
    ) -> io::Result<()> {
        if drafts.is_empty() || matches!(self.stage, Stage::Closed) {
            return Ok(());
        }
        let time = Timestamp::now().to_string();
        let numbered: Vec<_> = (self.log.count() + 1..)
            .zip(drafts)
            .map(|(sequence, draft)| Numbered {
                sequence,
                time: &time,
                session_id: &self.session_id,
                native_session_id: self.native_id.as_deref(),
                synthetic: draft.synthetic,
                data: &draft.data,
                raw: raw.filter(|_| carries_raw(draft)).map(Raw::as_str),
                terminal: is_terminal(&draft.data, self.marks_turns),
            })
            .collect();
        self.log.append(&numbered, followed)
    }

    /// Whether the log is broken. It is closed then: a gap would be worse than an end.
    pub(super) fn note(&mut self, result: io::Result<()>) -> bool {
        let Err(error) = result else { return false };
        tracing::error!("cannot write the log of session {}: {error}", self.session_id);
        self.stage = Stage::Closed;
        true
    }
}

fn synthetic(all: Vec<UniversalEventData>) -> Vec<Draft> {
    all.into_iter().map(|data| Draft { data, synthetic: true }).collect()
}

fn take_late(
    late: &mut Vec<UniversalEventData>,
    is_it: impl Fn(&UniversalEventData) -> bool,
) -> Option<UniversalEventData> {
    let index = late.iter().position(is_it)?;
    Some(late.swap_remove(index))
}

fn is_permission(data: &UniversalEventData, id: &str) -> bool {
    matches!(data, UniversalEventData::PermissionResolved(data) if data.permission_id == id)
}

fn is_question(data: &UniversalEventData, id: &str) -> bool {
    matches!(data, UniversalEventData::QuestionResolved(data) if data.question_id == id)
}

fn carries_raw(draft: &Draft) -> bool {
    match draft.data {
        UniversalEventData::AgentUnparsed(_) => true,
        UniversalEventData::SessionStarted(_)
        | UniversalEventData::SessionEnded(_)
        | UniversalEventData::ItemStarted(_)
        | UniversalEventData::ItemDelta(_)
        | UniversalEventData::ItemCompleted(_)
        | UniversalEventData::Error(_)
        | UniversalEventData::PermissionRequested(_)
        | UniversalEventData::PermissionResolved(_)
        | UniversalEventData::QuestionRequested(_)
        | UniversalEventData::QuestionResolved(_) => !draft.synthetic,
    }
}
