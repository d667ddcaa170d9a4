//! Tool servers: programs and addresses that are named when a session starts, spoken to by the official crate
//! of their protocol. What they offer is called `mcp__SERVER__TOOL`. They are not trusted: what they say has
//! limits in size, number and time, and what they would do is asked for like anything else.
//!
//! A server that does not start is told of, and the session goes on without it.

mod local;
mod remote;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use rmcp::RoleClient;
use rmcp::model::{CallToolRequestParams, CallToolResult, ContentBlock, Tool};
use rmcp::service::RunningService;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::timeout;

use self::local::Program;
use crate::limits::Limits;
use crate::model::ToolSpec;
use crate::protocol::McpServer;
use crate::tools::{End, Outcome, Output, Workplace};
use crate::voice::Voice;

const SERVERS_MAX: usize = 16;

/// Tools of one server; more are not offered.
const TOOLS_MAX: usize = 64;

/// The description and the schema of one tool.
const SPEC_BYTES_MAX: usize = 32 * 1024;

/// What every vendor takes as a name.
const NAME_BYTES_MAX: usize = 64;

/// How long a server may take to end.
const END_WAIT: Duration = Duration::from_secs(1);

type Client = RunningService<RoleClient, ()>;

/// A tool of a server.
#[derive(Debug)]
pub(crate) struct McpTool {
    pub(crate) spec: ToolSpec,
    /// As the server calls it.
    name: String,
    server: Arc<Server>,
    wait: Duration,
}

/// A server that is connected.
#[derive(Debug)]
struct Server {
    client: Client,
    /// Killed when it is dropped.
    _program: Option<Program>,
}

/// All of a session.
#[derive(Debug, Default)]
pub(crate) struct Servers(Vec<Arc<Server>>);

impl McpTool {
    pub(crate) async fn call(&self, arguments: &Value) -> Outcome {
        let mut request = CallToolRequestParams::new(self.name.clone());
        if let Value::Object(arguments) = arguments {
            request = request.with_arguments(arguments.clone());
        }
        match timeout(self.wait, self.server.client.call_tool(request)).await {
            Ok(Ok(result)) => outcome_of(&result),
            Ok(Err(error)) => Outcome::failed(format!("the tool server: {error}")),
            Err(_) => Outcome {
                output: format!("the tool server did not answer in {} s", self.wait.as_secs_f32()),
                end: End::TimedOut,
                file: None,
            },
        }
    }
}

impl Servers {
    /// All at once. What they offer, in the order of their names.
    pub(crate) async fn start(
        servers: &BTreeMap<String, McpServer>,
        workplace: &Workplace,
        voice: &Voice,
    ) -> (Self, Vec<Arc<McpTool>>) {
        let mut starting = JoinSet::new();
        for (name, server) in servers.iter().take(SERVERS_MAX) {
            let (name, server, workplace) = (name.clone(), server.clone(), workplace.clone());
            starting.spawn(async move {
                let started =
                    match timeout(workplace.limits.mcp_start, begin(&server, &workplace)).await {
                        Ok(started) => started,
                        Err(_) => Err("it does not answer".to_owned()),
                    };
                (name, started)
            });
        }
        let mut failed: Vec<(String, String)> = servers
            .keys()
            .skip(SERVERS_MAX)
            .map(|name| (name.clone(), "too many".into()))
            .collect();
        let mut ready = BTreeMap::new();
        while let Some(joined) = starting.join_next().await {
            match joined {
                Ok((name, Ok(started))) => {
                    ready.insert(name, started);
                }
                Ok((name, Err(why))) => failed.push((name, why)),
                Err(error) => failed.push(("?".to_owned(), error.to_string())),
            }
        }
        for (name, why) in failed {
            let detail = json!({"name": name, "status": "failed", "message": why});
            voice.status("mcp_server", &detail).await;
        }
        let (mut all, mut tools, mut names) = (Self::default(), Vec::new(), BTreeSet::new());
        for (name, (server, offered)) in ready {
            let server = Arc::new(server);
            let offered = offered.iter().take(TOOLS_MAX);
            tools.extend(offered.filter_map(|tool| {
                tool_of(&name, tool, &server, &workplace.limits)
                    .filter(|tool| names.insert(tool.spec.name.clone()))
                    .map(Arc::new)
            }));
            all.0.push(server);
        }
        (all, tools)
    }

    /// Says good-bye to those that listen, and kills the rest.
    pub(crate) async fn close(self) {
        for server in &self.0 {
            server.client.cancellation_token().cancel();
        }
        let quiet = async {
            while self.0.iter().any(|server| !server.client.is_closed()) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let _ = timeout(END_WAIT, quiet).await;
    }
}

async fn begin(server: &McpServer, workplace: &Workplace) -> Result<(Server, Vec<Tool>), String> {
    let (client, program) = match server {
        McpServer::Local { command, env } => {
            let (program, pipes) = Program::start(command, env, workplace)?;
            let client = rmcp::serve_client((), pipes).await.map_err(|error| error.to_string())?;
            (client, Some(program))
        }
        McpServer::Remote { url, headers } => {
            let transport = remote::transport(url, headers, &workplace.limits)?;
            let client = rmcp::serve_client((), transport).await;
            (client.map_err(|error| error.to_string())?, None)
        }
    };
    let tools = client.list_all_tools().await.map_err(|error| error.to_string())?;
    Ok((Server { client, _program: program }, tools))
}

fn tool_of(server: &str, tool: &Tool, of: &Arc<Server>, limits: &Limits) -> Option<McpTool> {
    let name: String = format!("mcp__{server}__{}", tool.name)
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' })
        .take(NAME_BYTES_MAX)
        .collect();
    let mut schema = (*tool.input_schema).clone();
    schema.entry("type").or_insert_with(|| "object".into());
    let parameters = Value::Object(schema);
    let description = tool.description.as_deref().unwrap_or_default().to_owned();
    if description.len() + parameters.to_string().len() > SPEC_BYTES_MAX {
        return None;
    }
    Some(McpTool {
        spec: ToolSpec { name, description, parameters },
        name: tool.name.to_string(),
        server: Arc::clone(of),
        wait: limits.mcp_call,
    })
}

fn outcome_of(result: &CallToolResult) -> Outcome {
    let mut output = Output::default();
    for part in &result.content {
        let text = match part {
            ContentBlock::Text(text) => text.text.clone(),
            other => serde_json::to_value(other).map(|part| described(&part)).unwrap_or_default(),
        };
        output.push(text.as_bytes());
        output.push(b"\n");
    }
    if result.content.is_empty()
        && let Some(structured) = &result.structured_content
    {
        output.push(structured.to_string().as_bytes());
    }
    let text = output.text();
    if result.is_error == Some(true) { Outcome::failed(text) } else { Outcome::fine(text) }
}

/// A picture is nothing to read.
fn described(part: &Value) -> String {
    let text = part.pointer("/resource/text").and_then(Value::as_str);
    text.map(str::to_owned).unwrap_or_else(|| {
        let kind = part.get("type").and_then(Value::as_str).unwrap_or("something");
        let place = part.get("uri").or_else(|| part.pointer("/resource/uri"));
        let place = place.and_then(Value::as_str).unwrap_or_default();
        format!("[{kind} {place}]")
    })
}
