//! What Codex asks its host: may I run this, may I change these files, what does the user want. Whatever
//! it asks gets an answer: a request without one holds its turn for ever.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::adapter::{Answer, PermissionReply};
use crate::agents::decoded::{Decoded, OPEN_MAX, list, only, some_text, text};
use crate::agents::questions::{Asked, Questions, Settled};
use crate::conversion::Conversion;

#[derive(Debug, Default)]
pub(super) struct Requests {
    permissions: BTreeMap<String, Pending>,
    questions: Questions,
}

#[derive(Debug)]
struct Pending {
    id: Value,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Command,
    Files,
    /// More than its sandbox allows; what was asked for.
    Reach(Value),
}

impl Requests {
    pub(super) fn asked(
        &mut self,
        id: &Value,
        method: &str,
        params: &Value,
        out: &mut Vec<Decoded>,
    ) {
        let taken = match method {
            "item/commandExecution/requestApproval" => {
                self.permission(id, Kind::Command, params, out)
            }
            "item/fileChange/requestApproval" => self.permission(id, Kind::Files, params, out),
            "item/permissions/requestApproval" => {
                let asked = params.get("permissions").cloned().unwrap_or_default();
                self.permission(id, Kind::Reach(asked), params, out)
            }
            "item/tool/requestUserInput" => self.questions(id, params, out),
            "mcpServer/elicitation/request" => {
                let shown = only(params, &["message", "url", "serverName"]);
                out.push(
                    Conversion::status("mcp.elicitation.declined", Some(shown.to_string())).into(),
                );
                out.push(Decoded::Send(result(id, &json!({"action": "decline"}))));
                return;
            }
            _ => false,
        };
        if !taken {
            let error = json!({"code": -32601, "message": format!("not supported: {method}")});
            out.push(Decoded::Send(json!({"id": id, "error": error})));
        }
    }

    /// It was answered, or the program does not want to know any more.
    pub(super) fn resolved(&mut self, params: &Value, out: &mut Vec<Decoded>) {
        let id = name_of(params.get("requestId").unwrap_or(&Value::Null));
        if self.permissions.remove(&id).is_some() {
            out.push(Conversion::PermissionResolved { id: id.clone(), approved: false }.into());
        }
        self.questions.withdraw(&id, &mut |one| out.push(one.into()));
    }

    pub(super) fn withdraw_all(&mut self, out: &mut Vec<Decoded>) {
        for id in std::mem::take(&mut self.permissions).into_keys() {
            out.push(Conversion::PermissionResolved { id, approved: false }.into());
        }
        self.questions.withdraw_all(&mut |one| out.push(one.into()));
    }

    /// What to send for a permission that was answered; nothing if it is not pending (any more).
    pub(super) fn permit(&mut self, id: &str, reply: PermissionReply) -> Option<Value> {
        let Pending { id, kind } = self.permissions.remove(id)?;
        let answer = match (kind, reply) {
            (Kind::Command | Kind::Files, PermissionReply::Once) => json!({"decision": "accept"}),
            (Kind::Command | Kind::Files, PermissionReply::Always) => {
                json!({"decision": "acceptForSession"})
            }
            (Kind::Command | Kind::Files, PermissionReply::Reject) => {
                json!({"decision": "decline"})
            }
            (Kind::Reach(asked), PermissionReply::Once) => {
                json!({"permissions": asked, "scope": "turn"})
            }
            (Kind::Reach(asked), PermissionReply::Always) => {
                json!({"permissions": asked, "scope": "session"})
            }
            (Kind::Reach(_), PermissionReply::Reject) => json!({"permissions": {}}),
        };
        Some(result(&id, &answer))
    }

    /// What to send for a question, once all that were asked with it have an answer.
    pub(super) fn answer(
        &mut self,
        id: &str,
        answer: Answer,
        out: &mut Vec<Decoded>,
    ) -> Option<Value> {
        let settled = self.questions.answer(id, answer, &mut |one| out.push(one.into()))?;
        let Settled { native, answers } = settled;
        let by_id = list(&native, "questions")
            .iter()
            .zip(answers.unwrap_or_default())
            .map(|(question, answers)| {
                (text(question, "id").to_owned(), json!({"answers": answers}))
            })
            .collect();
        let answers = Value::Object(by_id);
        Some(result(native.get("id").unwrap_or(&Value::Null), &json!({"answers": answers})))
    }

    fn permission(
        &mut self,
        id: &Value,
        kind: Kind,
        params: &Value,
        out: &mut Vec<Decoded>,
    ) -> bool {
        if self.permissions.len() >= OPEN_MAX {
            return false;
        }
        let action = match kind {
            Kind::Command => "commandExecution",
            Kind::Files => "fileChange",
            Kind::Reach(_) => "permissions",
        };
        let keys = [
            "threadId",
            "turnId",
            "itemId",
            "command",
            "cwd",
            "reason",
            "grantRoot",
            "permissions",
        ];
        let mut metadata = only(params, &keys);
        metadata["codexRequestKind"] = action.into();
        metadata["codexRequestId"] = id.clone();
        let name = name_of(id);
        self.permissions.insert(name.clone(), Pending { id: id.clone(), kind });
        let (action, metadata) = (action.to_owned(), Some(metadata));
        out.push(Conversion::PermissionRequested { id: name, action, metadata }.into());
        true
    }

    fn questions(&mut self, id: &Value, params: &Value, out: &mut Vec<Decoded>) -> bool {
        let native = json!({"id": id, "questions": params.get("questions")});
        let asked = list(params, "questions")
            .iter()
            .map(|question| Asked {
                prompt: some_text(question, "question")
                    .unwrap_or_else(|| text(question, "header"))
                    .to_owned(),
                options: list(question, "options")
                    .iter()
                    .map(|option| text(option, "label").to_owned())
                    .collect(),
            })
            .collect();
        self.questions.ask(&name_of(id), native, asked, &mut |one| out.push(one.into()))
    }
}

/// Ids are numbers here and may be words elsewhere.
fn name_of(id: &Value) -> String {
    id.as_str().map_or_else(|| id.to_string(), str::to_owned)
}

fn result(id: &Value, result: &Value) -> Value {
    json!({"id": id, "result": result})
}
