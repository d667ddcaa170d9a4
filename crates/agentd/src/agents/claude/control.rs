//! What Claude asks its host: may I use this tool, what does the user want, is this plan good.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::adapter::{Answer, PermissionReply};
use crate::agents::decoded::{Decoded, OPEN_MAX, list, only, some_text, text};
use crate::agents::questions::{Asked, Questions, Settled};
use crate::conversion::Conversion;

const APPROVE: &str = "approve";
const REJECT: &str = "reject";

#[derive(Debug, Default)]
pub(super) struct Control {
    permissions: BTreeMap<String, Value>,
    questions: Questions,
    /// Question ids are the calls' ids; requests are cancelled by their own.
    question_of_request: BTreeMap<String, String>,
    /// Calls that were allowed for the session and for which Claude knows no rule.
    allowed: Vec<(String, Value)>,
}

impl Control {
    /// `call` is what the model asked for, of which the request may repeat only a part.
    pub(super) fn request(&mut self, line: &Value, call: &Value, out: &mut Vec<Decoded>) {
        let id = text(line, "request_id");
        let request = line.get("request").unwrap_or(&Value::Null);
        if text(request, "subtype") != "can_use_tool" || id.is_empty() {
            let error = format!("not supported: {}", text(request, "subtype"));
            out.push(Decoded::Send(json!({
                "type": "control_response",
                "response": {"subtype": "error", "request_id": id, "error": error},
            })));
            return;
        }
        let asked = match text(request, "tool_name") {
            "AskUserQuestion" => self.ask(id, request, questions_of(request), out),
            "ExitPlanMode" => self.ask(id, request, vec![plan_of(request, call)], out),
            _ => self.permission(id, request, out),
        };
        if !asked {
            out.push(Decoded::Send(deny(id, "too much is waiting for an answer")));
        }
    }

    #[cfg(test)]
    pub(super) fn question_of(&self, request: &str) -> Option<String> {
        self.question_of_request.get(request).cloned()
    }

    pub(super) fn cancel(&mut self, id: &str, out: &mut Vec<Decoded>) {
        if self.permissions.remove(id).is_some() {
            out.push(withdrawn(id));
        }
        if let Some(question) = self.question_of_request.remove(id) {
            self.questions.withdraw(&question, &mut |one| out.push(one.into()));
        }
    }

    pub(super) fn withdraw_all(&mut self, out: &mut Vec<Decoded>) {
        out.extend(std::mem::take(&mut self.permissions).into_keys().map(|id| withdrawn(&id)));
        self.question_of_request.clear();
        self.questions.withdraw_all(&mut |one| out.push(one.into()));
    }

    /// What to send for a permission that was answered; nothing if it is not pending (any more).
    pub(super) fn permit(&mut self, id: &str, reply: PermissionReply) -> Option<Value> {
        let request = self.permissions.remove(id)?;
        let input = request.get("input").cloned().unwrap_or_else(|| json!({}));
        Some(match reply {
            PermissionReply::Reject => deny(id, "The user does not want this."),
            PermissionReply::Once => allow(id, &input, None),
            PermissionReply::Always => {
                let rules = for_this_session(&request);
                if rules.is_empty() && self.allowed.len() < OPEN_MAX {
                    self.allowed.push((text(&request, "tool_name").to_owned(), input.clone()));
                }
                allow(id, &input, Some(rules).filter(|rules| !rules.is_empty()))
            }
        })
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
        let request_id = text(&native, "request_id");
        self.question_of_request.remove(request_id);
        let request = native.get("request").unwrap_or(&Value::Null);
        let mut input = request.get("input").cloned().unwrap_or_else(|| json!({}));
        let Some(answers) = answers else {
            return Some(deny(request_id, "The user declined to answer."));
        };
        if text(request, "tool_name") == "ExitPlanMode" {
            return Some(plan_answer(request_id, &input, &answers));
        }
        // By the question's text: by its number they are taken for unanswered.
        let by_text = list(&input, "questions")
            .iter()
            .zip(answers)
            .map(|(question, answer)| {
                (text(question, "question").to_owned(), json!(answer.join(", ")))
            })
            .collect();
        if let Some(object) = input.as_object_mut() {
            object.insert("answers".into(), Value::Object(by_text));
        }
        Some(allow(request_id, &input, None))
    }

    fn permission(&mut self, id: &str, request: &Value, out: &mut Vec<Decoded>) -> bool {
        let input = request.get("input").cloned().unwrap_or_else(|| json!({}));
        let tool = text(request, "tool_name");
        if self.allowed.iter().any(|(name, same)| name == tool && *same == input) {
            out.push(Decoded::Send(allow(id, &input, None)));
            return true;
        }
        if self.permissions.len() >= OPEN_MAX {
            return false;
        }
        let mut metadata = only(request, &["description", "decision_reason"]);
        metadata["toolName"] = tool.into();
        metadata["input"] = input;
        metadata["toolUseId"] = request.get("tool_use_id").cloned().unwrap_or_default();
        metadata["permissionSuggestions"] =
            request.get("permission_suggestions").cloned().unwrap_or_default();
        metadata["blockedPath"] = request.get("blocked_path").cloned().unwrap_or_default();
        self.permissions.insert(id.to_owned(), request.clone());
        let action = if tool.is_empty() { "tool" } else { tool };
        out.push(
            Conversion::PermissionRequested {
                id: id.to_owned(),
                action: action.to_owned(),
                metadata: Some(metadata),
            }
            .into(),
        );
        true
    }

    fn ask(
        &mut self,
        id: &str,
        request: &Value,
        asked: Vec<Asked>,
        out: &mut Vec<Decoded>,
    ) -> bool {
        let question = some_text(request, "tool_use_id").unwrap_or(id).to_owned();
        let native = json!({"request_id": id, "request": request});
        let taken = self.questions.ask(&question, native, asked, &mut |one| out.push(one.into()));
        if taken {
            self.question_of_request.insert(id.to_owned(), question);
        }
        taken
    }
}

fn withdrawn(id: &str) -> Decoded {
    Conversion::PermissionResolved { id: id.to_owned(), approved: false }.into()
}

fn questions_of(request: &Value) -> Vec<Asked> {
    let input = request.get("input").unwrap_or(&Value::Null);
    list(input, "questions")
        .iter()
        .map(|question| Asked {
            prompt: text(question, "question").to_owned(),
            options: list(question, "options").iter().map(label_of).collect(),
        })
        .collect()
}

/// Options are objects with a label, or were plain words once.
fn label_of(option: &Value) -> String {
    option.as_str().unwrap_or_else(|| text(option, "label")).to_owned()
}

fn plan_of(request: &Value, call: &Value) -> Asked {
    let input = request.get("input").unwrap_or(&Value::Null);
    let plan = some_text(input, "plan").unwrap_or_else(|| text(call, "plan"));
    let mut prompt = "Approve plan execution?".to_owned();
    if !plan.is_empty() {
        prompt = format!("{prompt}\n\n{plan}");
    }
    Asked { prompt, options: vec![APPROVE.to_owned(), REJECT.to_owned()] }
}

/// Anything but an approval is what the user wants to be different.
fn plan_answer(request_id: &str, input: &Value, answers: &[Vec<String>]) -> Value {
    let said = answers.first().and_then(|list| list.first()).map_or("", String::as_str);
    match said.trim() {
        said if said.eq_ignore_ascii_case(APPROVE) => allow(request_id, input, None),
        said if said.is_empty() || said.eq_ignore_ascii_case(REJECT) => {
            deny(request_id, "The user does not approve of the plan.")
        }
        said => deny(request_id, &format!("The user wants the plan changed: {said}")),
    }
}

/// What Claude proposes to remember, but never longer than the session: its own proposal may be to
/// write it into the settings of the workspace.
fn for_this_session(request: &Value) -> Vec<Value> {
    list(request, "permission_suggestions")
        .iter()
        .filter(|rule| rule.is_object())
        .map(|rule| {
            let mut rule = rule.clone();
            rule["destination"] = "session".into();
            rule
        })
        .collect()
}

fn allow(id: &str, input: &Value, rules: Option<Vec<Value>>) -> Value {
    let mut response = json!({"behavior": "allow", "updatedInput": input});
    if let Some(rules) = rules {
        response["updatedPermissions"] = Value::Array(rules);
    }
    success(id, &response)
}

fn deny(id: &str, message: &str) -> Value {
    success(id, &json!({"behavior": "deny", "message": message}))
}

fn success(id: &str, response: &Value) -> Value {
    json!({
        "type": "control_response",
        "response": {"subtype": "success", "request_id": id, "response": response},
    })
}
