//! The daemon without HTTP: its agents and its sessions.

pub(crate) mod hosted;
mod programs;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use self::hosted::Past;
use self::programs::Programs;
use crate::adapter::{Adapter, SessionSpec};
use crate::api::{AgentInfo, CreateSessionRequest, CreateSessionResponse, SessionInfo};
use crate::error::{Error, Result};
use crate::host::Host;
use crate::install::{Wanted, install};
use crate::secrets::{Secrets, is_variable};
use crate::session::{Record, Session};
use crate::task::{TaskPlace, Tasks};

const SESSION_ID_BYTES_MAX: usize = 256;

/// Sessions that have not ended.
const SESSIONS_MAX: usize = 1000;

/// How long all sessions together may take to stop.
const SUSPEND_MAX: Duration = Duration::from_secs(15);

pub(crate) struct Daemon {
    host: Arc<Host>,
    adapters: Vec<Arc<dyn Adapter>>,
    programs: Programs,
    tasks: Tasks,
    sessions: Mutex<Sessions>,
    /// One session of a server is made at a time.
    puts: Semaphore,
}

/// What a session has beside what the contract says.
#[derive(Debug, Default)]
struct Making {
    secrets: Secrets,
    app: Option<Value>,
    past: Past,
}

/// An id that nobody else can take until this is dropped.
struct Reserved<'a> {
    daemon: &'a Daemon,
    id: &'a str,
    number: u64,
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.daemon.lock().reserved.remove(self.id);
    }
}

#[derive(Default)]
struct Sessions {
    by_id: HashMap<String, Arc<Session>>,
    /// In the order in which they were made.
    order: Vec<String>,
    /// Being made.
    reserved: HashSet<String>,
    next: u64,
}

impl Daemon {
    /// With the sessions of before.
    pub(crate) fn open(
        host: Arc<Host>,
        adapters: Vec<Arc<dyn Adapter>>,
        task: Option<TaskPlace>,
    ) -> std::io::Result<Arc<Self>> {
        let directory = host.data_dir.join("sessions");
        std::fs::create_dir_all(&directory)?;
        let mut found = records(&directory)?;
        found.sort_by_key(|(_, record)| record.number);
        let mut sessions = Sessions { next: 1, ..Sessions::default() };
        for (path, record) in found {
            sessions.next = sessions.next.max(record.number + 1);
            let agent = adapters.iter().find(|one| one.description().id == record.agent);
            let Some(adapter) = agent else {
                tracing::warn!("{} is of an unknown agent: {}", path.display(), record.agent);
                continue;
            };
            let (adapter, shared) = (Arc::clone(adapter), Arc::clone(&host));
            let session = Session::recall(path, record, adapter, shared);
            if !session.is_checkpointed()
                && let Err(error) = session.recorder()
            {
                tracing::error!("session {}: {error}", session.id());
            }
            sessions.order.push(session.id());
            sessions.by_id.insert(session.id(), session);
        }
        let programs = Programs::default();
        let tasks = Tasks::new(Arc::clone(&host), task);
        let (sessions, puts) = (Mutex::new(sessions), Semaphore::new(1));
        Ok(Arc::new(Self { host, adapters, programs, tasks, sessions, puts }))
    }

    pub(crate) fn tasks(&self) -> &Tasks {
        &self.tasks
    }

    pub(crate) fn host(&self) -> &Arc<Host> {
        &self.host
    }

    pub(crate) fn adapter(&self, agent: &str) -> Result<&Arc<dyn Adapter>> {
        let found = self.adapters.iter().find(|one| one.description().id == agent);
        found.ok_or_else(|| Error::UnsupportedAgent { agent: agent.to_owned() })
    }

    pub(crate) async fn agents(&self) -> Vec<AgentInfo> {
        let mut agents = Vec::with_capacity(self.adapters.len());
        for adapter in &self.adapters {
            let description = adapter.description();
            let (path, version) = match description.program {
                None => (None, Some("builtin".to_owned())),
                Some(name) => self.programs.look(&self.host, name).await,
            };
            agents.push(AgentInfo {
                id: description.id.to_owned(),
                installed: description.program.is_none() || path.is_some(),
                version,
                path: path.map(|path| path.display().to_string()),
                capabilities: description.capabilities,
                server_status: adapter.server_status(),
            });
        }
        agents
    }

    pub(crate) async fn install(
        &self,
        agent: &str,
        reinstall: bool,
        version: Option<String>,
    ) -> Result<()> {
        let description = self.adapter(agent)?.description();
        if description.program.is_none() {
            return Ok(());
        }
        install(&self.host, Wanted { agent: description.id, version, reinstall }).await?;
        Ok(())
    }

    pub(crate) async fn create(
        &self,
        id: &str,
        request: CreateSessionRequest,
    ) -> Result<CreateSessionResponse> {
        let session = self.create_with(id, request, Making::default()).await?;
        let native_session_id = session.info().native_session_id;
        Ok(CreateSessionResponse { healthy: true, error: None, native_session_id })
    }

    async fn create_with(
        &self,
        id: &str,
        request: CreateSessionRequest,
        making: Making,
    ) -> Result<Arc<Session>> {
        let adapter = Arc::clone(self.adapter(&request.agent)?);
        let reserved = self.reserve(id)?;
        let session = self.make(&reserved, request, adapter, making).await?;
        let mut sessions = self.lock();
        sessions.order.push(id.to_owned());
        sessions.by_id.insert(id.to_owned(), Arc::clone(&session));
        drop(sessions);
        Ok(session)
    }

    async fn make(
        &self,
        reserved: &Reserved<'_>,
        request: CreateSessionRequest,
        adapter: Arc<dyn Adapter>,
        making: Making,
    ) -> Result<Arc<Session>> {
        let description = adapter.description();
        if let Some(name) = description.program
            && self.host.find_program(name).is_none()
        {
            let version = request.agent_version.clone();
            install(&self.host, Wanted { agent: description.id, version, reinstall: false })
                .await?;
        }
        let modes = adapter
            .choose_modes(request.agent_mode.as_deref(), request.permission_mode.as_deref())?;
        let spec = SessionSpec {
            session_id: reserved.id.to_owned(),
            agent_mode: modes.agent,
            permission_mode: modes.permission,
            model: request.model,
            variant: request.variant,
            directory: self.directory(request.directory.as_deref())?,
            env: checked_env(request.env.unwrap_or_default())?,
            secrets: making.secrets,
            app: making.app,
            mcp: request.mcp.unwrap_or_default(),
            resume: None,
        };
        let mut record = Record::new(reserved.number, description.id, spec);
        record.native_session_id = making.past.native_session_id;
        record.context = making.past.history;
        record.title = request.title;
        record.directory_asked = request.directory;
        let directory = self.host.data_dir.join("sessions");
        let directory = directory.join(format!("{:08}", reserved.number));
        Session::create(directory, record, adapter, Arc::clone(&self.host)).await
    }

    fn directory(&self, asked: Option<&str>) -> Result<PathBuf> {
        let Some(asked) = asked else { return Ok(self.host.directory.clone()) };
        let path = self.host.directory.join(asked);
        if !path.is_dir() {
            return Err(Error::invalid(format!("directory: not a directory: {asked}")));
        }
        Ok(path)
    }

    /// Nobody else can take the id until it is made or has failed.
    fn reserve<'a>(&'a self, id: &'a str) -> Result<Reserved<'a>> {
        if id.is_empty() || id.len() > SESSION_ID_BYTES_MAX {
            let message = format!("session id: 1 to {SESSION_ID_BYTES_MAX} bytes: {}", id.len());
            return Err(Error::invalid(message));
        }
        let mut sessions = self.lock();
        if sessions.by_id.contains_key(id) || sessions.reserved.contains(id) {
            return Err(Error::SessionAlreadyExists { session_id: id.to_owned() });
        }
        let live = sessions.by_id.values().filter(|session| !session.info().ended).count();
        if live + sessions.reserved.len() >= SESSIONS_MAX {
            let message = format!("too many sessions that have not ended: {SESSIONS_MAX}");
            return Err(Error::invalid(message));
        }
        sessions.reserved.insert(id.to_owned());
        let number = sessions.next;
        sessions.next += 1;
        Ok(Reserved { daemon: self, id, number })
    }

    pub(crate) fn session(&self, id: &str) -> Result<Arc<Session>> {
        let found = self.lock().by_id.get(id).cloned();
        found.ok_or_else(|| Error::SessionNotFound { session_id: id.to_owned() })
    }

    /// Newest first.
    pub(crate) fn sessions(&self) -> Vec<SessionInfo> {
        let sessions = self.lock();
        let newest_first = sessions.order.iter().rev();
        newest_first.filter_map(|id| sessions.by_id.get(id)).map(|one| one.info()).collect()
    }

    /// Lets turns end for a while, then stops every agent. The sessions go on with the next daemon.
    pub(crate) async fn drain(&self, patience: Duration) {
        let all: Vec<Arc<Session>> = self.lock().by_id.values().cloned().collect();
        let quiet = async {
            while all.iter().any(|session| session.is_busy()) {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        if timeout(patience, quiet).await.is_err() {
            tracing::warn!("turns that still run are stopped");
        }
        let suspend = async {
            for session in &all {
                session.suspend().await;
            }
        };
        if timeout(SUSPEND_MAX, suspend).await.is_err() {
            tracing::error!("some sessions did not stop in time");
        }
        for adapter in &self.adapters {
            if timeout(SUSPEND_MAX, adapter.close()).await.is_err() {
                tracing::error!("{} did not stop in time", adapter.description().id);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What cannot be a variable would make the agent fail to start in a way that nobody understands.
fn checked_env(env: BTreeMap<String, String>) -> Result<BTreeMap<String, String>> {
    let bad = |(name, value): &(&String, &String)| !is_variable(name, value);
    if let Some((name, _)) = env.iter().find(bad) {
        return Err(Error::invalid(format!("env: not a variable: {name:?}")));
    }
    Ok(env)
}

fn records(directory: &Path) -> std::io::Result<Vec<(PathBuf, Record)>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        match Record::load(&path) {
            Ok(record) => found.push((path, record)),
            // Its creation was never answered.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let _ = std::fs::remove_dir_all(&path);
            }
            Err(error) => tracing::error!("cannot read {}: {error}", path.display()),
        }
    }
    Ok(found)
}
