//! `bastide agents`: the agent daemon on this machine, and a client of any of them. The words are those
//! of the program whose interface it has, so that `sandbox-agent` can be this.

mod call;
mod serve;

use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};
use serde_json::{Value, json};

use self::call::Caller;
use crate::failure::Failure;

/// The port of the daemon.
const ENDPOINT: &str = "http://127.0.0.1:2468";

#[derive(Debug, Args)]
pub(crate) struct AgentsArgs {
    /// The daemon's token: what `server` asks for, what the others send
    #[arg(short, long, global = true, value_name = "TOKEN", conflicts_with = "no_token")]
    token: Option<String>,
    /// Neither ask for a token nor send one
    #[arg(short, long, global = true)]
    no_token: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve the daemon until it is told to stop
    Server(serve::ServerArgs),
    /// List and install agents
    Agents {
        #[command(flatten)]
        endpoint: Endpoint,
        #[command(subcommand)]
        command: AgentCommand,
    },
    /// Create and use sessions
    Sessions {
        #[command(flatten)]
        endpoint: Endpoint,
        #[command(subcommand)]
        command: Box<SessionCommand>,
    },
    /// Our own coding agent, without a daemon: bastide agents deictic --help
    #[command(disable_help_flag = true)]
    Deictic {
        /// As its own --help lists them
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
        arguments: Vec<String>,
    },
    /// Print the document of the daemon's HTTP interface
    Openapi,
    /// The same as `agents` and `sessions`, under the name of later versions
    #[command(hide = true)]
    Api {
        #[command(subcommand)]
        command: ApiCommand,
    },
}

#[derive(Debug, Subcommand)]
enum ApiCommand {
    Agents {
        #[command(flatten)]
        endpoint: Endpoint,
        #[command(subcommand)]
        command: AgentCommand,
    },
    Sessions {
        #[command(flatten)]
        endpoint: Endpoint,
        #[command(subcommand)]
        command: Box<SessionCommand>,
    },
}

/// Where the daemon is.
#[derive(Debug, Clone, Args)]
struct Endpoint {
    /// Where the daemon is
    #[arg(short, long, global = true, value_name = "URL", default_value = ENDPOINT)]
    endpoint: String,
}

#[derive(Debug, Subcommand)]
enum AgentCommand {
    /// What agents there are, and what each can do
    List,
    /// Install the program of an agent
    Install {
        agent: String,
        /// Even if it is there
        #[arg(short, long)]
        reinstall: bool,
        /// Another version than the one that is known to work
        #[arg(long, value_name = "VERSION")]
        version: Option<String>,
    },
    /// The modes of an agent
    Modes { agent: String },
    /// The models of an agent, as far as it can tell
    Models { agent: String },
}

#[derive(Debug, Subcommand)]
enum SessionCommand {
    /// List sessions, newest first
    List,
    /// Start a session with an agent
    Create(CreateArgs),
    /// Send a message; it waits for the turn to end
    SendMessage {
        id: String,
        #[arg(short, long)]
        message: String,
    },
    /// Send a message and print the events of its turn
    SendMessageStream {
        id: String,
        #[arg(short, long)]
        message: String,
        /// With what the agent printed
        #[arg(long)]
        include_raw: bool,
    },
    /// End the turn; the session goes on
    Interrupt { id: String },
    /// End a session and everything that it started
    Terminate { id: String },
    /// Print the events of a session
    #[command(alias = "get-messages")]
    Events {
        id: String,
        /// After this sequence
        #[arg(short, long)]
        offset: Option<u64>,
        #[arg(short, long)]
        limit: Option<u64>,
        /// With what the agent printed
        #[arg(long)]
        include_raw: bool,
    },
    /// Print the events of a session as they come
    EventsSse {
        id: String,
        /// After this sequence
        #[arg(short, long)]
        offset: Option<u64>,
        /// With what the agent printed
        #[arg(long)]
        include_raw: bool,
    },
    /// Answer a question
    ReplyQuestion {
        id: String,
        question_id: String,
        /// One list a question, as JSON: [["Blue"]]
        #[arg(short, long, value_name = "JSON")]
        answers: String,
    },
    /// Answer no question
    RejectQuestion { id: String, question_id: String },
    /// Answer a permission request
    ReplyPermission {
        id: String,
        permission_id: String,
        #[arg(short, long, value_enum)]
        reply: Reply,
    },
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Reply {
    Once,
    Always,
    Reject,
}

#[derive(Debug, Args)]
struct CreateArgs {
    id: String,
    #[arg(short, long)]
    agent: String,
    #[arg(short = 'g', long, value_name = "MODE")]
    agent_mode: Option<String>,
    #[arg(short, long, value_name = "MODE")]
    permission_mode: Option<String>,
    #[arg(short, long)]
    model: Option<String>,
    #[arg(short, long)]
    variant: Option<String>,
    /// Used if the agent has to be installed first
    #[arg(short = 'A', long, value_name = "VERSION")]
    agent_version: Option<String>,
    /// Where the agent works
    #[arg(short, long, value_name = "DIR")]
    directory: Option<String>,
    /// For lists
    #[arg(long)]
    title: Option<String>,
    /// Added to the agent's environment
    #[arg(long, value_name = "NAME=VALUE", value_parser = crate::args::pair)]
    env: Vec<(String, String)>,
}

pub(crate) fn execute(args: AgentsArgs) -> Result<ExitCode, Failure> {
    let AgentsArgs { token, no_token, command } = args;
    let (endpoint, run) = match command {
        Command::Server(server) => return serve::execute(&server, token, no_token),
        Command::Deictic { arguments } => {
            return Ok(agentd::deictic_main(arguments.into_iter()));
        }
        Command::Openapi => {
            crate::out::stdout(agentd::openapi().as_bytes())?;
            return Ok(ExitCode::SUCCESS);
        }
        Command::Agents { endpoint, command }
        | Command::Api { command: ApiCommand::Agents { endpoint, command } } => {
            (endpoint, Run::Agent(command))
        }
        Command::Sessions { endpoint, command }
        | Command::Api { command: ApiCommand::Sessions { endpoint, command } } => {
            (endpoint, Run::Session(*command))
        }
    };
    let caller = Caller::new(&endpoint.endpoint, token)?;
    crate::block_on(async {
        match run {
            Run::Agent(command) => agent(&caller, command).await,
            Run::Session(command) => session(&caller, command).await,
        }
    })
}

enum Run {
    Agent(AgentCommand),
    Session(SessionCommand),
}

async fn agent(caller: &Caller, command: AgentCommand) -> Result<ExitCode, Failure> {
    match command {
        AgentCommand::List => caller.get("/v1/agents").await,
        AgentCommand::Modes { agent } => caller.get(&path(&["agents", &agent, "modes"])).await,
        AgentCommand::Models { agent } => caller.get(&path(&["agents", &agent, "models"])).await,
        AgentCommand::Install { agent, reinstall, version } => {
            let body = without_nulls(json!({
                "reinstall": reinstall.then_some(true),
                "version": version,
            }));
            caller.post(&path(&["agents", &agent, "install"]), Some(body)).await
        }
    }
}

async fn session(caller: &Caller, command: SessionCommand) -> Result<ExitCode, Failure> {
    let at = |id: &str, rest: &[&str]| path(&[&["sessions", id], rest].concat());
    match command {
        SessionCommand::List => caller.get("/v1/sessions").await,
        SessionCommand::Create(args) => {
            let place = at(&args.id, &[]);
            caller.post(&place, Some(creation(args))).await
        }
        SessionCommand::SendMessage { id, message } => {
            let body = json!({ "message": message });
            caller.post(&at(&id, &["messages"]), Some(body)).await
        }
        SessionCommand::SendMessageStream { id, message, include_raw } => {
            let place = at(&id, &["messages", "stream"]) + &query(None, None, include_raw);
            caller.stream(&place, Some(json!({ "message": message }))).await
        }
        SessionCommand::Interrupt { id } => caller.post(&at(&id, &["interrupt"]), None).await,
        SessionCommand::Terminate { id } => caller.post(&at(&id, &["terminate"]), None).await,
        SessionCommand::Events { id, offset, limit, include_raw } => {
            caller.get(&(at(&id, &["events"]) + &query(offset, limit, include_raw))).await
        }
        SessionCommand::EventsSse { id, offset, include_raw } => {
            let place = at(&id, &["events", "sse"]) + &query(offset, None, include_raw);
            caller.stream(&place, None).await
        }
        SessionCommand::ReplyQuestion { id, question_id, answers } => {
            let answers: Value = serde_json::from_str(&answers).map_err(|error| {
                let failure = Failure::new(format!("answers are not JSON: {error}"));
                failure.hint(r#"one list a question: --answers '[["Blue"]]'"#)
            })?;
            let place = at(&id, &["questions", &question_id, "reply"]);
            caller.post(&place, Some(json!({ "answers": answers }))).await
        }
        SessionCommand::RejectQuestion { id, question_id } => {
            caller.post(&at(&id, &["questions", &question_id, "reject"]), None).await
        }
        SessionCommand::ReplyPermission { id, permission_id, reply } => {
            let reply = match reply {
                Reply::Once => "once",
                Reply::Always => "always",
                Reply::Reject => "reject",
            };
            let place = at(&id, &["permissions", &permission_id, "reply"]);
            caller.post(&place, Some(json!({ "reply": reply }))).await
        }
    }
}

fn creation(args: CreateArgs) -> Value {
    let env = serde_json::Map::from_iter(
        args.env.into_iter().map(|(name, value)| (name, Value::from(value))),
    );
    without_nulls(json!({
        "agent": args.agent,
        "agentMode": args.agent_mode,
        "permissionMode": args.permission_mode,
        "model": args.model,
        "variant": args.variant,
        "agentVersion": args.agent_version,
        "directory": args.directory,
        "title": args.title,
        "env": if env.is_empty() { Value::Null } else { Value::from(env) },
    }))
}

fn without_nulls(mut body: Value) -> Value {
    if let Value::Object(fields) = &mut body {
        fields.retain(|_, value| !value.is_null());
    }
    body
}

/// Ids may hold anything, so that every segment is encoded.
fn path(segments: &[&str]) -> String {
    let encoded = segments.iter().map(|segment| {
        let bytes = segment.bytes().map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                char::from(byte).to_string()
            }
            other => format!("%{other:02X}"),
        });
        bytes.collect::<String>()
    });
    format!("/v1/{}", encoded.collect::<Vec<_>>().join("/"))
}

fn query(offset: Option<u64>, limit: Option<u64>, include_raw: bool) -> String {
    let mut parts = Vec::new();
    parts.extend(offset.map(|offset| format!("offset={offset}")));
    parts.extend(limit.map(|limit| format!("limit={limit}")));
    parts.extend(include_raw.then(|| "include_raw=true".to_owned()));
    if parts.is_empty() { String::new() } else { format!("?{}", parts.join("&")) }
}
