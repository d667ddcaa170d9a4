//! Commands: blocking, streamed, re-attached, killed (000, ruling 18).

use api::exec::{CheckedExec, ExecExit, ExecGap, ExecLost, ExecOutput, ExecStarted, OutputStream};
use api::query::Query;
use api::{ExecRequest, ExecResponse};
use axum::Json as Answer;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use axum::response::sse::Event;
use engine::{Command, ExecEvent};
use futures_util::{Stream, StreamExt, future, stream};
use model::Error;

use crate::app::App;
use crate::auth::Who;
use crate::body::Json;
use crate::refusal::Refusal;
use crate::sse;
use crate::target::{ExecTarget, NoQuery, RawQuery, Target};

/// Run a command and wait for its end
///
/// `/bin/sh -c` with the sandbox's environment. A client that goes away ends the command and
/// everything it started. A non-zero exit is still 200. Output beyond 8 MiB is cut off.
#[utoipa::path(
    post, path = "/v1/sandboxes/{id}/exec", tag = "Commands", operation_id = "exec", request_body = ExecRequest,
    params(("id" = String, Path, description = "Its id or its name")),
    responses(
        (status = 200, description = "It ended", body = ExecResponse),
        (status = 400, description = "No command, or a field is wrong"),
        (status = 404, description = "No such sandbox, or another owner's"),
        (status = 409, description = "`wrong_state`: the sandbox does not run"),
        (status = 413, description = "The body is too large"),
    )
)]
pub(crate) async fn run(
    State(app): State<App>,
    Who(caller): Who,
    Target(sandbox): Target,
    _none: NoQuery,
    body: Json<ExecRequest>,
) -> Result<Answer<ExecResponse>, Refusal> {
    let command = command(body.value.check()?);
    let outcome = app.engine.exec(&caller, &sandbox, command).await?;
    Ok(Answer(ExecResponse {
        output: text(&outcome.output),
        stdout: text(&outcome.stdout),
        stderr: text(&outcome.stderr),
        exit_code: outcome.exit_code,
        duration_ms: outcome.duration_ms,
        truncated: outcome.truncated,
        timed_out: outcome.timed_out,
    }))
}

/// Run a command and follow it
///
/// Server-sent events: `started` with the `exec_id`, then `output` as it comes, then `exit`; or
/// `error` with the reason when the sandbox ends first. The command outlives its client: attach
/// again with the `exec_id` and the `id` of the last event.
#[utoipa::path(
    post, path = "/v1/sandboxes/{id}/exec/stream", tag = "Commands", operation_id = "exec_stream", request_body = ExecRequest,
    params(("id" = String, Path, description = "Its id or its name")),
    responses(
        (status = 200, description = "The command began", body = String,
            content_type = "text/event-stream"),
        (status = 400, description = "No command, or a field is wrong"),
        (status = 404, description = "No such sandbox, or another owner's"),
        (status = 409, description = "`wrong_state`: the sandbox does not run"),
        (status = 413, description = "The body is too large"),
        (status = 429, description = "Too many commands are kept in this sandbox"),
    )
)]
pub(crate) async fn run_streamed(
    State(app): State<App>,
    Who(caller): Who,
    Target(sandbox): Target,
    _none: NoQuery,
    body: Json<ExecRequest>,
) -> Result<Response, Refusal> {
    let command = command(body.value.check()?);
    let (exec, output) = app.engine.exec_start(&caller, &sandbox, command).await?;
    let started = sse::event("started", &ExecStarted { exec_id: exec.to_string() }).id("0");
    Ok(sse::answer(&app, stream::once(future::ready(started)).chain(events(output))))
}

/// Follow a command again
///
/// From byte `offset` of its output on; the last MiB is kept until 30 seconds after its end was
/// read (10 minutes when nobody read it). A `gap` event says from where on it is complete.
#[utoipa::path(
    get, path = "/v1/sandboxes/{id}/exec/{exec_id}", tag = "Commands", operation_id = "exec_attach",
    params(
        ("id" = String, Path, description = "The sandbox's id or its name"),
        ("exec_id" = String, Path, description = "From the event `started`"),
        ("offset" = Option<u64>, Query, description = "The first byte wanted; default 0"),
        ("Last-Event-ID" = Option<String>, Header, description = "The same, as browsers send it"),
    ),
    responses(
        (status = 200, description = "Its output", body = String,
            content_type = "text/event-stream"),
        (status = 400, description = "`offset` is not a whole number"),
        (status = 404, description = "No such sandbox or command, or another owner's"),
        (status = 409, description = "`wrong_state`: the sandbox does not run"),
    )
)]
pub(crate) async fn attach(
    State(app): State<App>,
    Who(caller): Who,
    ExecTarget(sandbox, exec): ExecTarget,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let offset = Query::parse(query.as_deref(), &["offset"])?.whole("offset")?;
    let offset = match (offset, headers.get("last-event-id")) {
        (Some(offset), _) => offset,
        (None, None) => 0,
        (None, Some(last)) => last
            .to_str()
            .ok()
            .and_then(|text| text.parse().ok())
            .ok_or_else(|| Error::invalid("Last-Event-ID", "not the id of an event of ours"))?,
    };
    let output = app.engine.exec_attach(&caller, &sandbox, &exec, offset).await?;
    Ok(sse::answer(&app, events(output)))
}

/// Kill a command
///
/// And everything it started. Its output stays readable for a while.
#[utoipa::path(
    delete, path = "/v1/sandboxes/{id}/exec/{exec_id}", tag = "Commands", operation_id = "exec_kill",
    params(
        ("id" = String, Path, description = "The sandbox's id or its name"),
        ("exec_id" = String, Path, description = "From the event `started`"),
    ),
    responses(
        (status = 204, description = "Killed, or ended before"),
        (status = 404, description = "No such sandbox or command, or another owner's"),
        (status = 409, description = "`wrong_state`: the sandbox does not run"),
    )
)]
pub(crate) async fn kill(
    State(app): State<App>,
    Who(caller): Who,
    ExecTarget(sandbox, exec): ExecTarget,
    _none: NoQuery,
) -> Result<StatusCode, Refusal> {
    app.engine.exec_kill(&caller, &sandbox, &exec).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn command(checked: CheckedExec) -> Command {
    Command {
        cwd: checked.cwd,
        env: checked.env,
        user: checked.user,
        stdin: checked.stdin,
        timeout: checked.timeout,
        ..Command::shell(checked.command)
    }
}

/// Output is bytes; JSON is text.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn events(output: engine::ExecOutput) -> impl Stream<Item = Event> + Send {
    output.filter_map(|item| future::ready(item.map_or_else(|error| Some(lost(&error)), shown)))
}

fn shown(item: ExecEvent) -> Option<Event> {
    match item {
        ExecEvent::Output { stream, offset, bytes } => {
            let stream = match stream {
                engine::OutputStream::Stdout => OutputStream::Stdout,
                engine::OutputStream::Stderr => OutputStream::Stderr,
            };
            let next = offset + bytes.len() as u64;
            let event = sse::event("output", &ExecOutput::new(stream, offset, &bytes));
            Some(event.id(next.to_string()))
        }
        ExecEvent::Gap { offset } => {
            Some(sse::event("gap", &ExecGap { offset }).id(offset.to_string()))
        }
        // The stream has keepalives of its own.
        ExecEvent::Keepalive => None,
        ExecEvent::Exit(exit) => Some(sse::event(
            "exit",
            &ExecExit {
                exit_code: exit.exit_code,
                timed_out: exit.timed_out,
                duration_ms: exit.duration_ms,
                total_bytes: exit.total_bytes,
            },
        )),
        ExecEvent::SandboxEnded { reason } => {
            let detail = "the sandbox ended before the command did".into();
            Some(sse::event("error", &ExecLost { reason: Some(reason), detail }))
        }
    }
}

fn lost(error: &Error) -> Event {
    sse::event("error", &ExecLost { reason: None, detail: error.to_string() })
}
