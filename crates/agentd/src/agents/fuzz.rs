//! Recordings, mangled without end, as values and as bytes: no decoder may panic, each item is started
//! once and completed once, and at its end a decoder leaves nothing open. A few seconds of it in every run;
//! longer with `BASTIDE_FUZZ_SECONDS`, from another seed with `BASTIDE_FUZZ_SEED`.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::time::Duration;

use events::UniversalEventData;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::amp;
use super::claude::decoder::Decoder as ClaudeDecoder;
use super::codex::decoder::Decoder as CodexDecoder;
use super::decoded::Decoded;
use super::deictic::decoder::Decoder as DeicticDecoder;
use super::opencode::decoder::Decoder as OpencodeDecoder;
use super::recordings::recordings_of;
use crate::adapter::{Answer, PermissionReply};
use crate::conversion::{Conversion, Raw};
use crate::sequencer::Sequencer;

const SECONDS: u64 = 2;

enum Decoder {
    Claude(ClaudeDecoder),
    Codex(CodexDecoder),
    Opencode(OpencodeDecoder),
    Deictic(DeicticDecoder),
}

impl Decoder {
    fn decode(&mut self, line: &Value) -> Vec<Decoded> {
        match self {
            Self::Claude(decoder) => decoder.decode(line),
            Self::Codex(decoder) => decoder.decode(line),
            Self::Opencode(decoder) => decoder.decode(line),
            Self::Deictic(decoder) => decoder.decode(line),
        }
    }

    fn permit(&mut self, id: &str, reply: PermissionReply) {
        let _ = match self {
            Self::Claude(decoder) => decoder.permit(id, reply),
            Self::Codex(decoder) => decoder.permit(id, reply),
            Self::Opencode(decoder) => decoder.permit(id, reply),
            Self::Deictic(decoder) => {
                decoder.permit(id);
                return;
            }
        };
    }

    fn answer(&mut self, id: &str, answer: Answer, out: &mut Vec<Decoded>) {
        let _ = match self {
            Self::Claude(decoder) => decoder.answer(id, answer, out),
            Self::Codex(decoder) => decoder.answer(id, answer, out),
            Self::Opencode(decoder) => decoder.answer(id, answer, out),
            Self::Deictic(decoder) => {
                decoder.answer(id);
                return;
            }
        };
    }

    fn interrupting(&mut self) {
        match self {
            Self::Claude(decoder) => decoder.interrupting(),
            Self::Opencode(decoder) => decoder.interrupting(),
            // It is told to the program alone.
            Self::Codex(_) | Self::Deictic(_) => {}
        }
    }

    fn close(&mut self) -> Vec<Decoded> {
        match self {
            Self::Claude(decoder) => decoder.close(),
            Self::Codex(decoder) => decoder.close(),
            Self::Opencode(decoder) => decoder.close(),
            Self::Deictic(decoder) => decoder.close(),
        }
    }
}

/// Enough of a generator for this: the same seed, the same run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % u64::try_from(sides.max(1)).unwrap()).unwrap()
    }

    fn value(&mut self, pool: &[Value]) -> Value {
        match self.roll(9) {
            0 => Value::Null,
            1 => json!(true),
            2 => json!(-1),
            3 => json!(u64::MAX),
            4 => json!(""),
            5 => json!("ä\u{0}\"\n"),
            6 => json!([]),
            7 => json!({"type": "text", "id": "x"}),
            _ => pool[self.roll(pool.len())].clone(),
        }
    }

    /// A line as it may come: with bytes changed, missing, twice; not JSON at all, mostly.
    fn garble(&mut self, line: &Value) -> String {
        let mut bytes = line.to_string().into_bytes();
        for _ in 0..=self.roll(3) {
            let at = self.roll(bytes.len());
            let end = (at + self.roll(16)).min(bytes.len());
            match self.roll(5) {
                0 => bytes.truncate(at),
                1 => drop(bytes.drain(at..end)),
                2 => {
                    let part = bytes[at..end].to_vec();
                    drop(bytes.splice(at..at, part));
                }
                3 => bytes.insert(at, b"\"{}[],:\\\x00\xff\n9e-"[self.roll(14)]),
                _ => {
                    if let Some(byte) = bytes.get_mut(at) {
                        *byte ^= 1 << self.roll(8);
                    }
                }
            }
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Changes something, somewhere in it.
    fn mangle(&mut self, value: &mut Value, pool: &[Value]) {
        let here = self.roll(4) == 0;
        match value {
            Value::Object(object) if !object.is_empty() && !here => {
                self.mangle_object(object, pool)
            }
            Value::Array(list) if !list.is_empty() && !here => {
                let at = self.roll(list.len());
                match self.roll(4) {
                    0 => drop(list.remove(at)),
                    1 => list.push(list[at].clone()),
                    _ => self.mangle(&mut list[at], pool),
                }
            }
            other => *other = self.value(pool),
        }
    }

    fn mangle_object(&mut self, object: &mut Map<String, Value>, pool: &[Value]) {
        let key = object.keys().nth(self.roll(object.len())).unwrap().clone();
        match self.roll(6) {
            0 => drop(object.remove(&key)),
            1 => drop(object.insert(key, self.value(pool))),
            _ => self.mangle(object.get_mut(&key).unwrap(), pool),
        }
    }
}

#[derive(Default)]
struct Check {
    sequencer: Sequencer,
    open: BTreeSet<String>,
    done: BTreeSet<String>,
    permissions: Vec<String>,
    questions: Vec<String>,
}

impl Check {
    fn take(&mut self, decoded: Vec<Decoded>) {
        for one in decoded {
            let Decoded::Record(conversion) = one else { continue };
            match &conversion {
                Conversion::PermissionRequested { id, .. } => self.permissions.push(id.clone()),
                Conversion::QuestionRequested { id, .. } => self.questions.push(id.clone()),
                _ => {}
            }
            for draft in self.sequencer.apply(conversion) {
                serde_json::to_string(&draft.data).expect("every event can be written");
                match draft.data {
                    UniversalEventData::ItemStarted(data) => {
                        let id = data.item.item_id;
                        assert!(!self.done.contains(&id), "{id} starts after its end");
                        assert!(self.open.insert(id.clone()), "{id} starts twice");
                    }
                    UniversalEventData::ItemDelta(data) => {
                        assert!(self.open.contains(&data.item_id), "a delta of {}", data.item_id);
                    }
                    UniversalEventData::ItemCompleted(data) => {
                        let id = data.item.item_id;
                        // What is short is told when it is over, without a start.
                        self.open.remove(&id);
                        assert!(self.done.insert(id.clone()), "{id} ends twice");
                    }
                    _ => {}
                }
            }
        }
    }

    fn reply(&mut self, decoder: &mut Decoder, dice: &mut Dice) {
        if let Some(id) = self.permissions.pop() {
            let replies = [PermissionReply::Once, PermissionReply::Always, PermissionReply::Reject];
            self.sequencer.resolve_permission(&id, true);
            decoder.permit(&id, replies[dice.roll(3)]);
        }
        if let Some(id) = self.questions.pop() {
            let answer = match dice.roll(3) {
                0 => Answer::Rejected,
                lists => Answer::Answered(vec![vec!["Blue".to_owned()]; lists]),
            };
            self.sequencer.resolve_question(&id, true, None);
            let mut out = Vec::new();
            decoder.answer(&id, answer, &mut out);
            self.take(out);
        }
    }
}

fn variable(wanted: &str) -> Option<u64> {
    let found = std::env::vars().find(|(name, _)| name == wanted);
    found.map(|(_, value)| value.parse().unwrap())
}

fn heard(program: &str) -> Vec<Vec<Value>> {
    let recordings = recordings_of(program).into_values().map(|said| {
        let heard = said.into_iter().filter(|one| ["stdout", "sse"].contains(&one.way.as_str()));
        heard.map(|one| one.data).collect()
    });
    recordings.filter(|lines: &Vec<Value>| !lines.is_empty()).collect()
}

fn fuzz(name: &str, recordings: &[Vec<Value>], make: impl Fn(&[Value]) -> Decoder) {
    let seconds = variable("BASTIDE_FUZZ_SECONDS").unwrap_or(SECONDS);
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut seed = variable("BASTIDE_FUZZ_SEED").unwrap_or(0x9e37_79b9_7f4a_7c15);
    let (mut runs, mut lines) = (0_u64, 0_u64);
    while Instant::now() < end || runs == 0 {
        runs += 1;
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        lines += run(recordings, &make, seed | 1);
    }
    let told = format!("{name}: {runs} runs, {lines} lines, {seconds} s, no finding\n");
    std::io::stdout().write_all(told.as_bytes()).unwrap();
}

/// Says which seed it was, should there be a panic.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let told = format!("a single run: Seed({:#x})\n", self.0);
            let _ = std::io::stderr().write_all(told.as_bytes());
        }
    }
}

/// One mangled recording; how many lines it had.
fn run(recordings: &[Vec<Value>], make: &impl Fn(&[Value]) -> Decoder, seed: u64) -> u64 {
    let (told, mut dice) = (Seed(seed), Dice(seed));
    let lines = &recordings[dice.roll(recordings.len())];
    let (mut decoder, mut check) = (make(lines), Check::default());
    let rate = 1 + dice.roll(8);
    let mut at = 0;
    let mut decoded = 0;
    for _ in 0..lines.len() * 2 {
        let mut line = lines[at % lines.len()].clone();
        at += match dice.roll(12) {
            0 => 0,
            1 => 2,
            2 => dice.roll(lines.len()),
            _ => 1,
        };
        if dice.roll(rate) == 0 {
            dice.mangle(&mut line, lines);
        }
        if dice.roll(16) == 0 {
            let text = dice.garble(&line);
            let raw = Raw::from_line(&text);
            assert!(raw.is_none_or(|raw| !raw.as_str().contains(['\n', '\r'])), "{text}");
            let Ok(garbled) = serde_json::from_str(&text) else { continue };
            line = garbled;
        }
        decoded += 1;
        check.take(decoder.decode(&line));
        match dice.roll(60) {
            0 => decoder.interrupting(),
            // A process of its own for each turn, or one that died.
            1 => check.take(decoder.close()),
            2..20 => check.reply(&mut decoder, &mut dice),
            _ => {}
        }
    }
    check.take(decoder.close());
    assert!(check.open.is_empty(), "items stay open: {:?}", check.open);
    let pending = check.sequencer.withdraw_pending();
    assert!(pending.is_empty(), "something stays asked: {pending:?}");
    drop(told);
    decoded
}

#[test]
fn mangled_lines_of_claude_do_no_harm() {
    let make = |_: &[Value]| Decoder::Claude(ClaudeDecoder::default());
    fuzz("claude", &heard("claude-2.1.330"), make);
}

#[test]
fn mangled_lines_of_codex_do_no_harm() {
    let make = |_: &[Value]| Decoder::Codex(CodexDecoder::default());
    fuzz("codex", &heard("codex-0.169.0"), make);
}

#[test]
fn mangled_events_of_opencode_do_no_harm() {
    fuzz("opencode", &heard("opencode-1.18.33"), |lines| {
        let id = lines.iter().find_map(|line| line.pointer("/properties/sessionID"));
        let id = id.and_then(Value::as_str).unwrap_or("ses_x");
        let mut decoder = OpencodeDecoder::new(id);
        decoder.prompting();
        Decoder::Opencode(decoder)
    });
}

/// Its documented lines, and Claude's without what those do not have: the ids of messages.
#[test]
fn mangled_lines_of_amp_do_no_harm() {
    let mut recordings = heard("claude-2.1.330");
    for line in recordings.iter_mut().flatten() {
        if let Some(message) = line.get_mut("message").and_then(Value::as_object_mut) {
            message.remove("id");
        }
    }
    let documented = amp::documented();
    recordings.extend(std::iter::repeat_n(documented, recordings.len()));
    fuzz("amp", &recordings, |_| Decoder::Claude(ClaudeDecoder::default()));
}

/// What it says of every kind, in turns that end well and in turns that are cut off.
#[test]
fn mangled_lines_of_deictic_do_no_harm() {
    let item = |id: &str, kind: &str, status: &str| {
        json!({"id": id, "parent": null, "kind": kind, "role": "assistant",
            "content": [{"type": "text", "text": id}], "status": status})
    };
    let turn = |n: u32| {
        let (message, call) = (format!("m{n}"), format!("c{n}"));
        vec![
            json!({"type": "item_started", "item": item(&message, "message", "in_progress")}),
            json!({"type": "item_delta", "id": message, "delta": "ä"}),
            json!({"type": "item_started", "item": item(&call, "tool_call", "in_progress")}),
            json!({"type": "permission_requested", "id": format!("p{n}"), "action": "shell_exec",
                "metadata": {"command": "ls"}}),
            json!({"type": "question_requested", "id": format!("q{n}"), "prompt": "?",
                "options": ["Blue", "Red"]}),
            json!({"type": "permission_withdrawn", "id": format!("p{n}")}),
            json!({"type": "question_withdrawn", "id": format!("q{n}")}),
            json!({"type": "item_completed", "item": item(&call, "tool_call", "failed")}),
            json!({"type": "error", "message": "no", "code": "model"}),
            json!({"type": "item_completed", "item": item(&message, "message", "completed")}),
            json!({"type": "turn_over", "status": "completed", "steps": n}),
        ]
    };
    let ready = json!({"type": "ready", "session": "dei_1", "resumed": false, "vendor": "openai",
        "model": "m", "tools": ["shell_exec"]});
    let mut lines = vec![ready];
    lines.extend((0..4).flat_map(turn));
    for line in &lines {
        let known = serde_json::from_value::<deictic::protocol::Said>(line.clone());
        known.unwrap_or_else(|error| panic!("{line}: {error}"));
    }
    fuzz("deictic", &[lines], |_| Decoder::Deictic(DeicticDecoder::default()));
}
