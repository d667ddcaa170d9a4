//! What `OpenCode` asks the user. Its own "always" is kept for the project, which is longer than a session
//! may decide: here it is remembered for the session, and answered "once" each time.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::adapter::{Answer, PermissionReply};
use crate::agents::decoded::{Decoded, OPEN_MAX, list, only, some_text, text};
use crate::agents::questions::{Asked, Questions, Settled};
use crate::conversion::Conversion;

#[derive(Debug, Default)]
pub(super) struct Requests {
    permissions: BTreeMap<String, BTreeSet<Rule>>,
    questions: Questions,
    allowed: BTreeSet<Rule>,
}

/// A kind of permission, and the pattern that it would be remembered for.
type Rule = (String, String);

impl Requests {
    pub(super) fn asked(&mut self, kind: &str, properties: &Value, out: &mut Vec<Decoded>) {
        // It becomes part of a path.
        let Some(id) = some_text(properties, "id").filter(|id| is_plain(id)) else { return };
        if kind == "question.asked" {
            if !self.ask(id, properties, out) {
                out.push(Decoded::Send(call(&format!("/question/{id}/reject"), &json!({}))));
            }
            return;
        }
        let rules = rules_of(properties);
        if !rules.is_empty() && rules.is_subset(&self.allowed) {
            out.push(Decoded::Send(reply(id, "once")));
            return;
        }
        if self.permissions.len() >= OPEN_MAX {
            out.push(Decoded::Send(reply(id, "reject")));
            return;
        }
        self.permissions.insert(id.to_owned(), rules);
        let action = some_text(properties, "permission").unwrap_or("tool").to_owned();
        let keys = ["permission", "patterns", "metadata", "always", "tool"];
        let metadata = Some(only(properties, &keys));
        out.push(Conversion::PermissionRequested { id: id.to_owned(), action, metadata }.into());
    }

    /// Somebody answered, here or at the server itself.
    pub(super) fn replied(&mut self, kind: &str, properties: &Value, out: &mut Vec<Decoded>) {
        let id = some_text(properties, "requestID").unwrap_or_else(|| text(properties, "id"));
        if kind == "permission.replied" {
            if self.permissions.remove(id).is_some() {
                let approved = text(properties, "reply") != "reject";
                out.push(Conversion::PermissionResolved { id: id.to_owned(), approved }.into());
            }
            return;
        }
        let first = list(properties, "answers").first().and_then(|answer| answer.get(0));
        if let Some(response) = first.and_then(Value::as_str).map(str::to_owned) {
            let (id, response) = (id.to_owned(), Some(response));
            out.push(Conversion::QuestionResolved { id, response }.into());
        }
        self.questions.withdraw(id, &mut |one| out.push(one.into()));
    }

    pub(super) fn withdraw_all(&mut self, out: &mut Vec<Decoded>) {
        for id in std::mem::take(&mut self.permissions).into_keys() {
            out.push(Conversion::PermissionResolved { id, approved: false }.into());
        }
        self.questions.withdraw_all(&mut |one| out.push(one.into()));
    }

    /// What to post for a permission that was answered; nothing if it is not pending (any more).
    pub(super) fn permit(&mut self, id: &str, answer: PermissionReply) -> Option<Value> {
        let rules = self.permissions.remove(id)?;
        Some(match answer {
            PermissionReply::Once => reply(id, "once"),
            PermissionReply::Always => {
                if self.allowed.len() + rules.len() <= OPEN_MAX {
                    self.allowed.extend(rules);
                }
                reply(id, "once")
            }
            PermissionReply::Reject => reply(id, "reject"),
        })
    }

    /// What to post for a question, once all that were asked with it have an answer.
    pub(super) fn answer(
        &mut self,
        id: &str,
        answer: Answer,
        out: &mut Vec<Decoded>,
    ) -> Option<Value> {
        let settled = self.questions.answer(id, answer, &mut |one| out.push(one.into()))?;
        let Settled { native, answers } = settled;
        let id = text(&native, "id");
        Some(match answers {
            Some(answers) => call(&format!("/question/{id}/reply"), &json!({"answers": answers})),
            None => call(&format!("/question/{id}/reject"), &json!({})),
        })
    }

    fn ask(&mut self, id: &str, properties: &Value, out: &mut Vec<Decoded>) -> bool {
        let asked = list(properties, "questions")
            .iter()
            .map(|question| Asked {
                prompt: text(question, "question").to_owned(),
                options: list(question, "options")
                    .iter()
                    .map(|option| text(option, "label").to_owned())
                    .collect(),
            })
            .collect();
        self.questions.ask(id, json!({"id": id}), asked, &mut |one| out.push(one.into()))
    }
}

/// What "always" would cover, or else exactly this.
fn rules_of(properties: &Value) -> BTreeSet<Rule> {
    let permission = text(properties, "permission");
    let always = list(properties, "always");
    let patterns = if always.is_empty() { list(properties, "patterns") } else { always };
    patterns
        .iter()
        .filter_map(Value::as_str)
        .map(|pattern| (permission.to_owned(), pattern.to_owned()))
        .collect()
}

fn reply(id: &str, reply: &str) -> Value {
    call(&format!("/permission/{id}/reply"), &json!({"reply": reply}))
}

pub(super) fn is_plain(id: &str) -> bool {
    id.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
}

/// A request to the server.
fn call(path: &str, body: &Value) -> Value {
    json!({"path": path, "body": body})
}
