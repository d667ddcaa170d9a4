//! Commands: blocking ones end with their client, streamed ones do not.

use std::time::Duration;

use engine::{Command, ExecEvent, ExecOutput, OutputStream};
use futures_util::StreamExt;
use model::{EndReason, Error, ExecId};

use crate::{
    Fixture, alice, assert_invalid, assert_not_found, assert_wrong_state, bob, by_id, image,
};

/// Longer than anything here takes.
const SOON: Duration = Duration::from_secs(20);

async fn next(output: &mut ExecOutput) -> ExecEvent {
    loop {
        let event = tokio::time::timeout(SOON, output.next()).await.unwrap().unwrap().unwrap();
        if event != ExecEvent::Keepalive {
            return event;
        }
    }
}

async fn text(output: &mut ExecOutput) -> String {
    match next(output).await {
        ExecEvent::Output { bytes, .. } => String::from_utf8(bytes.to_vec()).unwrap(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_command_answers_with_output_and_status() {
    let fixture = Fixture::new().await;
    let sandbox = by_id(&fixture.create(image()).await.unwrap());
    let shell = "echo out; sleep 0.05; echo err >&2; exit 7";
    let done = fixture.engine.exec(&alice(), &sandbox, Command::shell(shell)).await.unwrap();
    assert_eq!(
        (done.output, done.stdout, done.stderr).into_strings(),
        ["out\nerr\n", "out\n", "err\n"]
    );
    assert_eq!((done.exit_code, done.timed_out, done.truncated), (7, false, false));

    let command = Command {
        env: [("GREETING".to_owned(), "hello".to_owned())].into(),
        stdin: Some(b"world".to_vec()),
        ..Command::shell("printf '%s ' $GREETING; cat")
    };
    let done = fixture.engine.exec(&alice(), &sandbox, command).await.unwrap();
    assert_eq!(done.output, "hello world");
    assert_eq!(fixture.engine.snapshot().execs_total, 2);
}

trait Texts {
    fn into_strings(self) -> [String; 3];
}

impl Texts for (bytes::Bytes, bytes::Bytes, bytes::Bytes) {
    fn into_strings(self) -> [String; 3] {
        [self.0, self.1, self.2].map(|bytes| String::from_utf8(bytes.to_vec()).unwrap())
    }
}

#[tokio::test]
async fn a_bad_command_is_refused_and_a_missing_sandbox_not_found() {
    let fixture = Fixture::new().await;
    let sandbox = by_id(&fixture.create(image()).await.unwrap());
    let caller = alice();
    let exec = |command| fixture.engine.exec(&caller, &sandbox, command);
    assert_invalid(exec(Command::default()).await, "command");
    assert_invalid(exec(Command::shell("a\0b")).await, "command");
    let env = [("LLM_KEY".to_owned(), "x".to_owned())].into();
    assert_invalid(exec(Command { env, ..Command::shell("true") }).await, "env.LLM_KEY");
    let stdin = Some(vec![0; (8 << 20) + 1]);
    assert_invalid(exec(Command { stdin, ..Command::shell("true") }).await, "stdin");
    assert_not_found(fixture.engine.exec(&bob(), &sandbox, Command::shell("true")).await);
}

#[tokio::test]
async fn output_beyond_the_cap_is_cut_and_says_so() {
    let fixture = Fixture::new().await;
    let sandbox = by_id(&fixture.create(image()).await.unwrap());
    let command = Command::shell("head -c 9000000 /dev/zero; echo done >&2");
    let done = fixture.engine.exec(&alice(), &sandbox, command).await.unwrap();
    assert!(done.truncated);
    assert_eq!(done.output.len(), 8 << 20);
    assert_eq!(done.exit_code, 0, "it was read to its end");
    let command = Command::shell("head -c 8388608 /dev/zero");
    let done = fixture.engine.exec(&alice(), &sandbox, command).await.unwrap();
    assert!(!done.truncated && done.output.len() == 8 << 20);
}

#[tokio::test]
async fn a_timeout_ends_the_command() {
    let fixture = Fixture::new().await;
    let sandbox = by_id(&fixture.create(image()).await.unwrap());
    let timeout = Some(Duration::from_millis(100));
    let command = Command { timeout, ..Command::shell("echo begun; sleep 1000 & sleep 1000") };
    let done = fixture.engine.exec(&alice(), &sandbox, command).await.unwrap();
    assert!(done.timed_out);
    assert_eq!(done.output, "begun\n");
}

#[tokio::test]
async fn a_blocking_command_ends_with_its_client() {
    let fixture = Fixture::new().await;
    let sandbox = by_id(&fixture.create(image()).await.unwrap());
    let command = Command::shell("echo $$ > pid; sleep 1000");
    let caller = alice();
    let exec = fixture.engine.exec(&caller, &sandbox, command);
    assert!(tokio::time::timeout(Duration::from_millis(300), exec).await.is_err());
    let gone = "while kill -0 $(cat pid); do sleep 0.02; done";
    let gone = fixture.engine.exec(&caller, &sandbox, Command::shell(gone));
    tokio::time::timeout(SOON, gone).await.expect("it was killed").unwrap();
}

#[tokio::test]
async fn a_streamed_command_can_be_read_again_from_an_offset() {
    let fixture = Fixture::new().await;
    let engine = &fixture.engine;
    let sandbox = by_id(&fixture.create(image()).await.unwrap());
    let command = Command::shell("echo one; while [ ! -e go ]; do sleep 0.02; done; echo two");
    let (exec, mut output) = engine.exec_start(&alice(), &sandbox, command).await.unwrap();
    assert_eq!(text(&mut output).await, "one\n");
    drop(output);
    engine.exec(&alice(), &sandbox, Command::shell("touch go")).await.unwrap();

    let mut output = engine.exec_attach(&alice(), &sandbox, &exec, 0).await.unwrap();
    assert_eq!(text(&mut output).await, "one\n");
    let mut output = engine.exec_attach(&alice(), &sandbox, &exec, 4).await.unwrap();
    let event = next(&mut output).await;
    let expected =
        ExecEvent::Output { stream: OutputStream::Stdout, offset: 4, bytes: "two\n".into() };
    assert_eq!(event, expected);
    assert!(matches!(next(&mut output).await, ExecEvent::Exit(exit) if exit.exit_code == 0));
    assert!(output.next().await.is_none());

    let unknown = engine.exec_attach(&alice(), &sandbox, &ExecId::generate(), 0).await.map(|_| ());
    assert!(matches!(unknown, Err(Error::NotFound { what: "exec", .. })), "{unknown:?}");
    assert_not_found(engine.exec_attach(&bob(), &sandbox, &exec, 0).await.map(|_| ()));
}

#[tokio::test]
async fn a_streamed_command_can_be_killed() {
    let fixture = Fixture::new().await;
    let engine = &fixture.engine;
    let sandbox = by_id(&fixture.create(image()).await.unwrap());
    let command = Command::shell("echo ready; sleep 1000");
    let (exec, mut output) = engine.exec_start(&alice(), &sandbox, command).await.unwrap();
    assert_eq!(text(&mut output).await, "ready\n");
    for _ in 0..2 {
        engine.exec_kill(&alice(), &sandbox, &exec).await.unwrap();
    }
    assert!(matches!(next(&mut output).await, ExecEvent::Exit(exit) if exit.exit_code == 137));
}

#[tokio::test]
async fn a_stream_of_a_sandbox_that_dies_ends_with_the_reason() {
    let fixture = Fixture::new().await;
    let engine = &fixture.engine;
    for reason in [EndReason::Oom, EndReason::UserRequest] {
        let made = fixture.create(image()).await.unwrap();
        let command = Command::shell("echo ready; sleep 1000");
        let (_, mut output) = engine.exec_start(&alice(), &by_id(&made), command).await.unwrap();
        assert_eq!(text(&mut output).await, "ready\n");
        match reason {
            EndReason::UserRequest => drop(engine.delete(&alice(), &by_id(&made)).await.unwrap()),
            _ => fixture.driver.kill(made.spec.id, reason),
        }
        assert_eq!(next(&mut output).await, ExecEvent::SandboxEnded { reason });
        assert!(output.next().await.is_none());
    }
}

#[tokio::test]
async fn a_blocking_command_whose_sandbox_dies_says_so() {
    let fixture = Fixture::new().await;
    let made = fixture.create(image()).await.unwrap();
    let sandbox = by_id(&made);
    let command = Command::shell("touch begun; sleep 1000");
    let caller = alice();
    let exec = fixture.engine.exec(&caller, &sandbox, command);
    let kill = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        fixture.driver.kill(made.spec.id, EndReason::Oom);
    };
    let (outcome, ()) = tokio::join!(tokio::time::timeout(SOON, exec), kill);
    let outcome = outcome.unwrap();
    let text = format!("{outcome:?}");
    assert_wrong_state(outcome);
    assert!(text.contains("oom"), "{text}");
}
