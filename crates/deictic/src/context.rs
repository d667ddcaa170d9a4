//! Making a conversation shorter before the model cannot read it any more, or when it says that it cannot.
//!
//! First what is cheap: old results keep their beginning and their end. If that is not enough, the model
//! writes down what happened before the last messages; the task and the last messages stay as they are.
//! If it cannot even do that, the list of what was called stands for it.

use serde_json::json;

use crate::history::{History, tokens_of};
use crate::limits::Limits;
use crate::model::{Block, CallResult, Message, Request};
use crate::prompt;
use crate::turn::{Trouble, Worker, ask_once};

/// The newest messages, whose results stay whole.
const WHOLE: usize = 6;

/// A result that is longer than that is made shorter.
const RESULT_BYTES_MAX: usize = 1_200;

/// Of a result that is made shorter.
const RESULT_HEAD: usize = 600;
const RESULT_TAIL: usize = 300;

/// A summary may have so many tokens.
const SUMMARY_TOKENS: u64 = 4_096;

/// Of a text in what is to be summed up.
const SHOWN_BYTES_MAX: usize = 4_000;

/// What a conversation may come to, in tokens: an answer has to fit beside it, and counting is not exact.
pub(crate) fn room(limits: &Limits) -> u64 {
    limits.context_tokens.saturating_sub(limits.output_tokens) / 5 * 4
}

/// `times`: how often the model refused it already; each time less is kept.
pub(crate) async fn shorten(
    worker: &Worker,
    history: &mut History,
    times: u32,
) -> Result<(), Trouble> {
    let before = history.tokens().max(tokens_of(history.messages()));
    let room = room(&worker.shared.limits) >> times;
    let mut messages = history.messages().to_vec();
    let old = messages.len().saturating_sub(WHOLE);
    messages[..old].iter_mut().for_each(cut_results);
    // Refused twice: the newest results may be what is too long.
    if times > 1 {
        messages.iter_mut().for_each(cut_results);
    }
    let mut kind = "results";
    if tokens_of(&messages) > room / 2 {
        let kept = tail(&messages, room / 3);
        if kept > 0 {
            let said = sum_up(worker, &messages[..kept], room).await?;
            kind = said.kind;
            let mut shorter =
                vec![Message::User { text: beginning(&messages[..kept], &said.text) }];
            shorter.extend_from_slice(&messages[kept..]);
            messages = shorter;
        }
    }
    let after = tokens_of(&messages);
    history.replace(messages).map_err(|error| Trouble::of_disk(&error))?;
    let detail = json!({"tokens_before": before, "tokens_after": after, "kind": kind});
    worker.voice.status("compaction", &detail).await;
    Ok(())
}

fn cut_results(message: &mut Message) {
    let Message::Results { results } = message else { return };
    for result in results.iter_mut().filter(|one| one.output.len() > RESULT_BYTES_MAX) {
        let (head, tail) = ends(&result.output, RESULT_HEAD, RESULT_TAIL);
        let left_out = result.output.len() - head.len() - tail.len();
        result.output = format!("{head}\n[… {left_out} bytes of an old result left out …]\n{tail}");
    }
}

/// Where the newest messages begin that are not more than so many tokens. Calls are not parted from their
/// results: it is not a message of results.
fn tail(messages: &[Message], tokens_max: u64) -> usize {
    let mut from = messages.len();
    while from > 0 && tokens_of(&messages[from - 1..]) <= tokens_max {
        from -= 1;
    }
    while from < messages.len() && matches!(messages[from], Message::Results { .. }) {
        from += 1;
    }
    from
}

struct Summary {
    kind: &'static str,
    text: String,
}

async fn sum_up(worker: &Worker, old: &[Message], room: u64) -> Result<Summary, Trouble> {
    let bytes_max = usize::try_from(room.saturating_mul(2)).unwrap_or(usize::MAX);
    let told = told(old);
    let (head, tail) = ends(&told, bytes_max / 4, bytes_max / 4 * 3);
    let left_out = if head.len() + tail.len() < told.len() { "\n[…]\n" } else { "" };
    let messages = [Message::User { text: format!("{head}{left_out}{tail}") }];
    let request = Request {
        system: prompt::SUM_UP,
        messages: &messages,
        tools: &[],
        output_tokens: SUMMARY_TOKENS,
    };
    let asked = worker.cancel.run_until_cancelled(ask_once(&worker.shared, &request)).await;
    let summary = asked.ok_or(Trouble::Interrupted)?.map(|answer| answer.text());
    Ok(match summary {
        Ok(text) if !text.trim().is_empty() => Summary { kind: "summary", text },
        Ok(_) | Err(_) => {
            let (head, tail) = ends(&told, 2_000, 6_000);
            Summary { kind: "excerpt", text: format!("{head}\n[…]\n{tail}") }
        }
    })
}

/// The task, the last thing that the user wanted, and what was done.
fn beginning(old: &[Message], summary: &str) -> String {
    let users: Vec<&str> = old
        .iter()
        .filter_map(|message| match message {
            Message::User { text } => Some(text.as_str()),
            Message::Assistant { .. } | Message::Results { .. } => None,
        })
        .collect();
    let mut text = users.first().copied().unwrap_or_default().to_owned();
    if let (Some(last), true) = (users.last(), users.len() > 1) {
        text.push_str(&format!("\n\n[the user's last message]\n{last}"));
    }
    // The first may be such a beginning itself; its summary is in the new one.
    let task = text.split(prompt::SO_FAR).next().unwrap_or_default().trim_end().to_owned();
    format!("{task}\n\n{}\n{summary}", prompt::SO_FAR)
}

/// A conversation as a text.
fn told(messages: &[Message]) -> String {
    let mut out = String::new();
    let mut line = |who: &str, text: &str| {
        let (head, tail) = ends(text, SHOWN_BYTES_MAX / 2, SHOWN_BYTES_MAX / 2);
        let dots = if head.len() + tail.len() < text.len() { "\n[…]\n" } else { "" };
        out.push_str(&format!("{who}: {head}{dots}{tail}\n\n"));
    };
    for message in messages {
        match message {
            Message::User { text } => line("user", text),
            Message::Assistant { blocks } => {
                for block in blocks {
                    match block {
                        Block::Text { text } => line("assistant", text),
                        Block::Call { call } => {
                            line(&format!("assistant calls {}", call.name), &call.arguments);
                        }
                        Block::Thinking { .. } => {}
                    }
                }
            }
            Message::Results { results } => {
                for CallResult { name, output, failed, .. } in results {
                    let how = if *failed { "failed" } else { "result" };
                    line(&format!("{how} of {name}"), output);
                }
            }
        }
    }
    out
}

/// The beginning and the end of a text; the end is empty when the beginning is all.
fn ends(text: &str, head_max: usize, tail_max: usize) -> (&str, &str) {
    if text.len() <= head_max + tail_max {
        return (text, "");
    }
    let head = (0..=head_max).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    let from = text.len() - tail_max;
    let tail = (from..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
    (&text[..head], &text[tail..])
}
