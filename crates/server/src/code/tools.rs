//! The three tools, as the protocol wants them.

use std::sync::Arc;

use axum::http::request::Parts;
use rmcp::handler::server::ServerHandler;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ErrorData,
    Implementation, JsonObject, ListToolsResult, PaginatedRequestParams, ServerCapabilities,
    ServerConfig, Tool, ToolAnnotations,
};
use rmcp::service::{RequestContext, RoleServer};
use serde_json::{Value, json};
use tracing::Instrument as _;

use super::identity::Identity;
use crate::app::App;

/// Which tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Search,
    Read,
    Write,
}

pub(super) const KINDS: [Kind; 3] = [Kind::Search, Kind::Read, Kind::Write];

const INSTRUCTIONS: &str = "Call an HTTP API by writing JavaScript. First use `search` to find an \
    endpoint's path and the shape of its request in the OpenAPI document, then `execute_read` or \
    `execute_write` to call it. Loop, filter and chain calls in one function, and return only what you \
    need: what stays in the code costs you nothing.";

/// One request's tools.
#[derive(Clone)]
pub(crate) struct Tools {
    app: App,
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Search => "search",
            Self::Read => "execute_read",
            Self::Write => "execute_write",
        }
    }

    fn description(self) -> &'static str {
        match self {
            Self::Search => {
                "Search the OpenAPI document of the API. `spec` is in scope: \
                 { info, paths: { [path]: { [method]: { summary, description, tags, parameters, \
                 requestBody, responses } } } }, with every $ref resolved. There is no network.\n\n\
                 Example:\nasync () => Object.entries(spec.paths)\n  .filter(([path]) => \
                 path.includes('sandbox'))\n  .flatMap(([path, ops]) => Object.entries(ops)\n    \
                 .map(([method, op]) => `${method.toUpperCase()} ${path}: ${op.summary}`))"
            }
            Self::Read => {
                "Read from the API: GET only. `api.request({ path, query? })` resolves to \
                 { status, ok, data }; data is parsed JSON, or text, or { base64 }. A status of 4xx or \
                 5xx does not throw. There is no other network, and no fetch.\n\n\
                 Example:\nasync () => {\n  const res = await api.request({ method: 'GET', path: \
                 '/v1/sandboxes' })\n  return { status: res.status, running: res.data.length }\n}"
            }
            Self::Write => {
                "Call the API with any method. `api.request({ method, path, query?, body?, \
                 contentType?, rawBody? })` resolves to { status, ok, data }. `body` is sent as JSON; \
                 `rawBody` (a string or a Uint8Array) as it is, with `contentType`. A status of 4xx or \
                 5xx does not throw: look at `ok`. `await sleep(ms)` waits.\n\n\
                 Example:\nasync () => {\n  const made = await api.request({ method: 'POST', path: \
                 '/v1/sandboxes', body: { template: 'host' } })\n  return made.data\n}"
            }
        }
    }

    fn annotations(self) -> ToolAnnotations {
        let (title, reads) = match self {
            Self::Search => ("Search the API's description", true),
            Self::Read => ("Read from the API", true),
            Self::Write => ("Call the API", false),
        };
        ToolAnnotations::with_title(title)
            .read_only(reads)
            .destructive(self == Self::Write)
            .idempotent(reads)
            .open_world(self != Self::Search)
    }

    fn tool(self) -> Tool {
        Tool::new(self.name(), self.description(), schema()).annotate(self.annotations())
    }
}

impl Tools {
    pub(super) fn new(app: App) -> Self {
        Self { app }
    }
}

impl ServerHandler for Tools {
    fn get_info(&self) -> ServerConfig {
        let about = Implementation::new("bastide", env!("CARGO_PKG_VERSION"));
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(about)
            .with_instructions(INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(KINDS.map(Kind::tool).to_vec()))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        KINDS.into_iter().find(|kind| kind.name() == name).map(Kind::tool)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let unknown = || ErrorData::invalid_params(format!("no such tool: {}", request.name), None);
        let kind =
            KINDS.into_iter().find(|kind| kind.name() == request.name).ok_or_else(unknown)?;
        let code = match code_of(request.arguments.as_ref()) {
            Ok(code) => code,
            Err(why) => return Ok(CallToolResult::error(vec![ContentBlock::text(why)]).into()),
        };
        let parts = context.extensions.get::<Parts>();
        let identity = parts.and_then(|parts| parts.extensions.get::<Arc<Identity>>()).cloned();
        let nobody = || ErrorData::invalid_request("nobody is known to call", None);
        let identity = identity.ok_or_else(nobody)?;
        let run = self.app.code.run(&self.app, kind, code, &identity);
        let run = run.instrument(identity.span.clone());
        let answer = tokio::select! {
            answer = run => answer,
            // Dropping it ends its sandbox.
            () = identity.gone.cancelled() => return Err(gone()),
            () = context.ct.cancelled() => return Err(gone()),
        };
        let content = vec![ContentBlock::text(answer.text)];
        let result = match answer.is_error {
            true => CallToolResult::error(content),
            false => CallToolResult::success(content),
        };
        Ok(result.into())
    }
}

fn gone() -> ErrorData {
    ErrorData::internal_error("nobody waits for the answer", None)
}

/// What is wrong with arguments is told to the model, which can do better, and not to its client.
fn code_of(arguments: Option<&JsonObject>) -> Result<String, String> {
    let Some(arguments) = arguments else { return Err("code: required".into()) };
    if let Some(other) = arguments.keys().find(|name| *name != "code") {
        return Err(format!("{other}: unknown argument"));
    }
    match arguments.get("code") {
        Some(Value::String(code)) => Ok(code.clone()),
        Some(_) => Err("code: must be a string".into()),
        None => Err("code: required".into()),
    }
}

fn schema() -> Arc<JsonObject> {
    let schema = json!({
        "type": "object",
        "properties": { "code": {
            "type": "string",
            "description": "An async arrow function that returns a JSON value: async () => { … }. \
                console.log goes to stdout, beside the result.",
        } },
        "required": ["code"],
        "additionalProperties": false,
    });
    let Value::Object(schema) = schema else { return Arc::default() };
    Arc::new(schema)
}
