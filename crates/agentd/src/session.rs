//! One session, as the daemon sees it: what it is, its log, and the way to its task.
//!
//! ```text
//! created -> idle <-> turn -> ended (completed, failed, terminated)
//!             |  the agent let go, or the daemon restarted
//!             +-> dormant --(message)--> idle
//! ```
//!
//! A session outlives the daemon: its directory holds what was asked for (`session.json`) and its
//! log. The task of a session runs while there is something to do for it.

mod change;
mod open;
mod record;
mod runner;

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tokio::sync::{mpsc, oneshot};

pub(crate) use self::change::Applies;
use self::open::open;
pub(crate) use self::record::{End, Record, Resumed};
use self::runner::Runner;
use crate::adapter::{Adapter, Answer, Opened, PermissionReply, SessionSpec, started_metadata};
use crate::api::SessionInfo;
use crate::error::{Error, Result};
use crate::host::Host;
use crate::recorder::Recorder;
use crate::secrets::Change;

/// Messages and replies that wait for the session's task or for a turn to end.
const QUEUE_MAX: usize = 64;

/// What the task of a session is told.
#[derive(Debug)]
enum Command {
    /// `begun` is told after which event the turn begins, and how many turns were over before.
    Message {
        text: String,
        begun: Option<oneshot::Sender<Begun>>,
    },
    Permission {
        id: String,
        reply: PermissionReply,
    },
    Question {
        id: String,
        answer: Answer,
    },
    Interrupt,
    /// The secrets are others now.
    Environment(Change),
    Terminate {
        done: oneshot::Sender<()>,
    },
    /// The daemon stops; the session goes on with the next one.
    Suspend {
        done: oneshot::Sender<()>,
    },
}

/// Where a turn begins.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Begun {
    pub(crate) after: u64,
    pub(crate) turns_before: u64,
}

pub(crate) struct Session {
    directory: PathBuf,
    adapter: Arc<dyn Adapter>,
    host: Arc<Host>,
    record: Mutex<Record>,
    recorder: OnceLock<Recorder>,
    live: Mutex<Live>,
}

/// What changes while it lives.
#[derive(Debug, Default)]
struct Live {
    commands: Option<mpsc::Sender<Command>>,
    busy: bool,
    queued: usize,
}

impl Session {
    /// A new one whose agent is ready.
    pub(crate) async fn create(
        directory: PathBuf,
        mut record: Record,
        adapter: Arc<dyn Adapter>,
        host: Arc<Host>,
    ) -> Result<Arc<Self>> {
        let marks_turns = adapter.description().marks_turns;
        let id = record.spec().session_id.clone();
        let made = std::fs::create_dir_all(&directory)
            .and_then(|()| Recorder::create(&directory.join("events.log"), &id, marks_turns));
        let recorder = made.map_err(|error| Error::stream(format!("make the log: {error}")))?;
        let opened = match open(&mut record, adapter.as_ref(), &host, &recorder).await {
            Ok(opened) => opened,
            Err(error) => {
                let _ = std::fs::remove_dir_all(&directory);
                return Err(error);
            }
        };
        let metadata = started_metadata(adapter.description().id, record.spec());
        recorder.begin(metadata, opened.native_session_id.as_deref());
        let session = Arc::new(Self {
            directory,
            adapter,
            host,
            record: Mutex::new(record),
            recorder: OnceLock::from(recorder),
            live: Mutex::default(),
        });
        session.save();
        session.wake(Some(opened));
        Ok(session)
    }

    /// One of before; its log is read when somebody wants it.
    pub(crate) fn recall(
        directory: PathBuf,
        record: Record,
        adapter: Arc<dyn Adapter>,
        host: Arc<Host>,
    ) -> Arc<Self> {
        Arc::new(Self {
            directory,
            adapter,
            host,
            record: Mutex::new(record),
            recorder: OnceLock::new(),
            live: Mutex::default(),
        })
    }

    pub(crate) fn id(&self) -> String {
        self.lock_record().spec().session_id.clone()
    }

    pub(crate) fn agent(&self) -> &'static str {
        self.adapter.description().id
    }

    pub(crate) fn info(&self) -> SessionInfo {
        let record = self.lock_record().clone();
        let (busy, queued) = {
            let live = self.lock_live();
            (live.busy, live.queued)
        };
        let recorder = self.recorder.get();
        let event_count = recorder.map_or(record.checkpoint.count, |one| one.progress().count);
        let native = recorder.and_then(Recorder::native_id);
        let spec = record.spec();
        SessionInfo {
            session_id: spec.session_id.clone(),
            agent: self.agent().to_owned(),
            agent_mode: spec.agent_mode.clone(),
            permission_mode: spec.permission_mode.as_str().to_owned(),
            model: spec.model.clone(),
            variant: spec.variant.clone(),
            native_session_id: native.or_else(|| record.native_session_id.clone()),
            ended: record.end.is_some(),
            event_count,
            title: record.title.clone(),
            directory: record.directory_asked.clone(),
            busy: busy.then_some(true),
            queued: u64::try_from(queued).ok().filter(|queued| *queued > 0),
        }
    }

    /// Its log, which is read now if it was not yet.
    pub(crate) fn recorder(&self) -> Result<&Recorder> {
        if let Some(recorder) = self.recorder.get() {
            return Ok(recorder);
        }
        let read = || -> io::Result<Recorder> {
            let marks_turns = self.adapter.description().marks_turns;
            let recorder = Recorder::open(&self.log_path(), &self.id(), marks_turns)?;
            let ended = self.lock_record().end.is_some();
            if ended {
                recorder.close(None);
            } else {
                recorder.mend();
            }
            Ok(recorder)
        };
        let recorder = read().map_err(|error| Error::stream(format!("read the log: {error}")))?;
        Ok(self.recorder.get_or_init(|| recorder))
    }

    /// Queues a message. What is answered when its turn begins is where.
    pub(crate) fn message(self: &Arc<Self>, text: String) -> Result<oneshot::Receiver<Begun>> {
        self.require_live()?;
        let (begun, receiver) = oneshot::channel();
        self.command(Command::Message { text, begun: Some(begun) })?;
        Ok(receiver)
    }

    pub(crate) fn reply_permission(
        self: &Arc<Self>,
        id: &str,
        reply: PermissionReply,
    ) -> Result<()> {
        let approved = reply != PermissionReply::Reject;
        let ended = self.require_live();
        if !self.recorder()?.resolve_permission(id, approved) {
            return Err(Error::invalid(format!("unknown permission id: {id}")));
        }
        ended?;
        self.command(Command::Permission { id: id.to_owned(), reply })
    }

    pub(crate) fn answer_question(self: &Arc<Self>, id: &str, answer: Answer) -> Result<()> {
        let ended = self.require_live();
        let (answered, response) = match &answer {
            Answer::Answered(answers) => (true, answers.iter().flatten().next().cloned()),
            Answer::Rejected => (false, None),
        };
        if !self.recorder()?.resolve_question(id, answered, response) {
            return Err(Error::invalid(format!("unknown question id: {id}")));
        }
        ended?;
        self.command(Command::Question { id: id.to_owned(), answer })
    }

    pub(crate) fn interrupt(self: &Arc<Self>) -> Result<()> {
        self.require_live()?;
        if self.lock_live().commands.is_none() {
            return Ok(());
        }
        self.command(Command::Interrupt)
    }

    /// Answers when nothing of the agent is left. Ending what has ended is fine.
    pub(crate) async fn terminate(self: &Arc<Self>) -> Result<()> {
        let (done, wait) = oneshot::channel();
        if self.lock_record().end.is_some() {
            return Ok(());
        }
        self.end(End::Terminated);
        self.command(Command::Terminate { done })?;
        // Whatever becomes of the task, its end is the end of the wait.
        let _ = wait.await;
        Ok(())
    }

    /// The daemon stops.
    pub(crate) async fn suspend(&self) {
        let commands = self.lock_live().commands.clone();
        if let Some(commands) = commands {
            let (done, wait) = oneshot::channel();
            if commands.send(Command::Suspend { done }).await.is_ok() {
                let _ = wait.await;
            }
        }
        self.save();
    }

    pub(crate) fn resumed(&self) -> Resumed {
        self.lock_record().resumed
    }

    pub(crate) fn spec(&self) -> SessionSpec {
        self.lock_record().spec().clone()
    }

    pub(crate) fn is_busy(&self) -> bool {
        let live = self.lock_live();
        live.busy || live.queued > 0
    }

    fn require_live(&self) -> Result<()> {
        match &self.lock_record().end {
            None => Ok(()),
            Some(End::Completed | End::Terminated) => Err(Error::invalid("session terminated")),
            Some(End::Failed { exit_code, stderr }) => Err(Error::AgentProcessExited {
                agent: self.agent().to_owned(),
                exit_code: *exit_code,
                stderr: stderr.clone(),
            }),
        }
    }

    fn command(self: &Arc<Self>, command: Command) -> Result<()> {
        let sender = self.wake(None);
        let is_message = matches!(command, Command::Message { .. });
        if is_message {
            let mut live = self.lock_live();
            if live.queued >= QUEUE_MAX {
                let message = format!("too many messages wait for the turn to end: {QUEUE_MAX}");
                return Err(Error::invalid(message));
            }
            live.queued += 1;
        }
        sender.try_send(command).map_err(|_| {
            if is_message {
                self.lock_live().queued -= 1;
            }
            Error::stream("the session does not keep up")
        })
    }

    /// The way to the session's task, which is started if it does not run.
    fn wake(self: &Arc<Self>, opened: Option<Opened>) -> mpsc::Sender<Command> {
        let mut live = self.lock_live();
        if let Some(commands) = &live.commands
            && !commands.is_closed()
        {
            return commands.clone();
        }
        // Replies come beside messages, which are counted.
        let (commands, receiver) = mpsc::channel(QUEUE_MAX * 2);
        live.commands = Some(commands.clone());
        drop(live);
        let runner = Runner::new(Arc::clone(self), receiver);
        self.host.tasks.spawn(runner.run(opened));
        commands
    }

    fn end(&self, end: End) {
        let mut record = self.lock_record();
        if record.end.is_none() {
            record.end = Some(end);
        }
    }

    /// Writes down what a restart has to know.
    fn save(&self) {
        let mut record = self.lock_record().clone();
        if let Some(recorder) = self.recorder.get() {
            record.checkpoint.count = recorder.progress().count;
            record.checkpoint.bytes = self.log_path().metadata().map_or(0, |found| found.len());
            record.native_session_id = recorder.native_id().or(record.native_session_id);
        }
        *self.lock_record() = record.clone();
        if let Err(error) = record.save(&self.directory) {
            tracing::error!("cannot save session {}: {error}", record.spec().session_id);
        }
    }

    /// Whether the record tells how many events there are.
    pub(crate) fn is_checkpointed(&self) -> bool {
        let bytes = self.log_path().metadata().map_or(0, |found| found.len());
        self.lock_record().checkpoint.bytes == bytes
    }

    fn log_path(&self) -> PathBuf {
        self.directory.join("events.log")
    }

    /// What the agent is to be told before the next message, once.
    fn take_context(&self) -> Option<String> {
        self.lock_record().context.take()
    }

    /// What the agent is opened with after the first time.
    fn spec_to_resume(&self) -> SessionSpec {
        let record = self.lock_record().clone();
        let known = self.recorder.get().and_then(Recorder::native_id);
        let resume = known.or(record.native_session_id);
        SessionSpec { resume, ..record.spec }
    }

    fn lock_record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_live(&self) -> MutexGuard<'_, Live> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
