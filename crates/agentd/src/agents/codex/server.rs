//! The task that owns one app-server process: JSON-RPC in lines, shared by many sessions.
//!
//! ```text
//! session --Call--> | id | --line--> codex        codex --answer--> by id, to whoever called
//!                                                 codex --notification, request--> by thread, to its session
//! ```
//!
//! What is said about a thread before its session is known (the announcement can overtake the answer)
//! waits for it. It ends with the process, when it is stopped, or when nobody has used it for long.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::wire::{FromServer, ToServer};
use crate::agents::decoded::{some_text, text};
use crate::conversion::Raw;
use crate::error::{Error, Result};
use crate::process::{AgentProcess, Line};

const EARLY_MAX: usize = 256;
const CALLS_MAX: usize = 4096;
const EXIT_WAIT: Duration = Duration::from_secs(2);
/// A session that does not take what is said to it for so long is left.
const DELIVER_WAIT: Duration = Duration::from_secs(30);
/// A process that nobody uses is let go.
const IDLE_MAX: Duration = Duration::from_secs(15 * 60);

pub(super) struct Server {
    process: AgentProcess,
    inbox: mpsc::Receiver<ToServer>,
    calls: HashMap<u64, Call>,
    last_call: u64,
    threads: HashMap<String, mpsc::Sender<FromServer>>,
    /// Threads that a session's agent started: only what they ask concerns the session.
    children: HashMap<String, String>,
    early: VecDeque<(String, Value, Raw)>,
}

struct Call {
    answer: oneshot::Sender<Result<Value>>,
    follow: Option<mpsc::Sender<FromServer>>,
}

/// How it ended.
#[derive(Debug)]
pub(super) enum ServerEnd {
    /// As wanted: stopped, or not used.
    Quiet,
    Died {
        message: String,
    },
}

impl Server {
    pub(super) fn new(process: AgentProcess, inbox: mpsc::Receiver<ToServer>) -> Self {
        Self {
            process,
            inbox,
            calls: HashMap::new(),
            last_call: 0,
            threads: HashMap::new(),
            children: HashMap::new(),
            early: VecDeque::new(),
        }
    }

    pub(super) async fn run(mut self, stop: CancellationToken) -> ServerEnd {
        let mut idle_since = Instant::now();
        loop {
            if !self.threads.is_empty() || !self.calls.is_empty() {
                idle_since = Instant::now();
            }
            let used_up = idle_since + IDLE_MAX;
            tokio::select! {
                () = stop.cancelled() => return self.end_quietly().await,
                () = sleep_until(used_up) => return self.end_quietly().await,
                order = self.inbox.recv() => match order {
                    Some(ToServer::EndIfUnused { done }) => if self.is_unused() {
                        let ended = self.end_quietly().await;
                        drop(done);
                        return ended;
                    },
                    Some(order) => self.order(order).await,
                    None => return self.end_quietly().await,
                },
                line = self.process.next_line() => match line {
                    Ok(Some(line)) => self.line(line).await,
                    Ok(None) | Err(_) => return self.died().await,
                },
            }
        }
    }

    async fn order(&mut self, order: ToServer) {
        match order {
            ToServer::Call { method, params, answer, follow } => {
                if self.calls.len() >= CALLS_MAX {
                    let _ = answer.send(Err(Error::stream("codex does not answer")));
                    return;
                }
                self.last_call += 1;
                let request = json!({"id": self.last_call, "method": method, "params": params});
                self.calls.insert(self.last_call, Call { answer, follow });
                // If it is gone its output ends, and then everybody is told.
                let _ = self.process.write_line(&request.to_string()).await;
            }
            ToServer::Send(value) => {
                let _ = self.process.write_line(&value.to_string()).await;
            }
            ToServer::Leave { thread } => {
                self.threads.remove(&thread);
                self.children.retain(|_, parent| *parent != thread);
            }
            ToServer::EndIfUnused { .. } => {}
        }
    }

    fn is_unused(&self) -> bool {
        self.threads.is_empty() && self.calls.values().all(|call| call.follow.is_none())
    }

    async fn line(&mut self, line: Line) {
        let Line::Text(line) = line else { return };
        let Ok(message) = serde_json::from_str::<Value>(&line) else { return };
        if message.get("method").is_none() {
            return self.answered(message).await;
        }
        let Some(thread) = thread_of(&message).map(str::to_owned) else {
            return self.decline(&message, "it belongs to no thread").await;
        };
        self.learn_child(&message);
        let Some(raw) = Raw::from_line(&line) else { return };
        let asks = message.get("id").is_some_and(|id| !id.is_null());
        let owner = match self.children.get(&thread) {
            Some(parent) if asks => parent.clone(),
            Some(_) => return,
            None => thread,
        };
        if self.threads.contains_key(&owner) {
            self.deliver(&owner, message, raw).await;
        } else if asks {
            self.decline(&message, "nobody follows its thread").await;
        } else {
            self.early.push_back((owner, message, raw));
            if self.early.len() > EARLY_MAX {
                self.early.pop_front();
            }
        }
    }

    async fn answered(&mut self, message: Value) {
        let id = message.get("id").and_then(Value::as_u64);
        let Some(call) = id.and_then(|id| self.calls.remove(&id)) else { return };
        let result = match message.get("error").filter(|error| !error.is_null()) {
            Some(error) => {
                let why = some_text(error, "message").unwrap_or("it failed");
                Err(Error::stream(format!("codex: {}", why.chars().take(500).collect::<String>())))
            }
            None => Ok(message.get("result").cloned().unwrap_or_default()),
        };
        let thread = result.as_ref().ok().and_then(|result| {
            result.pointer("/thread/id").and_then(Value::as_str).map(str::to_owned)
        });
        let _ = call.answer.send(result);
        if let (Some(thread), Some(follow)) = (thread, call.follow) {
            self.threads.insert(thread.clone(), follow);
            let (mine, others) =
                std::mem::take(&mut self.early).into_iter().partition(|(of, _, _)| *of == thread);
            self.early = others;
            let mine: VecDeque<(String, Value, Raw)> = mine;
            for (_, message, raw) in mine {
                self.deliver(&thread, message, raw).await;
            }
        }
    }

    async fn deliver(&mut self, thread: &str, message: Value, raw: Raw) {
        let Some(session) = self.threads.get(thread) else { return };
        let sent = timeout(DELIVER_WAIT, session.send(FromServer::Message { message, raw })).await;
        if !matches!(sent, Ok(Ok(()))) {
            self.threads.remove(thread);
        }
    }

    /// A request that nobody can answer still gets an answer.
    async fn decline(&mut self, message: &Value, why: &str) {
        let Some(id) = message.get("id").filter(|id| !id.is_null()) else { return };
        let text = format!("not supported: {}: {why}", text(message, "method"));
        let answer = json!({"id": id, "error": {"code": -32601, "message": text}});
        let _ = self.process.write_line(&answer.to_string()).await;
    }

    fn learn_child(&mut self, message: &Value) {
        let thread = message.pointer("/params/thread").unwrap_or(&Value::Null);
        let (Some(child), Some(parent)) =
            (some_text(thread, "id"), some_text(thread, "parentThreadId"))
        else {
            return;
        };
        let parent = self.children.get(parent).map_or(parent, String::as_str).to_owned();
        if self.threads.contains_key(&parent) && self.children.len() < CALLS_MAX {
            self.children.insert(child.to_owned(), parent);
        }
    }

    async fn end_quietly(mut self) -> ServerEnd {
        self.inbox.close();
        self.process.close_stdin();
        let _ = timeout(EXIT_WAIT, self.process.wait()).await;
        self.process.kill().await;
        self.tell_all(None).await;
        ServerEnd::Quiet
    }

    async fn died(mut self) -> ServerEnd {
        // New callers start another one from here on.
        self.inbox.close();
        let status =
            timeout(EXIT_WAIT, self.process.wait()).await.ok().and_then(|status| status.ok());
        self.process.kill().await;
        let exit_code = status.and_then(|status| status.code());
        self.tell_all(exit_code).await;
        let message = match exit_code {
            Some(code) => format!("codex app-server exited with code {code}"),
            None => "codex app-server was killed".to_owned(),
        };
        ServerEnd::Died { message }
    }

    async fn tell_all(&mut self, exit_code: Option<i32>) {
        for call in std::mem::take(&mut self.calls).into_values() {
            let _ = call.answer.send(Err(Error::stream("codex app-server is gone")));
        }
        let stderr = self.process.stderr();
        for session in std::mem::take(&mut self.threads).into_values() {
            let gone = FromServer::Gone { exit_code, stderr: stderr.clone() };
            let _ = timeout(EXIT_WAIT, session.send(gone)).await;
        }
    }
}

fn thread_of(message: &Value) -> Option<&str> {
    let params = message.get("params")?;
    some_text(params, "threadId")
        .or_else(|| params.get("thread").and_then(|thread| some_text(thread, "id")))
        .or_else(|| some_text(params, "conversationId"))
}
