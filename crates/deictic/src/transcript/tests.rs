//! What is on the disk after a tear anywhere.

use std::fs;

use super::Transcript;
use crate::model::Message;

fn user(text: &str) -> Message {
    Message::User { text: text.to_owned() }
}

#[test]
fn torn_anywhere_it_is_what_was_whole() {
    let dir = tempfile::tempdir().unwrap();
    let mut made = Transcript::create(dir.path(), "anthropic", "m").unwrap();
    let all: Vec<Message> = (0..4).map(|n| user(&format!("message {n}"))).collect();
    all.iter().for_each(|message| made.message(message).unwrap());
    made.turn("completed").unwrap();
    let id = made.id().to_owned();
    drop(made);
    let path = dir.path().join(format!("{id}.jsonl"));
    let whole = fs::read(&path).unwrap();
    for length in (0..whole.len()).step_by(7) {
        fs::write(&path, &whole[..length]).unwrap();
        let (mut torn, messages) = Transcript::open(dir.path(), &id, "anthropic", "m").unwrap();
        assert_eq!(messages, all[..messages.len()], "{length}");
        // What is written next is not glued to what was torn.
        torn.message(&user("next")).unwrap();
        drop(torn);
        let (_, again) = Transcript::open(dir.path(), &id, "anthropic", "m").unwrap();
        assert_eq!((again.len(), again.last()), (messages.len() + 1, Some(&user("next"))));
    }
}

#[test]
fn what_is_broken_in_the_middle_is_not_guessed() {
    let dir = tempfile::tempdir().unwrap();
    let made = Transcript::create(dir.path(), "anthropic", "m").unwrap();
    let id = made.id().to_owned();
    drop(made);
    let path = dir.path().join(format!("{id}.jsonl"));
    let mut text = fs::read_to_string(&path).unwrap();
    text.push_str("nonsense\n{}\n");
    fs::write(&path, text).unwrap();
    let error = Transcript::open(dir.path(), &id, "anthropic", "m").unwrap_err();
    assert!(error.to_string().contains("cannot be read at byte"), "{error}");
}

#[test]
fn nobody_else_reads_it() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    let made = Transcript::create(&state, "anthropic", "m").unwrap();
    let mode = |path: &std::path::Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&state), 0o700);
    assert_eq!(mode(&state.join(format!("{}.jsonl", made.id()))), 0o600);
}
