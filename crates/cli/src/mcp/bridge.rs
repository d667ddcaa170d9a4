//! Messages of standard input to a server's `/mcp`, and its answers to standard output, a line each.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, Method, header};
use serde_json::{Value, json};
use tokio::io::{AsyncBufRead, AsyncBufReadExt, BufReader};
use tokio::sync::{Semaphore, mpsc};
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use crate::client::{Client, full, read_whole};
use crate::failure::Failure;
use crate::out;

/// The longest message; the server takes no longer one.
const LINE_BYTES_MAX: u64 = 1 << 20;
/// Calls that wait for their answers at once; more wait to be read.
const AT_ONCE: usize = 32;
/// Longer than any call may take.
const ANSWER_WAIT: Duration = Duration::from_secs(3700);

/// Until standard input ends, and what was asked is answered.
pub(super) async fn run(client: &Client) -> Result<(), Failure> {
    carry(client, BufReader::new(tokio::io::stdin())).await
}

async fn carry(client: &Client, mut input: impl AsyncBufRead + Unpin) -> Result<(), Failure> {
    let room = Arc::new(Semaphore::new(AT_ONCE));
    let tasks = TaskTracker::new();
    let mut asked: HashMap<String, AbortOnDropHandle<()>> = HashMap::new();
    let (sender, mut answers) = mpsc::channel::<Value>(AT_ONCE);
    let printing = tasks.spawn(async move {
        while let Some(answer) = answers.recv().await {
            out::line(answer.to_string());
        }
    });
    while let Some(line) = next_line(&mut input).await? {
        let Ok(message) = serde_json::from_str::<Value>(&line) else {
            let error = json!({ "code": -32700, "message": "not JSON" });
            let _ = sender.send(json!({ "jsonrpc": "2.0", "id": null, "error": error })).await;
            continue;
        };
        if message["method"] == "notifications/cancelled" {
            // Its connection closes, and the server ends what it does for it.
            asked.remove(&message["params"]["requestId"].to_string());
            continue;
        }
        let permit = Arc::clone(&room).acquire_owned().await;
        let id = message["id"].clone();
        let (client, sender) = (client.clone(), sender.clone());
        let task = tasks.spawn(async move {
            let _permit = permit;
            if let Some(answer) = answer(&client, &line, &message).await {
                let _ = sender.send(answer).await;
            }
        });
        asked.retain(|_, task| !task.is_finished());
        asked.insert(id.to_string(), AbortOnDropHandle::new(task));
    }
    for (_, task) in asked {
        let _ = task.await;
    }
    drop(sender);
    let _ = printing.await;
    Ok(())
}

async fn next_line(input: &mut (impl AsyncBufRead + Unpin)) -> Result<Option<String>, Failure> {
    use tokio::io::AsyncReadExt as _;
    let mut line = String::new();
    loop {
        line.clear();
        let read = (&mut *input).take(LINE_BYTES_MAX + 1).read_line(&mut line).await?;
        if line.len() as u64 > LINE_BYTES_MAX {
            return Err(Failure::new(format!("a message is longer than {LINE_BYTES_MAX} bytes")));
        }
        match (read, line.trim().is_empty()) {
            (0, _) => return Ok(None),
            (_, true) => {}
            (_, false) => return Ok(Some(line)),
        }
    }
}

/// What is answered to a message; nothing to a notification.
async fn answer(client: &Client, line: &str, message: &Value) -> Option<Value> {
    let failed = |why: &str| {
        let error = json!({ "code": -32000, "message": why });
        let wanted = message.get("id").is_some();
        wanted.then(|| json!({ "jsonrpc": "2.0", "id": message["id"], "error": error }))
    };
    let mut request = client
        .request(Method::POST, "/mcp")
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::ACCEPT, "application/json, text/event-stream");
    for (name, value) in headers(message) {
        request = request.header(name, value);
    }
    let Ok(request) = request.body(full(line.trim().as_bytes().to_vec())) else {
        return failed("the message cannot be sent");
    };
    let response = match client.exchange(request, ANSWER_WAIT).await {
        Ok(response) => response,
        Err(failure) => return failed(&failure.message),
    };
    let status = response.status();
    let body = read_whole(response).await.unwrap_or_default();
    match serde_json::from_slice::<Value>(&body) {
        Ok(answer) if answer.get("jsonrpc").is_some() => Some(answer),
        Ok(problem) => failed(problem["detail"].as_str().unwrap_or(status.as_str())),
        Err(_) if status.is_success() => None,
        Err(_) => failed(&format!("the server answered {status}")),
    }
}

/// What the newer protocol wants said beside a message.
fn headers(message: &Value) -> Vec<(HeaderName, String)> {
    let params = &message["params"];
    let version = &params["_meta"]["io.modelcontextprotocol/protocolVersion"];
    let Some(version) = version.as_str() else { return Vec::new() };
    let name = |text: &'static str| HeaderName::from_static(text);
    let mut headers = vec![(name("mcp-protocol-version"), version.to_owned())];
    let said = [("mcp-method", &message["method"]), ("mcp-name", &params["name"])];
    headers
        .extend(said.into_iter().filter_map(|(of, text)| Some((name(of), text.as_str()?.into()))));
    headers
}
