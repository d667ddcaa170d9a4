//! Recordings, mangled without end: no decoder may panic, and at its end it leaves nothing open. A few
//! seconds of it in every run; longer with `BASTIDE_FUZZ_SECONDS`.

use std::collections::BTreeSet;
use std::time::Duration;

use events::UniversalEventData;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::claude::decoder::Decoder as ClaudeDecoder;
use super::codex::decoder::Decoder as CodexDecoder;
use super::decoded::Decoded;
use super::opencode::decoder::Decoder as OpencodeDecoder;
use super::recordings::recordings_of;
use crate::adapter::{Answer, PermissionReply};
use crate::conversion::Conversion;
use crate::sequencer::Sequencer;

const SECONDS: u64 = 2;

enum Decoder {
    Claude(ClaudeDecoder),
    Codex(CodexDecoder),
    Opencode(OpencodeDecoder),
}

impl Decoder {
    fn decode(&mut self, line: &Value) -> Vec<Decoded> {
        match self {
            Self::Claude(decoder) => decoder.decode(line),
            Self::Codex(decoder) => decoder.decode(line),
            Self::Opencode(decoder) => decoder.decode(line),
        }
    }

    fn permit(&mut self, id: &str, reply: PermissionReply) {
        let _ = match self {
            Self::Claude(decoder) => decoder.permit(id, reply),
            Self::Codex(decoder) => decoder.permit(id, reply),
            Self::Opencode(decoder) => decoder.permit(id, reply),
        };
    }

    fn answer(&mut self, id: &str, answer: Answer, out: &mut Vec<Decoded>) {
        let _ = match self {
            Self::Claude(decoder) => decoder.answer(id, answer, out),
            Self::Codex(decoder) => decoder.answer(id, answer, out),
            Self::Opencode(decoder) => decoder.answer(id, answer, out),
        };
    }

    fn close(&mut self) -> Vec<Decoded> {
        match self {
            Self::Claude(decoder) => decoder.close(),
            Self::Codex(decoder) => decoder.close(),
            Self::Opencode(decoder) => decoder.close(),
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
                match draft.data {
                    UniversalEventData::ItemStarted(data) => {
                        self.open.insert(data.item.item_id);
                    }
                    UniversalEventData::ItemCompleted(data) => {
                        self.open.remove(&data.item.item_id);
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

fn fuzz(program: &str, make: impl Fn(&[Value]) -> Decoder) {
    let recordings: Vec<Vec<Value>> = recordings_of(program)
        .into_values()
        .map(|said| {
            let heard =
                said.into_iter().filter(|one| ["stdout", "sse"].contains(&one.way.as_str()));
            heard.map(|one| one.data).collect()
        })
        .filter(|lines: &Vec<Value>| !lines.is_empty())
        .collect();
    let seconds = std::env::vars()
        .find(|(name, _)| name == "BASTIDE_FUZZ_SECONDS")
        .map_or(SECONDS, |(_, value)| value.parse().unwrap());
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut runs = 0_u64;
    while Instant::now() < end || runs == 0 {
        runs += 1;
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        run(&recordings, &make, seed | 1);
    }
    assert!(runs > 0, "{runs}");
}

/// One mangled recording; the seed is in the panic, should there be one.
fn run(recordings: &[Vec<Value>], make: &impl Fn(&[Value]) -> Decoder, seed: u64) {
    let mut dice = Dice(seed);
    let lines = &recordings[dice.roll(recordings.len())];
    let (mut decoder, mut check) = (make(lines), Check::default());
    let rate = 1 + dice.roll(8);
    let mut at = 0;
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
        check.take(decoder.decode(&line));
        if dice.roll(3) == 0 {
            check.reply(&mut decoder, &mut dice);
        }
    }
    check.take(decoder.close());
    assert!(check.open.is_empty(), "items stay open, seed {seed}: {:?}", check.open);
    let pending = check.sequencer.withdraw_pending();
    assert!(pending.is_empty(), "something stays asked, seed {seed}: {pending:?}");
}

#[test]
fn mangled_lines_of_claude_do_no_harm() {
    fuzz("claude-2.1.330", |_| Decoder::Claude(ClaudeDecoder::default()));
}

#[test]
fn mangled_lines_of_codex_do_no_harm() {
    fuzz("codex-0.169.0", |_| Decoder::Codex(CodexDecoder::default()));
}

#[test]
fn mangled_events_of_opencode_do_no_harm() {
    fuzz("opencode-1.18.33", |lines| {
        let id = lines.iter().find_map(|line| line.pointer("/properties/sessionID"));
        let id = id.and_then(Value::as_str).unwrap_or("ses_x");
        let mut decoder = OpencodeDecoder::new(id);
        decoder.prompting();
        Decoder::Opencode(decoder)
    });
}
