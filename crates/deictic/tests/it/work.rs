//! A real use: a small repository whose test fails, and an agent that finds out why, mends it and checks it.

use deictic::protocol::TurnStatus;
use serde_json::json;

use crate::model::{Asked, DIALECTS, Model, Play, call, say};
use crate::talk::Setup;

const SUM: &str = "#!/bin/sh\n# Adds its arguments.\ntotal=0\nfor one in \"$@\"; do\n    \
    total=$((total - one))\ndone\necho \"$total\"\n";
const TEST: &str = "#!/bin/sh\nset -e\n[ \"$(sh sum.sh 1 2 3)\" = 6 ] || { echo \"FAIL: 1 2 3\"; exit 1; }\necho ok\n";

/// As a model would: look, run the test, read what it tests, mend it by what it read, run it again.
fn mends(asked: &Asked) -> Play {
    let last = asked.last_result();
    match asked.results.len() {
        0 => call("list_directory", json!({})),
        1 if last.contains("test.sh") => call("shell_exec", json!({"command": "sh test.sh"})),
        2 if last.contains("FAIL") => call("read_file", json!({"path": "sum.sh"})),
        3 if last.contains("total - one") => {
            let mended = last.replace("total - one", "total + one");
            call("write_file", json!({"path": "sum.sh", "content": mended}))
        }
        4 => call("shell_exec", json!({"command": "sh test.sh && git diff --stat"})),
        5 if last.starts_with("ok\n") => say("It subtracted; now it adds, and the test passes."),
        _ => say("I do not know."),
    }
}

#[tokio::test]
async fn a_failing_test_is_found_mended_and_passes() {
    for dialect in DIALECTS {
        let model = Model::serve(dialect, mends).await;
        let setup = Setup::new(&model);
        std::fs::write(setup.work().join("sum.sh"), SUM).unwrap();
        std::fs::write(setup.work().join("test.sh"), TEST).unwrap();
        let prepare = "git init -q . && git add -A && \
            git -c user.name=t -c user.email=t@t.test commit -qm first";
        let prepared = std::process::Command::new("sh")
            .args(["-c", prepare])
            .current_dir(setup.work())
            .status()
            .unwrap();
        assert!(prepared.success());
        let mut talk = setup.open().await;
        let status = talk.turn("The test fails. Find out why and mend it.").await;
        assert_eq!(status, TurnStatus::Completed, "{dialect:?}: {:#?}", talk.turn);
        assert_eq!(talk.texts(), ["It subtracted; now it adds, and the test passes."]);
        let sum = std::fs::read_to_string(setup.work().join("sum.sh")).unwrap();
        assert_eq!(sum, SUM.replace("total - one", "total + one"));
        let (last, _) = talk.results().pop().unwrap();
        assert!(last.contains("1 file changed"), "{last}");
        talk.close().await;
        model.close();
    }
}
