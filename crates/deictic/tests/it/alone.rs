//! A task and its end, without anybody to ask.

use deictic::protocol::PermissionMode;
use deictic::run_alone;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::model::{Dialect, Model, call, say};
use crate::talk::Setup;

async fn run(setup: &Setup) -> (bool, String, String) {
    let (mut out, mut aside) = (Vec::new(), Vec::new());
    let around = setup.surroundings(false);
    let sinks = (&mut out as &mut (dyn std::io::Write + Send), &mut aside as &mut _);
    let cancel = CancellationToken::new();
    let fine = run_alone(&setup.start, "go", around, cancel, sinks).await.unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (fine, text(out), text(aside))
}

#[tokio::test]
async fn what_would_be_asked_for_is_refused_and_questions_have_no_answer() {
    let model = Model::serve(Dialect::OpenAi, |asked| match asked.number {
        1 => call("shell_exec", json!({"command": "touch made"})),
        2 => call("ask_user", json!({"question": "May I?"})),
        3 => call("read_file", json!({"path": "there"})),
        _ => say(&asked.results.join("|")),
    })
    .await;
    let setup = Setup::new(&model).mode(PermissionMode::Default);
    std::fs::write(setup.work().join("there"), "it is").unwrap();
    let (fine, out, _) = run(&setup).await;
    assert!(fine);
    let said: Vec<_> = out.split('|').collect();
    assert!(said[0].contains("needs the permission mode bypass"), "{out}");
    assert!(said[1].starts_with("nobody answered") && said[2] == "it is\n", "{out}");
    assert!(!setup.work().join("made").exists());
    model.close();
}
