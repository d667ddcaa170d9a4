//! The agent's log, and what a sandbox uses.

use api::{LogAmount, LogStream, Logs, LogsQuery, Usage};
use axum::Json as Answer;
use axum::extract::State;
use engine::LogTail;

use crate::app::App;
use crate::auth::Who;
use crate::refusal::Refusal;
use crate::target::{NoQuery, RawQuery, Target};

/// Read the end of the agent's log
///
/// Or, with `stream=agents`, of what the agent daemon logged: why an agent could not be started or
/// installed, which agent died. At most 1 MiB. Without an agent it is empty. What is larger is cut at its beginning, after a
/// line break.
#[utoipa::path(
    get, path = "/v1/sandboxes/{id}/logs", tag = "Commands", operation_id = "read_logs",
    params(
        ("id" = String, Path, description = "Its id or its name"),
        ("stream" = Option<String>, Query,
            description = "`stderr` (default), or `agents`; `stdout` and `all` are reserved"),
        ("lines" = Option<u64>, Query,
            description = "How many last lines; default 100, at most 10000; not with `bytes`"),
        ("bytes" = Option<u64>, Query,
            description = "How many last bytes, at most 1048576; not with `lines`"),
    ),
    responses(
        (status = 200, description = "The end of the log", body = Logs),
        (status = 400, description = "Both amounts, zero, not a number, or an unknown stream"),
        (status = 404, description = "No such sandbox, or another owner's"),
        (status = 409, description = "`wrong_state`: the sandbox does not run"),
        (status = 501, description = "`stream=stdout` and `stream=all` are reserved"),
    )
)]
pub(crate) async fn logs(
    State(app): State<App>,
    Who(caller): Who,
    Target(sandbox): Target,
    RawQuery(query): RawQuery,
) -> Result<Answer<Logs>, Refusal> {
    let LogsQuery { stream, amount } = LogsQuery::parse(query.as_deref())?;
    let tail = match amount {
        LogAmount::Lines(lines) => LogTail::Lines(u32::try_from(lines).unwrap_or(u32::MAX)),
        LogAmount::Bytes(bytes) => LogTail::Bytes(bytes),
    };
    let logs = match stream {
        LogStream::Stderr => app.engine.logs(&caller, &sandbox, tail).await?,
        LogStream::Agents => app.engine.agents_log(&caller, &sandbox, tail).await?,
    };
    Ok(Answer(Logs {
        content: String::from_utf8_lossy(&logs.content).into_owned(),
        truncated: logs.truncated,
        total_bytes: logs.total_bytes,
    }))
}

/// See what a sandbox uses
///
/// Counted on the host, not by the sandbox.
#[utoipa::path(
    get, path = "/v1/sandboxes/{id}/usage", tag = "Sandboxes", operation_id = "get_usage",
    params(("id" = String, Path, description = "Its id or its name")),
    responses(
        (status = 200, description = "Now, and since its last start", body = Usage),
        (status = 404, description = "No such sandbox, or another owner's"),
        (status = 409, description = "`wrong_state`: the sandbox does not run"),
    )
)]
pub(crate) async fn usage(
    State(app): State<App>,
    Who(caller): Who,
    Target(sandbox): Target,
    _none: NoQuery,
) -> Result<Answer<Usage>, Refusal> {
    let used = app.engine.usage(&caller, &sandbox).await?;
    Ok(Answer(Usage {
        cpu_seconds: std::time::Duration::from_micros(used.cpu_usec).as_secs_f64(),
        memory_bytes: used.memory_bytes,
        processes: used.pids,
        disk_bytes: used.disk_bytes,
        oom_kills: used.oom_kills,
    }))
}
