//! A session: one conversation with one agent, or with a planner and its agents, turn by turn.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::app::{self, AgentSpec, App, ToolName};
use crate::crew::{Crew, Member};
use crate::desk::Desk;
use crate::history::History;
use crate::limits::Limits;
use crate::mcp::{McpTool, Servers};
use crate::meter::Meter;
use crate::model::{Client, Endpoint, Environment, Message};
use crate::prompt;
use crate::protocol::{PermissionMode, Said, Start, TurnStatus};
use crate::toolbox::{Entry, Toolbox};
use crate::tools::{DEFAULT, Places, Workplace};
use crate::transcript::Transcript;
use crate::turn::{self, Shared, Trouble, Worker};
use crate::variables::Variables;
use crate::voice::Voice;

/// What a session is opened in.
#[derive(Debug, Clone)]
pub struct Surroundings {
    /// Of the process, as its `main` read it.
    pub environment: Environment,
    /// Where the agent works.
    pub directory: PathBuf,
    /// Where transcripts are, unless the start says so.
    pub state_dir: PathBuf,
    pub limits: Limits,
    /// Somebody may answer what is asked.
    pub attended: bool,
}

#[derive(Debug)]
pub(crate) struct Session {
    worker: Worker,
    history: History,
    id: String,
    servers: Servers,
}

impl Session {
    /// Ready to take messages. The failure says what to do.
    pub(crate) async fn open(
        start: &Start,
        around: Surroundings,
        voice: Voice,
    ) -> Result<Self, String> {
        let endpoint = Endpoint::resolve(start, &around.environment)?;
        let directory = around.directory.canonicalize().map_err(|error| {
            format!("the working directory: {error}: {}", around.directory.display())
        })?;
        let names: BTreeSet<&str> = start.mcp.keys().map(String::as_str).collect();
        let app = start.app.as_ref().map(|app| app::parse(app, &names)).transpose()?;
        let (history, id) = recall(start, &around, &endpoint)?;
        let workplace = workplace(start, &around, &directory);
        let (servers, tools) = Servers::start(&start.mcp, &workplace, &voice).await;
        let mode = start.permission_mode;
        let roles = Roles { directory: &directory, mode, tools: &tools };
        let (system, toolbox, crew) = roles.cast(app.as_ref());
        let (vendor, model) = (endpoint.vendor.name().to_owned(), endpoint.model.clone());
        let shared = Shared {
            client: Client::new(endpoint, &around.limits),
            desk: Desk::new(mode, around.attended),
            meter: Meter::default(),
            workplace,
            limits: around.limits,
        };
        let said = Said::Ready {
            session: id.clone(),
            resumed: start.session.is_some(),
            vendor,
            model,
            tools: toolbox.names(),
        };
        voice.say(said).await;
        let worker = Worker {
            shared: Arc::new(shared),
            system: system.into(),
            toolbox: Arc::new(toolbox),
            crew: crew.map(Arc::new),
            voice,
            cancel: CancellationToken::new(),
        };
        Ok(Self { worker, history, id, servers })
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    pub(crate) fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.worker.shared)
    }

    /// One turn, to its end. What went wrong is said, and the session can be used again.
    pub(crate) async fn turn(&mut self, text: String, cancel: CancellationToken) -> TurnStatus {
        self.worker.cancel = cancel;
        let closed = self.history.close_calls();
        let kept = self.history.push(Message::User { text }).and(closed);
        let over = match kept {
            Ok(()) => turn::run(&self.worker, &mut self.history).await,
            Err(error) => turn::Over { steps: 0, result: Err(Trouble::of_disk(&error)) },
        };
        let mut status = match &over.result {
            Ok(_) => TurnStatus::Completed,
            Err(Trouble::Interrupted) => TurnStatus::Interrupted,
            Err(Trouble::Model(_) | Trouble::Other { .. }) => TurnStatus::Failed,
        };
        let voice = &self.worker.voice;
        if let (Err(trouble), TurnStatus::Failed) = (&over.result, status) {
            voice.error(&trouble.code(), trouble.message()).await;
        }
        let word = match status {
            TurnStatus::Completed => "completed",
            TurnStatus::Failed => "failed",
            TurnStatus::Interrupted => "interrupted",
        };
        if let Err(error) = self.history.turn(word)
            && status == TurnStatus::Completed
        {
            let trouble = Trouble::of_disk(&error);
            voice.error(&trouble.code(), trouble.message()).await;
            status = TurnStatus::Failed;
        }
        let endpoint = &self.worker.shared.client.endpoint;
        let used = self.worker.shared.meter.take(endpoint.vendor.name(), &endpoint.model);
        voice.runtime_event(&used).await;
        voice.say(Said::TurnOver { status, steps: over.steps }).await;
        status
    }

    /// Ends the tool servers.
    pub(crate) async fn close(self) {
        self.servers.close().await;
    }
}

fn recall(
    start: &Start,
    around: &Surroundings,
    endpoint: &Endpoint,
) -> Result<(History, String), String> {
    let directory = start.state_dir.as_ref().unwrap_or(&around.state_dir);
    let (vendor, model) = (endpoint.vendor.name(), endpoint.model.as_str());
    let (transcript, messages) = match &start.session {
        None => {
            let made = Transcript::create(directory, vendor, model);
            let failed =
                |error| format!("cannot keep the session in {}: {error}", directory.display());
            (made.map_err(failed)?, Vec::new())
        }
        Some(id) => Transcript::open(directory, id, vendor, model)
            .map_err(|error| format!("cannot go on with session {id}: {error}"))?,
    };
    let id = transcript.id().to_owned();
    Ok((History::kept(messages, transcript), id))
}

fn workplace(start: &Start, around: &Surroundings, directory: &Path) -> Workplace {
    let places = match start.permission_mode {
        PermissionMode::Bypass => Places::Everywhere,
        PermissionMode::Default | PermissionMode::Plan => Places::around(directory),
    };
    Workplace {
        directory: directory.to_owned(),
        places,
        environment: Variables::new(&around.environment),
        limits: around.limits.clone(),
    }
}

/// Who the agents of a session are.
struct Roles<'a> {
    directory: &'a Path,
    mode: PermissionMode,
    tools: &'a [Arc<McpTool>],
}

impl Roles<'_> {
    /// The first agent's prompt and tools, and those that it leads.
    fn cast(&self, app: Option<&App>) -> (String, Toolbox, Option<Crew>) {
        match app.map(|app| (app, app.agents.as_slice())) {
            None | Some((_, [])) => {
                let names: Vec<ToolName> = DEFAULT.into_iter().map(ToolName::Own).collect();
                let mut toolbox = self.toolbox(&names);
                self.tools.iter().for_each(|tool| toolbox.add(Entry::Mcp(Arc::clone(tool))));
                self.speaks_with_the_user(&mut toolbox);
                (prompt::agent(self.directory, self.mode), toolbox, None)
            }
            Some((_, [agent])) => {
                let mut toolbox = self.toolbox(&agent.tools);
                self.speaks_with_the_user(&mut toolbox);
                (prompt::specialist(agent, self.directory, self.mode), toolbox, None)
            }
            Some((app, agents)) => {
                let crew = Crew::new(agents.iter().map(|agent| self.member(agent)).collect());
                let mut toolbox = Toolbox::default();
                toolbox.add(Entry::Delegate(crew.spec()));
                self.speaks_with_the_user(&mut toolbox);
                (prompt::planner(&app.name, self.directory, agents), toolbox, Some(crew))
            }
        }
    }

    fn member(&self, agent: &AgentSpec) -> Member {
        let system = prompt::specialist(agent, self.directory, PermissionMode::Default);
        let toolbox = Arc::new(self.toolbox(&agent.tools));
        Member { agent: agent.clone(), system: system.into(), toolbox }
    }

    fn toolbox(&self, names: &[ToolName]) -> Toolbox {
        let mut toolbox = Toolbox::default();
        for name in names {
            match name {
                ToolName::Own(tool) => toolbox.add(Entry::Own(*tool)),
                ToolName::AskUser => toolbox.add(Entry::AskUser),
                ToolName::Mcp(wanted) => {
                    let all = format!("{wanted}__");
                    let named = self.tools.iter().filter(|tool| {
                        tool.spec.name == *wanted || tool.spec.name.starts_with(&all)
                    });
                    named.for_each(|tool| toolbox.add(Entry::Mcp(Arc::clone(tool))));
                }
            }
        }
        toolbox
    }

    fn speaks_with_the_user(&self, toolbox: &mut Toolbox) {
        toolbox.add(Entry::AskUser);
        if self.mode == PermissionMode::Plan {
            toolbox.add(Entry::ExitPlan);
        }
    }
}
