//! Every recording of a real agent becomes the universal events of a checked-in snapshot, and what we
//! would have answered is what was accepted then.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::PathBuf;

use flate2::read::GzDecoder;
use serde_json::Value;

use super::claude::decoder::Decoder as ClaudeDecoder;
use super::codex::decoder::Decoder as CodexDecoder;
use super::decoded::{Decoded, text};
use super::opencode::decoder::Decoder as OpencodeDecoder;
use crate::adapter::{Answer, PermissionReply};
use crate::conversion::Conversion;
use crate::sequencer::Sequencer;

/// One line of a recording: which way, and what.
pub(super) struct Said {
    pub(super) way: String,
    pub(super) data: Value,
}

fn directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/recordings")
}

pub(super) fn recordings_of(program: &str) -> BTreeMap<String, Vec<Said>> {
    let packed = std::fs::read(directory().join(format!("{program}.jsonl.gz"))).unwrap();
    let mut all = String::new();
    GzDecoder::new(packed.as_slice()).read_to_string(&mut all).unwrap();
    let mut recordings = BTreeMap::new();
    let mut name = String::new();
    for line in all.lines() {
        let value: Value = serde_json::from_str(line).unwrap();
        if let Some(next) = value.get("recording").and_then(Value::as_str) {
            next.clone_into(&mut name);
            recordings.insert(name.clone(), Vec::new());
            continue;
        }
        let said = Said { way: text(&value, "dir").to_owned(), data: value["data"].clone() };
        recordings.get_mut(&name).unwrap().push(said);
    }
    recordings
}

/// Events as lines, with what has no value left out.
#[derive(Default)]
struct Log {
    sequencer: Sequencer,
    lines: Vec<String>,
}

impl Log {
    fn take(&mut self, decoded: Vec<Decoded>) {
        for one in decoded {
            let conversion = match one {
                Decoded::Record(conversion) => conversion,
                Decoded::TurnOver(summary) => Conversion::turn_completed(Some(summary.to_string())),
                Decoded::NativeId(id) => {
                    self.line(&format!("-- native id {id}"));
                    continue;
                }
                Decoded::Send(value) => {
                    self.line(&format!("-- send {value}"));
                    continue;
                }
            };
            for draft in self.sequencer.apply(conversion) {
                let mut event = serde_json::to_value(&draft.data).unwrap();
                drop_nulls(&mut event);
                let made = if draft.synthetic { "+ " } else { "" };
                self.lines.push(format!("{made}{} {event}", kind_of(&draft.data)));
            }
        }
    }

    fn line(&mut self, line: &str) {
        if self.lines.last().is_none_or(|last| last != line) {
            self.lines.push(line.to_owned());
        }
    }

    fn answer(&mut self, answer: Option<&Value>) {
        self.lines.push(match answer {
            Some(answer) => format!("<- {answer}"),
            None => "<- nothing".to_owned(),
        });
    }
}

fn kind_of(data: &events::UniversalEventData) -> String {
    serde_json::to_value(data.kind()).unwrap().as_str().unwrap().to_owned()
}

fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(object) => {
            object.retain(|_, one| !one.is_null());
            object.values_mut().for_each(drop_nulls);
        }
        Value::Array(list) => list.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

fn check(program: &str, convert: impl Fn(&[Said]) -> String) {
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path(directory().join(program));
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    let all = recordings_of(program);
    assert!(all.len() > 20, "the recordings of {program} are missing");
    settings.bind(|| {
        for (name, said) in all {
            insta::assert_snapshot!(name, convert(&said));
        }
    });
}

#[test]
fn every_recording_of_claude_becomes_its_events() {
    check("claude-2.1.330", |said| {
        let mut decoder = ClaudeDecoder::default();
        let mut log = Log::default();
        for Said { way, data } in said {
            if way == "stdout" {
                log.take(decoder.decode(data));
            } else if text(data, "type") == "control_response" {
                claude_answer(&mut decoder, &data["response"], &mut log);
            } else if data.pointer("/request/subtype").and_then(Value::as_str) == Some("interrupt")
            {
                decoder.interrupting();
            }
        }
        log.take(decoder.close());
        log.lines.join("\n")
    });
}

/// What was sent then is what we send now for the same reply.
fn claude_answer(decoder: &mut ClaudeDecoder, sent: &Value, log: &mut Log) {
    let id = text(sent, "request_id");
    let then = &sent["response"];
    let allowed = text(then, "behavior") == "allow";
    let reply = match (allowed, then.get("updatedPermissions").is_some()) {
        (true, true) => PermissionReply::Always,
        (true, false) => PermissionReply::Once,
        (false, _) => PermissionReply::Reject,
    };
    let now = decoder.permit(id, reply).or_else(|| {
        let answers = then.pointer("/updatedInput/answers").and_then(Value::as_object);
        let answer = match (allowed, answers) {
            (true, Some(answers)) => {
                let lists = answers.values().map(|one| vec![one.as_str().unwrap().to_owned()]);
                Answer::Answered(lists.collect())
            }
            (true, None) => Answer::Answered(vec![vec!["approve".to_owned()]]),
            (false, _) => Answer::Rejected,
        };
        let question = decoder.question_of_request(id)?;
        let mut out = Vec::new();
        let now = decoder.answer(&question, answer, &mut out);
        log.take(out);
        now
    });
    log.answer(now.as_ref());
}

#[test]
fn every_recording_of_codex_becomes_its_events() {
    check("codex-0.169.0", |said| {
        let mut threads: BTreeMap<String, (CodexDecoder, Log)> = BTreeMap::new();
        for Said { way, data } in said {
            let params = &data["params"];
            let thread = params
                .get("threadId")
                .or_else(|| params.pointer("/thread/id"))
                .and_then(Value::as_str);
            if way == "stdout" && data.get("method").is_some() {
                let Some(thread) = thread else { continue };
                let (decoder, log) = threads.entry(thread.to_owned()).or_default();
                log.take(decoder.decode(data));
            } else if way == "stdin" && data.get("result").is_some() {
                let id = data["id"].to_string();
                for (decoder, log) in threads.values_mut() {
                    codex_answer(decoder, &id, &data["result"], log);
                }
            }
        }
        let all = threads.into_values().map(|(mut decoder, mut log)| {
            log.take(decoder.close());
            log.lines.join("\n")
        });
        all.collect::<Vec<_>>().join("\n== another thread\n")
    });
}

fn codex_answer(decoder: &mut CodexDecoder, id: &str, sent: &Value, log: &mut Log) {
    let reply = match text(sent, "decision") {
        "accept" => PermissionReply::Once,
        "acceptForSession" => PermissionReply::Always,
        _ => PermissionReply::Reject,
    };
    let now = decoder.permit(id, reply).or_else(|| {
        let answers = sent.get("answers")?.as_object()?.values().map(|one| {
            let list = one["answers"].as_array().unwrap();
            list.iter().map(|one| one.as_str().unwrap().to_owned()).collect()
        });
        let answer = Answer::Answered(answers.collect());
        let mut out = Vec::new();
        let now = decoder.answer(id, answer, &mut out);
        log.take(out);
        now
    });
    if now.is_some() {
        log.answer(now.as_ref());
    }
}

#[test]
fn every_recording_of_opencode_becomes_its_events() {
    check("opencode-1.18.33", |said| {
        let mut sessions: BTreeMap<String, (OpencodeDecoder, Log)> = BTreeMap::new();
        // The recorder noted an answer when it had it, which is after the events that it caused.
        for Said { data, .. } in said.iter().filter(|one| one.way == "http") {
            if text(data, "req") == "POST /session" {
                let id = text(&data["resp"], "id").to_owned();
                sessions.insert(id.clone(), (OpencodeDecoder::new(id), Log::default()));
            }
        }
        let prompted: Vec<&str> = said
            .iter()
            .filter_map(|one| text(&one.data, "req").strip_suffix("/prompt_async"))
            .filter_map(|path| path.rsplit('/').next())
            .collect();
        for (id, (decoder, _)) in &mut sessions {
            if prompted.contains(&id.as_str()) {
                decoder.prompting();
            }
        }
        for Said { way, data } in said {
            for (id, (decoder, log)) in &mut sessions {
                if way == "sse" {
                    log.take(decoder.decode(data));
                } else {
                    opencode_call(id, decoder, data, log);
                }
            }
        }
        let all = sessions.into_values().map(|(mut decoder, mut log)| {
            log.take(decoder.close());
            log.lines.join("\n")
        });
        all.collect::<Vec<_>>().join("\n== another session\n")
    });
}

fn opencode_call(session: &str, decoder: &mut OpencodeDecoder, data: &Value, log: &mut Log) {
    let request = text(data, "req");
    if request.ends_with("/prompt_async") && request.contains(session) && !decoder.in_turn() {
        decoder.prompting();
        return;
    }
    let Some((_, rest)) = request.split_once("POST /") else { return };
    let mut path = rest.split('/');
    let (kind, id) = (path.next().unwrap_or_default(), path.next().unwrap_or_default());
    let mut out = Vec::new();
    let answer = match kind {
        "permission" => {
            let reply = match text(&data["body"], "reply") {
                "reject" => PermissionReply::Reject,
                "always" => PermissionReply::Always,
                _ => PermissionReply::Once,
            };
            decoder.permit(id, reply)
        }
        "question" => {
            let answers = data.pointer("/body/answers").cloned();
            let answer = match answers.map(serde_json::from_value) {
                Some(lists) => Answer::Answered(lists.unwrap()),
                None => Answer::Rejected,
            };
            decoder.answer(id, answer, &mut out)
        }
        _ => return,
    };
    log.take(out);
    if answer.is_some() {
        log.answer(answer.as_ref());
    }
}
