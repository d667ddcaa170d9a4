//! Our own agent behind the daemon: by the adapter's interface like the real programs, over HTTP, and alone.

use std::process::Stdio;

use agentd::adapter::{PermissionMode, PermissionReply, SessionSpec};
use serde_json::json;
use tokio::process::Command;

use crate::daemon::{Daemon, Setup};
use crate::programs::desk::Town;
use crate::programs::model::{KEY, Model};

async fn town() -> (Town, tempfile::TempDir) {
    let data = tempfile::tempdir().unwrap();
    (Town::with("deictic", data.path().to_owned(), &[]).await, data)
}

fn spec(town: &Town) -> SessionSpec {
    SessionSpec { model: Some("claude-test".to_owned()), ..town.spec() }
}

#[tokio::test]
async fn deictic_talks_thinks_runs_and_remembers() {
    let (town, _data) = town().await;
    let bypass = SessionSpec { permission_mode: PermissionMode::Bypass, ..spec(&town) };
    let mut desk = town.open(&bypass).await;
    desk.turn("remember:walnut play:text").await;
    assert_eq!(desk.said(), ["Hello from the model."]);
    desk.assert_raw();
    desk.turn("play:run echo tool-ran-ok").await;
    assert_eq!(desk.call(), ("shell_exec".to_owned(), "tool-ran-ok\n".to_owned(), true));
    assert_eq!(desk.said(), ["I run a command.", "It came to: tool-ran-ok\n"]);
    desk.turn("play:think").await;
    assert_eq!(desk.said(), ["Thought done."]);
    assert_eq!(desk.errors(), []);
    let native = desk.native_id.clone();
    desk.terminate().await;

    // Another process goes on with it.
    let mut desk = town.open(&SessionSpec { resume: native, ..bypass }).await;
    desk.turn("play:recall").await;
    assert_eq!(desk.said(), ["The word is walnut."]);
    desk.terminate().await;
    town.close().await;
}

#[tokio::test]
async fn deictic_asks_for_permission() {
    let (town, _data) = town().await;
    let mut desk = town.open(&spec(&town)).await;
    let made = town.work().join("made.txt");
    desk.say("play:run touch made.txt").await;
    let (id, action) = desk.permission().await;
    assert_eq!(action, "shell_exec");
    desk.reply(&id, PermissionReply::Reject).await;
    assert_eq!(desk.end_of_turn().await, "completed");
    assert!(!desk.call().2 && !made.exists(), "it was not run");
    desk.say("play:run touch made.txt").await;
    let (id, _) = desk.permission().await;
    desk.reply(&id, PermissionReply::Always).await;
    desk.end_of_turn().await;
    assert!(desk.call().2 && made.exists());
    desk.turn("play:run touch made.txt").await;
    assert!(desk.call().2, "it was not asked for again");
    desk.terminate().await;
    town.close().await;
}

#[tokio::test]
async fn deictic_asks_questions_and_has_plans_approved() {
    let (town, _data) = town().await;
    let mut desk = town.open(&spec(&town)).await;
    desk.say("play:ask").await;
    let (id, prompt, options) = desk.question().await;
    assert_eq!((prompt.as_str(), options.join(" ")), ("Which color?", "Red Blue".to_owned()));
    desk.answer(&id, Some("Blue")).await;
    desk.end_of_turn().await;
    assert_eq!(desk.call().1, "Blue");
    desk.say("play:ask").await;
    let (id, ..) = desk.question().await;
    desk.answer(&id, None).await;
    desk.end_of_turn().await;
    assert!(!desk.call().2, "it was declined");
    desk.terminate().await;

    let planning = SessionSpec {
        agent_mode: "plan".to_owned(),
        permission_mode: PermissionMode::Plan,
        ..spec(&town)
    };
    let mut desk = town.open(&planning).await;
    desk.say("play:plan").await;
    let (id, prompt, options) = desk.question().await;
    assert!(prompt.ends_with("1. Do it"), "{prompt}");
    desk.answer(&id, Some(&options[0])).await;
    assert_eq!(desk.end_of_turn().await, "completed");
    assert!(desk.call().2, "{:?}", desk.call());
    desk.terminate().await;
    town.close().await;
}

#[tokio::test]
async fn deictic_survives_errors_and_interruptions() {
    let (town, _data) = town().await;
    let bypass = SessionSpec { permission_mode: PermissionMode::Bypass, ..spec(&town) };
    let mut desk = town.open(&bypass).await;
    desk.say("play:error 401").await;
    assert_eq!(desk.end_of_turn().await, "failed");
    assert_eq!(desk.errors()[0].0, "api_error_401");
    desk.say("play:slow").await;
    assert_eq!(desk.interrupt().await, "interrupted");
    assert_eq!(desk.errors(), []);
    desk.turn("play:run touch made.txt").await;
    assert!(desk.call().2 && town.work().join("made.txt").exists());
    // In the middle of a turn, with a command that left its group.
    desk.say("play:run setsid sleep 1000 & sleep 1000").await;
    desk.until("the call", |data| match data {
        events::UniversalEventData::ItemStarted(data) => {
            (data.item.kind == events::ItemKind::ToolCall).then_some(())
        }
        _ => None,
    })
    .await;
    desk.terminate().await;
    town.close().await;
}

#[tokio::test]
async fn a_session_over_http_says_what_is_missing_and_ends_its_turns() {
    let directory = tempfile::tempdir().unwrap();
    let model = Model::serve().await;
    let environment =
        vec![("ANTHROPIC_API_KEY", KEY.to_owned()), ("ANTHROPIC_BASE_URL", model.url().to_owned())];
    let daemon = Daemon::start(directory.path(), Setup { environment, ..Setup::default() }).await;
    let refused = daemon.post("/v1/sessions/none", &json!({"agent": "deictic"})).await;
    assert_eq!(refused.status, 400, "{}", refused.body);
    assert!(refused.body.contains("deictic needs a model"), "{}", refused.body);
    let body = json!({
        "agent": "deictic", "model": "claude-test",
        "env": {"DEICTIC_APP_JSON": r#"{"capability_sets": [{"agents": [{"name": "a",
            "capability_name": "b", "tools": ["teleport"]}]}]}"#},
    });
    let refused = daemon.post("/v1/sessions/app", &body).await;
    assert_eq!(refused.status, 400);
    assert!(refused.body.contains("no such tool: teleport"), "{}", refused.body);

    let body = json!({"agent": "deictic", "model": "claude-test"});
    let made = daemon.post("/v1/sessions/s", &body).await;
    assert_eq!(made.status, 200, "{}", made.body);
    assert!(made.body.contains("dei_"), "{}", made.body);
    let sent = daemon.post("/v1/sessions/s/messages", &json!({"message": "play:text"})).await;
    assert_eq!(sent.status, 204, "{}", sent.body);
    daemon.wait_idle("s").await;
    let events = daemon.get("/v1/sessions/s/events").await.to_string();
    for part in ["Hello from the model.", "runtime_event", "turn.completed"] {
        assert!(events.contains(part), "{part}: {events}");
    }
    daemon.stop().await;
    assert_eq!(model.faults(), Vec::<String>::new());
    model.stop();
}

#[tokio::test]
async fn alone_it_prints_its_text_and_ends_with_how_it_went() {
    let home = tempfile::tempdir().unwrap();
    let model = Model::serve().await;
    let deictic = |task: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_agentd"));
        command.args(["deictic", "--model=claude-test", "--permission-mode", "bypass"]);
        command.args(["--base-url", model.url(), "--task", task]);
        command.env_clear().env("LLM_API_KEY", KEY).env("HOME", home.path());
        command.current_dir(home.path()).stdin(Stdio::null());
        command
    };
    let output = deictic("play:run echo ran").output().await.unwrap();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{err}");
    assert_eq!(out, "I run a command.\nIt came to: ran\n");
    assert!(err.contains("[shell_exec]"), "{err}");
    // And on with it.
    let id = err.lines().find_map(|line| line.strip_prefix("[session ")).unwrap();
    let id = id.trim_end_matches(']').to_owned();
    let output = deictic("play:recall").args(["--session", &id]).output().await.unwrap();
    assert_eq!(text(&output.stdout), "The word is unknown.\n", "{}", text(&output.stderr));

    let output = deictic("play:error 401").output().await.unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("api_error_401"), "{}", text(&output.stderr));
    let output = deictic("x").arg("--sideways=1").output().await.unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("unknown argument: --sideways"));
    assert_eq!(model.faults(), Vec::<String>::new());
    model.stop();
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// In front of a model: TLS with a certificate that this test made.
async fn with_tls(model: &Model, certificate: &std::path::Path) -> String {
    use std::sync::Arc;
    use tokio_rustls::rustls::crypto::ring;
    use tokio_rustls::rustls::pki_types::PrivateKeyDer;
    let key = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(certificate, key.cert.pem()).unwrap();
    let private = PrivateKeyDer::Pkcs8(key.signing_key.serialize_der().into());
    let config = tokio_rustls::rustls::ServerConfig::builder_with_provider(Arc::new(
        ring::default_provider(),
    ))
    .with_safe_default_protocol_versions()
    .unwrap()
    .with_no_client_auth()
    .with_single_cert(vec![key.cert.der().clone()], private)
    .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://localhost:{}", listener.local_addr().unwrap().port());
    let behind = model.url().trim_start_matches("http://").to_owned();
    tokio_util::task::TaskTracker::new().spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            let mut model = tokio::net::TcpStream::connect(&behind).await.unwrap();
            let _ = tokio::io::copy_bidirectional(&mut stream, &mut model).await;
        }
    });
    url
}

#[tokio::test]
async fn https_is_believed_by_the_certificates_of_the_system_only() {
    let home = tempfile::tempdir().unwrap();
    let model = Model::serve().await;
    let certificate = home.path().join("ca.pem");
    let url = with_tls(&model, &certificate).await;
    let ask = |certificate: &std::path::Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_agentd"));
        command.args(["deictic", "--model=claude-test", "--task=play:text", "--base-url", &url]);
        command.env_clear().env("LLM_API_KEY", KEY).env("HOME", home.path());
        command.env("SSL_CERT_FILE", certificate).current_dir(home.path()).stdin(Stdio::null());
        command
    };
    let output = ask(&certificate).output().await.unwrap();
    assert_eq!(text(&output.stdout), "Hello from the model.\n", "{}", text(&output.stderr));
    // Another certificate than the one that is trusted.
    let other = home.path().join("other.pem");
    let strange = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(&other, strange.cert.pem()).unwrap();
    let output = ask(&other).output().await.unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("model_unreachable"), "{}", text(&output.stderr));
    // None at all.
    std::fs::write(&other, "").unwrap();
    let output = ask(&other).output().await.unwrap();
    assert!(text(&output.stderr).contains("install ca-certificates"), "{}", text(&output.stderr));
    assert_eq!(model.faults(), Vec::<String>::new());
    model.stop();
}
