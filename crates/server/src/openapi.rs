//! The route table, and the `OpenAPI` 3.1 document that is made from the same handlers.

use anyhow::Result;
use api::exec::{ExecExit, ExecGap, ExecLost, ExecOutput, ExecStarted};
use api::{Code, Problem};
use axum::Router;
use axum::routing::{any, get};
use utoipa::openapi::path::Operation;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{Content, OpenApi, Ref, RefOr, Response};
use utoipa::{Modify, OpenApi as _};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::app::{App, Pages};
use crate::docs;
use crate::routes::{
    administration, agents, billing, catalogue, egress, events, exec, files, keys, lifecycle, logs,
    meta, organisation_money, organisations, ports, sandboxes, secrets, session_log,
    session_socket, sessions, sign_in, tenants, tunnel, usage, workspace_files, workspaces,
};

const PROBLEM_JSON: &str = "application/problem+json";

#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "Bastide",
        description = "Self-hosted sandboxes for AI agents: isolated Linux machines with a \
            workspace that survives them.\n\nEvery error is a problem body (RFC 9457) with a \
            stable `code`. Another owner's sandbox is 404, as one that never existed.",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
    ),
    tags(
        (name = "Sandboxes", description = "Make, find, change and destroy them"),
        (name = "Lifecycle", description = "Start, stop, pause, resume, cancel"),
        (name = "Commands", description = "Run programs and read what they say"),
        (name = "Files", description = "In and out, one by one or the whole workspace"),
        (name = "Ports", description = "Servers inside, from a browser or a program"),
        (name = "Agents", description = "The agent daemon of a sandbox"),
        (name = "Tunnels", description = "Raw connections to ports inside"),
        (name = "Sessions", description = "Conversations with an agent that outlive connections and sandboxes"),
        (name = "Events", description = "What happens to your sandboxes, as it happens"),
        (name = "Accounts", description = "Signing up and in, and one's own keys"),
        (name = "Usage", description = "What was used, by day"),
        (name = "Billing", description = "Credit: what is left, what moved it, how more comes in"),
        (name = "Workspaces", description = "Files that outlive every sandbox"),
        (name = "API keys", description = "Who may call"),
        (name = "Catalogue", description = "Agents that a session may ask for"),
        (name = "Secrets", description = "Keys of model vendors and the like, for sessions"),
        (name = "Administration", description = "Organisations, limits, the audit log"),
        (name = "Server", description = "Health, metrics, this description"),
    ),
    paths(
        agents::proxy, ports::proxy, ports::link, workspaces::download, workspaces::upload,
        workspaces::delete_file, workspace_files::get, workspace_files::put,
    ),
    components(schemas(
        Problem, Code, ExecStarted, ExecOutput, ExecGap, ExecExit, ExecLost,
    )),
    security(("api_key" = []), ("api_key_header" = []), ("account_token" = [])),
    modifiers(&Common),
)]
struct Description;

/// The whole document, as `/openapi.json` has it.
pub fn document() -> OpenApi {
    router().1
}

/// All routes, and the document about them.
pub(crate) fn router() -> (Router<App>, OpenApi) {
    let all = of_sandboxes(OpenApiRouter::with_openapi(Description::openapi()));
    let (router, mut document) = all
        .routes(routes!(sessions::create, sessions::list))
        .routes(routes!(sessions::resume))
        .routes(routes!(sessions::get, sessions::delete))
        .routes(routes!(sessions::fork))
        .routes(routes!(sessions::token))
        .routes(routes!(session_log::events))
        .routes(routes!(session_log::transcript))
        .routes(routes!(session_socket::connect))
        .routes(routes!(sign_in::sign_up))
        .routes(routes!(sign_in::verify_sign_up))
        .routes(routes!(sign_in::register))
        .routes(routes!(sign_in::login))
        .routes(routes!(sign_in::verify_otp))
        .routes(routes!(tenants::me))
        .routes(routes!(tenants::create_key, tenants::list_keys))
        .routes(routes!(tenants::revoke_key))
        .routes(routes!(keys::create, keys::list))
        .routes(routes!(keys::revoke))
        .routes(routes!(catalogue::list))
        .routes(routes!(catalogue::get))
        .routes(routes!(secrets::create, secrets::list))
        .routes(routes!(secrets::get, secrets::rotate, secrets::delete))
        .routes(routes!(organisations::create, organisations::list))
        .routes(routes!(organisations::get))
        .routes(routes!(organisation_money::balance))
        .routes(routes!(organisation_money::transactions))
        .routes(routes!(organisation_money::usage))
        .routes(routes!(organisations::put_member, organisations::remove_member))
        .routes(routes!(administration::put_organisation))
        .routes(routes!(administration::of_owner, administration::put_owner))
        .routes(routes!(administration::audit))
        .routes(routes!(workspaces::list))
        .routes(routes!(workspaces::files, workspaces::delete))
        .routes(routes!(workspaces::usage))
        .routes(routes!(usage::now))
        .routes(routes!(usage::history))
        .routes(routes!(usage::overview))
        .routes(routes!(usage::sandboxes))
        .routes(routes!(usage::daily))
        .routes(routes!(billing::balance))
        .routes(routes!(billing::checkout))
        .routes(routes!(billing::transactions))
        .routes(routes!(billing::auto_topup, billing::set_auto_topup))
        .routes(routes!(billing::webhook))
        .routes(routes!(billing::grant))
        .routes(routes!(meta::templates))
        .routes(routes!(meta::remove_template))
        .routes(routes!(meta::healthz))
        .routes(routes!(meta::openapi))
        .routes(routes!(meta::docs))
        .routes(routes!(meta::metrics))
        .split_for_parts();
    Common.modify(&mut document);
    (with_paths(every_method(router)), document)
}

fn of_sandboxes(router: OpenApiRouter<App>) -> OpenApiRouter<App> {
    router
        .routes(routes!(sandboxes::create, sandboxes::list))
        .routes(routes!(sandboxes::get, sandboxes::patch, sandboxes::delete))
        .routes(routes!(lifecycle::start))
        .routes(routes!(lifecycle::stop))
        .routes(routes!(lifecycle::pause))
        .routes(routes!(lifecycle::resume))
        .routes(routes!(lifecycle::cancel))
        .routes(routes!(exec::run))
        .routes(routes!(exec::run_streamed))
        .routes(routes!(exec::attach, exec::kill))
        .routes(routes!(logs::logs))
        .routes(routes!(logs::usage))
        .routes(routes!(egress::log))
        .routes(routes!(files::download, files::store))
        .routes(routes!(files::export))
        .routes(routes!(files::import))
        .routes(routes!(tunnel::open, tunnel::open_get))
        .routes(routes!(events::events))
}

/// For who listens for the sockets of sessions alone.
pub(crate) fn sockets() -> Router<App> {
    Router::new().route("/v1/sessions/{id}/ws", get(session_socket::connect))
}

/// A port inside takes every method, also those that nobody has thought of yet; its own `/link`
/// is hidden for one of them.
fn every_method(router: Router<App>) -> Router<App> {
    router
        .route("/v1/sandboxes/{id}/agents/{*path}", any(agents::proxy))
        .route("/v1/sandboxes/{id}/ports/{port}/link", any(ports::proxy).post(ports::link))
        .route("/v1/sandboxes/{id}/ports/{port}", any(ports::proxy))
        .route("/v1/sandboxes/{id}/ports/{port}/", any(ports::proxy))
        .route("/v1/sandboxes/{id}/ports/{port}/{*path}", any(ports::proxy))
}

/// Routes whose last part may contain slashes.
fn with_paths(router: Router<App>) -> Router<App> {
    let file = get(workspaces::download).put(workspaces::upload).delete(workspaces::delete_file);
    router
        .route(&with_rest(FILE), file)
        .route(&with_rest(LINKED_FILE), get(workspace_files::get).put(workspace_files::put))
}

const FILE: &str = "/v1/workspaces/{app_id}/{capset_id}/files/";
const LINKED_FILE: &str = "/v1/workspace-files/{owner}/{app_id}/{capset_id}/";

fn with_rest(path: &str) -> String {
    format!("{path}{{*path}}")
}

/// All paths as the router has them, for labels.
pub(crate) fn routes(document: &OpenApi) -> impl Iterator<Item = String> {
    let unnamed =
        ["", "/", "/{*path}"].map(|rest| format!("/v1/sandboxes/{{id}}/ports/{{port}}{rest}"));
    let files = [FILE, LINKED_FILE].map(with_rest);
    let code = crate::code::PATHS.map(str::to_owned);
    document.paths.paths.keys().cloned().chain(unnamed).chain(files).chain(code)
}

pub(crate) fn pages(document: &OpenApi, url: &str) -> Result<Pages> {
    let mut value = serde_json::to_value(document)?;
    value["servers"] = serde_json::json!([{ "url": url }]);
    let (docs_html, docs_policy) = docs::page(&value);
    Ok(Pages { openapi_json: serde_json::to_string(&value)?, docs_html, docs_policy })
}

/// What is the same for all operations and so is not written at each of them.
struct Common;

impl Modify for Common {
    fn modify(&self, document: &mut OpenApi) {
        let components = document.components.get_or_insert_default();
        let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).bearer_format("e2a_…");
        components.add_security_scheme("api_key", SecurityScheme::Http(bearer.build()));
        let token = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).bearer_format("JWT");
        components.add_security_scheme("account_token", SecurityScheme::Http(token.build()));
        let session = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).bearer_format("JWT");
        components.add_security_scheme("session_token", SecurityScheme::Http(session.build()));
        let header = utoipa::openapi::security::ApiKeyValue::new("X-API-KEY");
        components.add_security_scheme(
            "api_key_header",
            SecurityScheme::ApiKey(utoipa::openapi::security::ApiKey::Header(header)),
        );
        for (path, item) in &mut document.paths.paths {
            if let Some(reads) = &mut item.get {
                complete(path, reads);
            }
            for writes in [&mut item.post, &mut item.patch, &mut item.delete, &mut item.put] {
                let Some(writes) = writes else { continue };
                complete(path, writes);
                may_answer(writes, "507", "The machine has no room to write it down");
                give_problems(writes);
            }
        }
    }
}

/// Gives every operation the answers that all of its kind have, and errors their body.
fn complete(path: &str, operation: &mut Operation) {
    may_answer(operation, "500", "A bug or a broken host");
    if path.starts_with("/v1/") {
        may_answer(operation, "400", "A parameter is unknown or wrong; `field` names it");
        may_answer(
            operation,
            "503",
            "A part that is needed does not answer; the same request may work later",
        );
    }
    let open = SecurityRequirement::default();
    if !operation.security.as_ref().is_some_and(|needs| needs.contains(&open)) {
        may_answer(operation, "401", "No API key or token, or one that is not known");
    }
    if operation.request_body.is_some() {
        may_answer(operation, "408", "The rest of the body did not come in time");
        may_answer(operation, "413", "The body is larger than this server takes");
    }
    give_problems(operation);
}

/// Unless the operation says it better itself.
fn may_answer(operation: &mut Operation, status: &str, about: &str) {
    let responses = &mut operation.responses.responses;
    responses.entry(status.into()).or_insert_with(|| RefOr::T(Response::new(about)));
}

fn give_problems(operation: &mut Operation) {
    for (status, response) in &mut operation.responses.responses {
        let is_error = status.starts_with('4') || status.starts_with('5');
        if let (true, RefOr::T(response)) = (is_error, response) {
            let body = Content::new(Some(Ref::from_schema_name("Problem")));
            response.content.entry(PROBLEM_JSON.into()).or_insert(RefOr::T(body));
        }
    }
}
