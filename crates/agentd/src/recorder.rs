//! What adapters record into: the one writer of a session's log. Recording is a function call that
//! returns when the event is in the file; those who follow are told.
//!
//! ```text
//! holding (the session is not open yet) -> recording -> closed (nothing is written any more)
//! ```

mod state;
#[cfg(test)]
mod tests;

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use events::{UniversalEvent, UniversalEventData};
use tokio::sync::watch;

use self::state::State;
use crate::conversion::{Conversion, Raw};
use crate::log::{Cursor, Form, Log, Piece, Shape};
use crate::sequencer::Draft;

/// Cheap to clone.
#[derive(Debug, Clone)]
pub struct Recorder(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// For those who follow the events.
    progress: watch::Sender<Progress>,
    /// For the session's task, which is not to be woken by every event.
    turns: watch::Sender<Turns>,
}

/// What the session's task looks at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Turns {
    /// Turns that are over.
    pub(crate) ended: u64,
    /// The log takes nothing more, because the disk does not.
    pub(crate) broken: bool,
}

/// What those who wait for something look at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Events in the log.
    pub(crate) count: u64,
    /// Turns that are over.
    pub(crate) turns_ended: u64,
    pub(crate) closed: bool,
}

impl Recorder {
    /// A new log. What is recorded is held back until [`begin`](Self::begin).
    pub fn create(path: &Path, session_id: &str, marks_turns: bool) -> io::Result<Self> {
        Ok(Self::over(State::new(Log::create(path)?, session_id, marks_turns)))
    }

    /// The log of a session of before.
    pub fn open(path: &Path, session_id: &str, marks_turns: bool) -> io::Result<Self> {
        Ok(Self::over(State::recall(path, session_id, marks_turns)?))
    }

    fn over(state: State) -> Self {
        let progress = watch::Sender::new(Progress { count: state.count(), ..Progress::default() });
        let turns = watch::Sender::new(Turns::default());
        Self(Arc::new(Shared { state: Mutex::new(state), progress, turns }))
    }

    /// The agent did this.
    pub fn record(&self, conversion: Conversion) {
        self.change(|state, followed| state.convert(conversion, None, followed));
    }

    /// The agent did this, by printing that.
    pub fn record_raw(&self, conversion: Conversion, raw: &Raw) {
        self.change(|state, followed| state.convert(conversion, Some(raw), followed));
    }

    /// The daemon says so, not the agent.
    pub fn record_synthetic(&self, conversion: Conversion) {
        self.change(|state, followed| state.convert_synthetic(conversion, followed));
    }

    /// The agent's own id of the session, as soon as it is known. The first one stays.
    pub fn native_session_id(&self, id: &str) {
        self.lock().learn_native_id(id);
    }

    /// The turn is over, with the item that says so. The detail is JSON as text.
    pub fn turn_completed(&self, detail: Option<String>, raw: Option<&Raw>) {
        self.change(|state, followed| {
            state.convert(Conversion::turn_completed(detail), raw, followed)
        });
        self.turn_ended();
    }

    /// The turn is over, and the agent has said so in its own words.
    pub fn turn_ended(&self) {
        self.0.progress.send_modify(|progress| progress.turns_ended += 1);
        self.0.turns.send_modify(|turns| turns.ended += 1);
    }

    /// The agent withdrew whatever it asked: every permission is denied, every question rejected.
    pub fn withdraw_pending(&self) {
        self.change(State::withdraw_pending);
    }

    /// All of it, for tests and tools. Raw payloads only if asked for.
    pub fn events(&self, raw: bool) -> io::Result<Vec<UniversalEvent>> {
        let shape = Shape { raw, form: Form::Array, events_max: u64::MAX, until_terminal: false };
        let mut cursor = self.seek(0)?;
        let mut events = Vec::new();
        loop {
            let piece = self.read(&mut cursor, shape)?;
            if piece.count == 0 {
                return Ok(events);
            }
            let text = [b"[", piece.text.as_slice(), b"]"].concat();
            let read: Vec<UniversalEvent> = serde_json::from_slice(&text)?;
            events.extend(read);
        }
    }

    /// The first event, and whatever was held back.
    pub fn begin(&self, metadata: serde_json::Value, native: Option<&str>) {
        self.change(|state, followed| state.begin(metadata, native, followed));
    }

    /// `false` if no such permission is pending. After the end it is used up without an event.
    pub(crate) fn resolve_permission(&self, id: &str, approved: bool) -> bool {
        self.resolve(|state| state.resolve_permission(id, approved))
    }

    /// As with permissions.
    pub(crate) fn resolve_question(
        &self,
        id: &str,
        answered: bool,
        response: Option<String>,
    ) -> bool {
        self.resolve(|state| state.resolve_question(id, answered, response))
    }

    fn resolve(&self, with: impl FnOnce(&mut State) -> Option<UniversalEventData>) -> bool {
        let mut found = false;
        self.change(|state, followed| {
            let resolved = with(state);
            found = resolved.is_some();
            let draft = resolved.map(|data| Draft { data, synthetic: true });
            state.store(draft.as_slice(), None, followed)
        });
        found
    }

    /// The last event; afterwards nothing is written. `None`: without an event.
    pub(crate) fn close(&self, last: Option<UniversalEventData>) {
        self.change(|state, followed| {
            state.withdraw_at_end(followed)?;
            let draft = last.map(|data| Draft { data, synthetic: true });
            let stored = state.store(draft.as_slice(), None, followed);
            state.close();
            stored
        });
        self.0.progress.send_modify(|progress| progress.closed = true);
    }

    /// After a stop in the middle of something: what was asked is withdrawn, what was begun has
    /// failed, and an error says why, if there was any of it.
    pub(crate) fn mend(&self) {
        self.change(State::mend);
    }

    /// How many items there are, in this life and before.
    pub(crate) fn item_count(&self) -> u64 {
        self.lock().item_count()
    }

    /// Follows the events; as long as somebody does, the last ones are kept at hand.
    pub(crate) fn follow(&self) -> watch::Receiver<Progress> {
        self.0.progress.subscribe()
    }

    pub(crate) fn turns(&self) -> watch::Receiver<Turns> {
        self.0.turns.subscribe()
    }

    pub(crate) fn progress(&self) -> Progress {
        *self.0.progress.borrow()
    }

    pub(crate) fn native_id(&self) -> Option<String> {
        self.lock().native_id().map(str::to_owned)
    }

    pub(crate) fn seek(&self, sequence: u64) -> io::Result<Cursor> {
        self.lock().log().seek(sequence)
    }

    pub(crate) fn read(&self, cursor: &mut Cursor, shape: Shape) -> io::Result<Piece> {
        self.lock().log().read(cursor, shape)
    }

    /// Frees what only a busy session needs.
    pub(crate) fn rest(&self) {
        self.lock().log().rest();
    }

    fn change(&self, change: impl FnOnce(&mut State, bool) -> io::Result<()>) {
        let followed = self.0.progress.receiver_count() > 0;
        let mut state = self.lock();
        let before = state.count();
        let result = change(&mut state, followed);
        let count = state.count();
        let broken = state.note(result);
        drop(state);
        if count != before {
            self.0.progress.send_modify(|progress| progress.count = count);
        }
        if broken {
            self.0.turns.send_modify(|turns| turns.broken = true);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
