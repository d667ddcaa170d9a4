//! Questions that an agent asks together and that are answered one by one.
//!
//! An event holds one question, an agent's request may hold several. Each becomes an event; the
//! agent gets its answer when the last of them has one, or as soon as one is rejected.

use std::collections::BTreeMap;

use serde_json::Value;

use super::decoded::OPEN_MAX;
use crate::adapter::Answer;
use crate::conversion::Conversion;

#[derive(Debug, Default)]
pub(crate) struct Questions {
    groups: BTreeMap<String, Group>,
}

/// One request of the agent.
#[derive(Debug)]
struct Group {
    /// What the adapter needs to answer it.
    native: Value,
    questions: Vec<Pending>,
}

#[derive(Debug)]
struct Pending {
    id: String,
    answer: Option<Vec<String>>,
}

/// One question as it is shown.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) prompt: String,
    pub(crate) options: Vec<String>,
}

/// A request that can be answered now.
#[derive(Debug)]
pub(crate) struct Settled {
    pub(crate) native: Value,
    /// One list a question; `None`: rejected.
    pub(crate) answers: Option<Vec<Vec<String>>>,
}

impl Questions {
    /// Records the questions of a request. The first has the request's id, the others `ID.2`, ….
    /// `false`: too many are open already, or none was asked.
    pub(crate) fn ask(
        &mut self,
        id: &str,
        native: Value,
        asked: Vec<Asked>,
        record: &mut dyn FnMut(Conversion),
    ) -> bool {
        if asked.is_empty() || asked.len() > OPEN_MAX || self.groups.len() >= OPEN_MAX {
            return false;
        }
        // Asked again: what was asked before under this id is not waited for any more.
        self.withdraw(id, record);
        let mut questions = Vec::new();
        for (index, Asked { prompt, options }) in asked.into_iter().enumerate() {
            let id = if index == 0 { id.to_owned() } else { format!("{id}.{}", index + 1) };
            record(Conversion::QuestionRequested { id: id.clone(), prompt, options });
            questions.push(Pending { id, answer: None });
        }
        self.groups.insert(id.to_owned(), Group { native, questions });
        true
    }

    /// Takes the answer of one question. Further lists answer the questions after it.
    pub(crate) fn answer(
        &mut self,
        id: &str,
        answer: Answer,
        record: &mut dyn FnMut(Conversion),
    ) -> Option<Settled> {
        let key = self
            .groups
            .iter()
            .find(|(_, group)| group.questions.iter().any(|one| one.id == id))
            .map(|(key, _)| key.clone())?;
        let group = self.groups.get_mut(&key)?;
        let at = group.questions.iter().position(|one| one.id == id)?;
        match answer {
            Answer::Rejected => {
                let group = self.groups.remove(&key)?;
                for other in group.questions.iter().filter(|one| one.id != id) {
                    record(withdrawn(other));
                }
                return Some(Settled { native: group.native, answers: None });
            }
            Answer::Answered(lists) => {
                let lists = if lists.is_empty() { vec![Vec::new()] } else { lists };
                for (question, list) in group.questions[at..].iter_mut().zip(lists) {
                    if question.id != id && question.answer.is_none() {
                        let response = list.first().cloned();
                        record(Conversion::QuestionResolved { id: question.id.clone(), response });
                    }
                    question.answer.get_or_insert(list);
                }
            }
        }
        if group.questions.iter().any(|one| one.answer.is_none()) {
            return None;
        }
        let Group { native, questions } = self.groups.remove(&key)?;
        let answers = questions.into_iter().map(|one| one.answer.unwrap_or_default()).collect();
        Some(Settled { native, answers: Some(answers) })
    }

    /// The agent does not want to know any more.
    pub(crate) fn withdraw(&mut self, id: &str, record: &mut dyn FnMut(Conversion)) {
        for question in self.groups.remove(id).into_iter().flat_map(|group| group.questions) {
            record(withdrawn(&question));
        }
    }

    pub(crate) fn withdraw_all(&mut self, record: &mut dyn FnMut(Conversion)) {
        for group in std::mem::take(&mut self.groups).into_values() {
            group.questions.iter().for_each(|question| record(withdrawn(question)));
        }
    }
}

/// Dropped by the recorder where an answer was recorded already.
fn withdrawn(question: &Pending) -> Conversion {
    Conversion::QuestionResolved { id: question.id.clone(), response: None }
}

#[cfg(test)]
mod tests;
