//! A scripted model without a runtime: as many calls of `true` as it is told, then the end. It notes when it has
//! said something and when it is asked again.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use super::super::clock::Stopwatch;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    Messages,
    Responses,
}

pub(super) struct Model {
    shared: Arc<Shared>,
    port: u16,
}

struct Shared {
    dialect: Dialect,
    steps: usize,
    /// Who asks.
    pid: AtomicU32,
    over: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Since it made a call.
    said: Option<Stopwatch>,
    gaps: Vec<Duration>,
    kib: u64,
}

impl Model {
    pub(super) fn serve(dialect: Dialect, steps: usize) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let shared = Arc::new(Shared {
            dialect,
            steps,
            pid: AtomicU32::new(0),
            over: AtomicBool::new(false),
            state: Mutex::default(),
        });
        let all = Arc::clone(&shared);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if all.over.load(Ordering::SeqCst) {
                    return;
                }
                let one = Arc::clone(&all);
                thread::spawn(move || one.serve(stream));
            }
        });
        Ok(Self { shared, port })
    }

    pub(super) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub(super) fn measures(&self, pid: u32) {
        self.shared.pid.store(pid, Ordering::SeqCst);
    }

    /// The time of each step, and the memory at the last one.
    pub(super) fn result(self) -> (Vec<Duration>, u64) {
        let mut state = self.shared.lock();
        (std::mem::take(&mut state.gaps), state.kib)
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::SeqCst);
        // Wakes who waits for a connection.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

impl Shared {
    fn serve(&self, stream: TcpStream) {
        let _ = stream.set_nodelay(true);
        let Ok(reading) = stream.try_clone() else { return };
        let (mut reader, mut writer) = (BufReader::new(reading), stream);
        while let Some((head, body)) = request(&mut reader) {
            // Before it is looked at: that takes longer the larger it is.
            let gap = self.lock().said.as_ref().map(Stopwatch::time);
            let body: Value = serde_json::from_slice(&body).unwrap_or_default();
            if self.answer((&head, gap), &body, &mut writer).is_none() {
                return;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer(
        &self,
        (head, gap): (&str, Option<Duration>),
        body: &Value,
        writer: &mut TcpStream,
    ) -> Option<()> {
        let tools = body["tools"].as_array().map_or(0, Vec::len);
        let wanted = head.starts_with("POST ") && body["stream"] == true && tools > 0;
        if !wanted || head.contains("count_tokens") {
            // Lists of models, titles, counts: nothing that is measured.
            return write(writer, "application/json", &self.small(body));
        }
        let results = self.results(body);
        {
            let mut state = self.lock();
            if state.said.take().is_some() && results > 0 {
                state.gaps.extend(gap);
            }
            if results >= self.steps {
                state.kib = resident(self.pid.load(Ordering::SeqCst));
            }
        }
        let text = match (self.dialect, results >= self.steps) {
            (Dialect::Messages, over) => messages(body, results, over),
            (Dialect::Responses, over) => responses(body, results, over),
        };
        let written = write(writer, "text/event-stream", &text);
        if results < self.steps {
            self.lock().said = Some(Stopwatch::start());
        }
        written
    }

    fn results(&self, body: &Value) -> usize {
        let list = |key: &str| body[key].as_array().into_iter().flatten();
        match self.dialect {
            Dialect::Messages => list("messages")
                .flat_map(|message| message["content"].as_array().into_iter().flatten())
                .filter(|block| block["type"] == "tool_result")
                .count(),
            Dialect::Responses => list("input")
                .filter(|item| item["type"].as_str().is_some_and(|kind| kind.ends_with("_output")))
                .count(),
        }
    }

    fn small(&self, body: &Value) -> String {
        match self.dialect {
            Dialect::Messages => json!({
                "id": "msg_0", "type": "message", "role": "assistant", "model": body["model"],
                "content": [{"type": "text", "text": "x"}], "stop_reason": "end_turn",
                "input_tokens": 1, "usage": {"input_tokens": 1, "output_tokens": 1}, "data": [],
            }),
            Dialect::Responses => json!({"object": "list", "data": [], "models": []}),
        }
        .to_string()
    }
}

/// The first line and the body.
fn request(reader: &mut BufReader<TcpStream>) -> Option<(String, Vec<u8>)> {
    let mut head = String::new();
    if reader.read_line(&mut head).ok()? == 0 {
        return None;
    }
    let (mut length, mut chunked) = (0, false);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let line = line.trim().to_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
        chunked |= line.starts_with("transfer-encoding:") && line.ends_with("chunked");
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    while chunked {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let size = usize::from_str_radix(line.trim(), 16).ok()?;
        let mut chunk = vec![0; size + 2];
        reader.read_exact(&mut chunk).ok()?;
        body.extend_from_slice(&chunk[..size]);
        chunked = size > 0;
    }
    Some((head, body))
}

fn write(writer: &mut TcpStream, kind: &str, text: &str) -> Option<()> {
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n",
        text.len()
    );
    writer.write_all(&[head.as_bytes(), text.as_bytes()].concat()).ok()
}

/// The tool that runs commands, by the names that the programs have for it.
fn shell(body: &Value) -> (&'static str, Value) {
    let names: Vec<&str> = body["tools"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|tool| tool["name"].as_str())
        .collect();
    if names.contains(&"shell_exec") {
        ("shell_exec", json!({"command": "true"}))
    } else if names.contains(&"exec_command") {
        ("exec_command", json!({"cmd": "true"}))
    } else {
        ("Bash", json!({"command": "true", "description": "Does nothing"}))
    }
}

/// Not always the same, which would be a loop.
fn with_number(mut arguments: Value, number: usize) -> Value {
    for key in ["command", "cmd"] {
        if arguments.get(key).is_some() {
            arguments[key] = format!("true {number}").into();
        }
    }
    arguments
}

fn events(all: &[Value]) -> String {
    let one = |event: &Value| {
        format!("event: {}\ndata: {event}\n\n", event["type"].as_str().unwrap_or_default())
    };
    all.iter().map(one).collect()
}

fn messages(body: &Value, number: usize, over: bool) -> String {
    let message = json!({
        "id": format!("msg_{number}"), "type": "message", "role": "assistant",
        "model": body["model"], "content": [], "stop_reason": null,
        "usage": {"input_tokens": 10, "output_tokens": 1},
    });
    let (name, arguments) = shell(body);
    let (start, delta, stop) = if over {
        let delta = json!({"type": "text_delta", "text": "done"});
        (json!({"type": "text", "text": ""}), delta, "end_turn")
    } else {
        let id = format!("toolu_{number}");
        let input = with_number(arguments, number).to_string();
        let delta = json!({"type": "input_json_delta", "partial_json": input});
        (json!({"type": "tool_use", "id": id, "name": name, "input": {}}), delta, "tool_use")
    };
    events(&[
        json!({"type": "message_start", "message": message}),
        json!({"type": "content_block_start", "index": 0, "content_block": start}),
        json!({"type": "content_block_delta", "index": 0, "delta": delta}),
        json!({"type": "content_block_stop", "index": 0}),
        json!({"type": "message_delta", "delta": {"stop_reason": stop, "stop_sequence": null},
            "usage": {"output_tokens": 7}}),
        json!({"type": "message_stop"}),
    ])
}

fn responses(body: &Value, number: usize, over: bool) -> String {
    let (name, arguments) = shell(body);
    let item = if over {
        json!({"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
            "content": [{"type": "output_text", "text": "done", "annotations": []}]})
    } else {
        json!({"type": "function_call", "id": format!("fc_{number}"),
            "call_id": format!("call_{number}"), "name": name, "status": "completed",
            "arguments": with_number(arguments, number).to_string()})
    };
    let mut response = json!({
        "id": format!("resp_{number}"), "object": "response", "created_at": 1,
        "model": body["model"], "status": "in_progress", "output": [], "usage": null,
    });
    let created = json!({"type": "response.created", "response": response});
    response["status"] = "completed".into();
    response["output"] = json!([item]);
    response["usage"] = json!({
        "input_tokens": 10, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 17,
    });
    events(&[
        created,
        json!({"type": "response.output_item.done", "output_index": 0, "item": item}),
        json!({"type": "response.completed", "response": response}),
    ])
}

/// Of a process and all that it started.
fn resident(root: u32) -> u64 {
    let mut kib = 0;
    let mut waiting = vec![root];
    while let Some(pid) = waiting.pop() {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let number = line.and_then(|line| line.split_whitespace().next());
        kib += number.and_then(|number| number.parse::<u64>().ok()).unwrap_or(0);
        for thread in std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten()
        {
            let children = std::fs::read_to_string(thread.path().join("children"));
            let children = children.unwrap_or_default();
            waiting.extend(children.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
        }
    }
    kib
}
