use serde_json::json;

use super::{Asked, Questions};
use crate::adapter::Answer;
use crate::conversion::Conversion;

fn two() -> (Questions, Vec<Conversion>) {
    let (mut questions, mut out) = (Questions::default(), Vec::new());
    let asked = ["First?", "Second?"]
        .map(|prompt| Asked { prompt: prompt.to_owned(), options: vec!["a".to_owned()] });
    assert!(questions.ask("q", json!(7), asked.into(), &mut |one| out.push(one)));
    (questions, out)
}

fn said(words: &[&str]) -> Answer {
    Answer::Answered(words.iter().map(|word| vec![(*word).to_owned()]).collect())
}

#[test]
fn each_question_is_an_event_and_the_last_answer_settles_them() {
    let (mut questions, asked) = two();
    let ids: Vec<_> = asked
        .iter()
        .map(|one| match one {
            Conversion::QuestionRequested { id, .. } => id.as_str(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(ids, ["q", "q.2"]);
    let mut out = Vec::new();
    let mut record = |one| out.push(one);
    assert!(questions.answer("q.2", said(&["b"]), &mut record).is_none());
    let settled = questions.answer("q", said(&["a"]), &mut record).unwrap();
    assert_eq!(settled.answers.unwrap(), [["a"], ["b"]]);
    assert_eq!(settled.native, json!(7));
    assert!(questions.answer("q", said(&["a"]), &mut record).is_none(), "once each");
    assert_eq!(out, []);
}

#[test]
fn one_reply_may_answer_them_all() {
    let (mut questions, _) = two();
    let mut out = Vec::new();
    let settled = questions.answer("q", said(&["a", "b"]), &mut |one| out.push(one)).unwrap();
    assert_eq!(settled.answers.unwrap(), [["a"], ["b"]]);
    let other = Conversion::QuestionResolved { id: "q.2".into(), response: Some("b".into()) };
    assert_eq!(out, [other]);
}

#[test]
fn one_rejection_rejects_them_all() {
    let (mut questions, _) = two();
    let mut out = Vec::new();
    let settled = questions.answer("q.2", Answer::Rejected, &mut |one| out.push(one)).unwrap();
    assert_eq!(settled.answers, None);
    assert_eq!(out, [Conversion::QuestionResolved { id: "q".into(), response: None }]);
}

#[test]
fn nothing_is_asked_without_a_question() {
    let mut questions = Questions::default();
    assert!(!questions.ask("q", json!(1), Vec::new(), &mut |_| ()));
}
