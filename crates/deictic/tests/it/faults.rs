//! Models and tools that misbehave: each time an error that says what it was, a failed turn, and a session that
//! can be used.

use std::time::Duration;

use axum::body::Bytes;
use deictic::protocol::{Heard, Said, TurnStatus};
use serde_json::json;
use tokio::time::{Instant, timeout};

use crate::model::{Asked, DIALECTS, Dialect, End, Model, Play, Words, call, halves, say};
use crate::talk::{Setup, Talk, gone, processes_with};

/// It does `fault` until the user says "well".
async fn misbehaving(
    dialect: Dialect,
    fault: impl Fn(&Asked) -> Play + Send + Sync + 'static,
) -> Model {
    let script = move |asked: &Asked| match asked.last_user() {
        "well" => say("All is well."),
        _ => fault(asked),
    };
    Model::serve(dialect, script).await
}

async fn fails_with(setup: &Setup, code: &str) -> Talk {
    let mut talk = setup.open().await;
    assert_eq!(talk.turn("go").await, TurnStatus::Failed, "{code}: {:#?}", talk.turn);
    assert_eq!(talk.errors(), [code], "{:#?}", talk.turn);
    talk.assert_closed();
    talk
}

/// And it can be used afterwards.
async fn recovers(mut talk: Talk, model: Model) {
    assert_eq!(talk.turn("well").await, TurnStatus::Completed, "{:#?}", talk.turn);
    assert_eq!(talk.texts(), ["All is well."]);
    talk.close().await;
    model.close();
}

async fn check(dialect: Dialect, code: &str, fault: fn(&Asked) -> Play) {
    let model = misbehaving(dialect, fault).await;
    let setup = Setup::new(&model).limits(|limits| limits.retries = 1);
    let talk = fails_with(&setup, code).await;
    recovers(talk, model).await;
}

/// With less patience, but enough for what comes afterwards on a loaded machine.
async fn check_silence(dialect: Dialect, fault: fn(&Asked) -> Play) {
    let model = misbehaving(dialect, fault).await;
    let setup = Setup::new(&model).limits(|limits| limits.idle = Duration::from_secs(2));
    let talk = fails_with(&setup, "model_timeout").await;
    recovers(talk, model).await;
}

fn raw(pieces: Vec<&'static [u8]>, end: End) -> Play {
    Play::Raw { pieces: pieces.into_iter().map(Bytes::from_static).collect(), end }
}

#[tokio::test]
async fn garbage() {
    for dialect in DIALECTS {
        check(dialect, "model_stream_garbage", |_| {
            raw(vec![b"data: {\"type\": \xff\xfe nothing\n\n"], End::Fine)
        })
        .await;
    }
}

#[tokio::test]
async fn an_answer_that_is_cut() {
    for dialect in DIALECTS {
        check(dialect, "model_stream_cut", |_| {
            let pieces = halves("This will not end well.");
            Play::Say(Words { pieces, cut: true, ..Words::default() })
        })
        .await;
    }
}

#[tokio::test]
async fn a_stream_that_ends_without_its_end() {
    for dialect in DIALECTS {
        check(dialect, "model_stream_cut", |_| raw(vec![b": nothing\n\n"], End::Fine)).await;
    }
}

#[tokio::test]
async fn silence_before_and_in_an_answer() {
    check_silence(Dialect::Anthropic, |_| Play::Hang).await;
    check_silence(Dialect::OpenAi, |_| raw(vec![b": hello\n\n"], End::Never)).await;
}

#[tokio::test]
async fn an_answer_that_takes_for_ever() {
    let model = misbehaving(Dialect::DeepSeek, |_| {
        let pieces = vec!["more ".to_owned(); 2000];
        Play::Say(Words { pieces, pause: Duration::from_millis(10), ..Words::default() })
    })
    .await;
    let setup = Setup::new(&model).limits(|limits| limits.answer = Duration::from_secs(2));
    let talk = fails_with(&setup, "model_timeout").await;
    recovers(talk, model).await;
}

#[tokio::test]
async fn ten_megabytes_in_one_line_and_in_many() {
    check(Dialect::Anthropic, "model_answer_too_long", |_| {
        let pieces = vec![Bytes::from(vec![b'x'; 1024 * 1024]); 10];
        Play::Raw { pieces, end: End::Fine }
    })
    .await;
    for dialect in DIALECTS {
        check(dialect, "model_answer_too_long", |_| {
            let pieces = vec!["y".repeat(256 * 1024); 40];
            Play::Say(Words { pieces, ..Words::default() })
        })
        .await;
    }
}

#[tokio::test]
async fn what_it_may_not_and_what_it_cannot() {
    for dialect in DIALECTS {
        check(dialect, "api_error_401", |_| Play::Refuse {
            status: 401,
            retry_after: None,
            message: "who are you",
        })
        .await;
        check(dialect, "api_error_500", |_| Play::Refuse {
            status: 500,
            retry_after: None,
            message: "as ordered",
        })
        .await;
    }
}

#[tokio::test]
async fn nobody_there() {
    let model = misbehaving(Dialect::OpenAi, |_| say("unheard")).await;
    let mut setup = Setup::new(&model).limits(|limits| limits.retries = 1);
    setup.start.base_url = Some("http://127.0.0.1:1".to_owned());
    let talk = fails_with(&setup, "model_unreachable").await;
    talk.close().await;
    model.close();
}

#[tokio::test]
async fn what_passes_is_tried_again_and_told() {
    let model = Model::serve(Dialect::Anthropic, |asked| match asked.number {
        1 => Play::Refuse { status: 429, retry_after: Some("0.2"), message: "slower" },
        2 => Play::Refuse { status: 503, retry_after: None, message: "busy" },
        3 => raw(vec![b": about to say something\n\n"], End::Broken),
        _ => say("At last."),
    })
    .await;
    let setup = Setup::new(&model);
    let mut talk = setup.open().await;
    let begin = Instant::now();
    assert_eq!(talk.turn("go").await, TurnStatus::Completed, "{:#?}", talk.turn);
    assert!(begin.elapsed() >= Duration::from_millis(200), "it waits as long as it was told");
    assert_eq!(talk.texts(), ["At last."]);
    let codes: Vec<_> = talk.statuses("api_retry").iter().map(|one| one["code"].clone()).collect();
    assert_eq!(codes, ["api_error_429", "api_error_503", "model_stream_cut"]);
    assert_eq!(talk.errors(), Vec::<String>::new());
    talk.close().await;
    model.close();
}

/// However long the vendor wants it to wait.
#[tokio::test]
async fn no_wait_is_longer_than_the_limit() {
    let model = Model::serve(Dialect::Google, |asked| match asked.number {
        1 => Play::Refuse { status: 429, retry_after: Some("86400"), message: "tomorrow" },
        _ => say("Today."),
    })
    .await;
    let setup = Setup::new(&model).limits(|limits| limits.back_off_max = Duration::from_millis(50));
    let mut talk = setup.open().await;
    assert_eq!(talk.turn("go").await, TurnStatus::Completed);
    talk.close().await;
    model.close();
}

#[tokio::test]
async fn a_loop_on_one_tool() {
    check(Dialect::OpenAi, "tool_loop", |_| call("list_directory", json!({}))).await;
}

#[tokio::test]
async fn a_tool_that_is_not_there() {
    check(Dialect::Google, "unknown_tool", |_| call("fly", json!({"where": "away"}))).await;
    // Once is no reason to give up.
    let model = Model::serve(Dialect::DeepSeek, |asked| match asked.number {
        1 => call("fly", json!({})),
        _ => say(asked.last_result()),
    })
    .await;
    let setup = Setup::new(&model);
    let mut talk = setup.open().await;
    assert_eq!(talk.turn("go").await, TurnStatus::Completed);
    assert!(talk.texts()[0].contains("there is no such tool"), "{:?}", talk.texts());
    talk.close().await;
    model.close();
}

#[tokio::test]
async fn a_tool_that_hangs() {
    let model = misbehaving(Dialect::Anthropic, |_| {
        call("shell_exec", json!({"command": "sleep 1000 & sleep 1000"}))
    })
    .await;
    let mut setup = Setup::new(&model).limits(|limits| limits.command = Duration::from_millis(200));
    let mark = "DEICTIC_TEST=a-tool-that-hangs";
    let (name, value) = mark.split_once('=').unwrap();
    setup.environment.insert(name.to_owned(), value.to_owned());
    let talk = fails_with(&setup, "tool_timeout").await;
    assert!(talk.results()[0].0.contains("killed: it took longer than 0.2 s"));
    // Nothing of it is left.
    gone(mark).await;
    recovers(talk, model).await;
}

#[tokio::test]
async fn an_interrupt_ends_a_command_and_all_that_it_started_at_once() {
    let model = misbehaving(Dialect::OpenAi, |_| {
        // It leaves its group.
        call("shell_exec", json!({"command": "echo begun; setsid sleep 1000 & sleep 1000"}))
    })
    .await;
    let mut setup = Setup::new(&model);
    let mark = "DEICTIC_TEST=an-interrupt";
    let (name, value) = mark.split_once('=').unwrap();
    setup.environment.insert(name.to_owned(), value.to_owned());
    let mut talk = setup.open().await;
    talk.say("go").await;
    let both = async {
        while processes_with(mark) < 3 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(Duration::from_secs(30), both).await.unwrap();
    let begin = Instant::now();
    talk.tell(&Heard::Interrupt).await;
    assert_eq!(talk.end_of_turn().await, TurnStatus::Interrupted);
    let took = begin.elapsed();
    assert_eq!(talk.errors(), Vec::<String>::new());
    talk.assert_closed();
    // A loaded machine is slow; what it usually takes is below 20 ms.
    assert!(took < Duration::from_secs(2), "{took:?}");
    gone(mark).await;
    recovers(talk, model).await;
}

#[tokio::test]
async fn an_interrupt_ends_an_answer() {
    let model = misbehaving(Dialect::Google, |_| {
        let pieces = vec!["slow ".to_owned(); 2000];
        Play::Say(Words { pieces, pause: Duration::from_millis(20), ..Words::default() })
    })
    .await;
    let setup = Setup::new(&model);
    let mut talk = setup.open().await;
    talk.say("go").await;
    talk.until(|said| matches!(said, Said::ItemDelta { .. }).then_some(())).await;
    talk.tell(&Heard::Interrupt).await;
    assert_eq!(talk.end_of_turn().await, TurnStatus::Interrupted);
    talk.assert_closed();
    recovers(talk, model).await;
}

#[tokio::test]
async fn a_turn_that_costs_too_much() {
    let model = misbehaving(Dialect::Anthropic, |asked| {
        call("shell_exec", json!({"command": format!("echo {}", asked.number)}))
    })
    .await;
    let setup = Setup::new(&model).limits(|limits| limits.turn_tokens = 50);
    let talk = fails_with(&setup, "token_limit").await;
    recovers(talk, model).await;
}

#[tokio::test]
async fn a_model_that_says_nothing() {
    for dialect in DIALECTS {
        check(dialect, "no_answer", |_| Play::Say(Words::default())).await;
    }
}

mod needs_root {
    //! A disk that is full: a small one of our own.

    use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

    use super::*;

    #[tokio::test]
    async fn a_full_disk_under_the_work_and_under_the_transcript() {
        let disk = tempfile::tempdir().unwrap();
        let options = c"size=256k";
        mount("tmpfs", disk.path(), "tmpfs", MountFlags::empty(), options).unwrap();
        let result = std::panic::AssertUnwindSafe(on_a_full_disk(disk.path()));
        let result = futures_util::FutureExt::catch_unwind(result).await;
        unmount(disk.path(), UnmountFlags::DETACH).unwrap();
        result.unwrap();
    }

    async fn on_a_full_disk(disk: &std::path::Path) {
        let path = disk.join("large.txt").display().to_string();
        let model = misbehaving(Dialect::Anthropic, move |_| {
            call("write_file", json!({"path": path, "content": "z".repeat(400 * 1024)}))
        })
        .await;
        let setup = Setup::new(&model);
        let talk = fails_with(&setup, "disk_full").await;
        assert_eq!(std::fs::read_dir(disk).unwrap().count(), 0, "nothing is left of it");
        recovers(talk, model).await;

        let model = misbehaving(Dialect::OpenAi, |_| say("kept?")).await;
        let mut setup = Setup::new(&model);
        setup.start.state_dir = Some(disk.join("state"));
        let mut talk = setup.open().await;
        let filler = disk.join("filler");
        // Until nothing more goes in.
        let _ = std::fs::write(&filler, vec![0; 512 * 1024]);
        let long = "x".repeat(16 * 1024);
        assert_eq!(talk.turn(&long).await, TurnStatus::Failed, "{:#?}", talk.turn);
        assert_eq!(talk.errors(), ["disk_full"]);
        std::fs::remove_file(&filler).unwrap();
        let id = talk.id.clone();
        recovers(talk, model.clone()).await;
        // What did not fit went in later: nothing is missing.
        let kept = std::fs::read_to_string(disk.join("state").join(format!("{id}.jsonl")));
        assert!(kept.unwrap().contains(&long));
    }
}
