//! Files, logs, tar streams, tunnels; on a running sandbox and over a stopped one.

use bytes::Bytes;
use engine::{Command, LogTail};
use futures_util::{StreamExt, stream};
use model::{Error, Phase, SandboxRef};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{Fixture, alice, assert_invalid, assert_wrong_state, by_id, persistent};

type Piece = std::io::Result<Bytes>;

fn body(pieces: &[&'static [u8]]) -> impl futures_util::Stream<Item = Piece> + Send + 'static {
    let pieces: Vec<Piece> = pieces.iter().map(|piece| Ok(Bytes::from_static(piece))).collect();
    stream::iter(pieces)
}

async fn all(mut body: engine::ByteStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    while let Some(piece) = body.next().await {
        bytes.extend_from_slice(&piece.unwrap());
    }
    bytes
}

async fn sh(fixture: &Fixture, sandbox: &SandboxRef, command: &str) -> String {
    let done = fixture.engine.exec(&alice(), sandbox, Command::shell(command)).await.unwrap();
    assert_eq!(done.exit_code, 0, "{done:?}");
    String::from_utf8(done.output.to_vec()).unwrap()
}

#[tokio::test]
async fn a_file_comes_back_as_it_went_in() {
    let fixture = Fixture::new().await;
    let engine = &fixture.engine;
    let sandbox = by_id(&fixture.create(persistent()).await.unwrap());
    let bytes = b"\0\xff binary\r\n";
    engine.write_file(&alice(), &sandbox, "/workspace/f", body(&[bytes, b"more"])).await.unwrap();
    let file = engine.read_file(&alice(), &sandbox, "/workspace/f").await.unwrap();
    assert_eq!(file.size, Some(15));
    assert_eq!(all(file.body).await, b"\0\xff binary\r\nmore");
    engine.write_file(&alice(), &sandbox, "/workspace/empty", body(&[])).await.unwrap();
    let file = engine.read_file(&alice(), &sandbox, "/workspace/empty").await.unwrap();
    assert_eq!(all(file.body).await, b"");
}

#[tokio::test]
async fn a_missing_file_is_not_found_and_a_missing_directory_a_bad_path() {
    let fixture = Fixture::new().await;
    let engine = &fixture.engine;
    let sandbox = by_id(&fixture.create(persistent()).await.unwrap());
    let missing = engine.read_file(&alice(), &sandbox, "/workspace/none").await.map(|_| ());
    assert!(matches!(missing, Err(Error::NotFound { what: "file", .. })), "{missing:?}");
    let path = "/workspace/none/f";
    assert_invalid(engine.write_file(&alice(), &sandbox, path, body(&[])).await, "path");
}

#[tokio::test]
async fn logs_are_the_tail_of_the_agents_log_and_empty_without_one() {
    let fixture = Fixture::new().await;
    let engine = &fixture.engine;
    let sandbox = by_id(&fixture.create(persistent()).await.unwrap());
    let logs = engine.logs(&alice(), &sandbox, LogTail::Lines(100)).await.unwrap();
    assert_eq!((logs.content.as_ref(), logs.truncated, logs.total_bytes), (&b""[..], false, 0));
    let log = body(&[b"one\ntwo\nthree\n"]);
    engine.write_file(&alice(), &sandbox, engine::AGENT_LOG, log).await.unwrap();
    let logs = engine.logs(&alice(), &sandbox, LogTail::Lines(2)).await.unwrap();
    assert_eq!(logs.content, "two\nthree\n");
    assert_eq!((logs.truncated, logs.total_bytes), (true, 14));
    let logs = engine.logs(&alice(), &sandbox, LogTail::Bytes(8)).await.unwrap();
    assert_eq!(logs.content, "three\n");
}

#[tokio::test]
async fn a_workspace_moves_by_export_and_import_running_or_stopped() {
    let fixture = Fixture::new().await;
    let engine = &fixture.engine;
    let from = by_id(&fixture.create(persistent()).await.unwrap());
    sh(&fixture, &from, "mkdir dir && echo moved > dir/f").await;
    for stopped in [false, true] {
        let to = by_id(&fixture.create(persistent()).await.unwrap());
        if stopped {
            engine.stop(&alice(), &from).await.unwrap();
            engine.stop(&alice(), &to).await.unwrap();
        }
        let archive = all(engine.export(&alice(), &from).await.unwrap()).await;
        let archive = stream::iter([Ok(Bytes::from(archive))]);
        engine.import(&alice(), &to, archive).await.unwrap();
        if stopped {
            assert_eq!(engine.get(&alice(), &to).await.unwrap().phase, Phase::Stopped);
            engine.start_sandbox(&alice(), &to).await.unwrap();
        }
        assert_eq!(sh(&fixture, &to, "cat dir/f").await, "moved\n");
    }
}

#[tokio::test]
async fn a_stopped_sandbox_is_not_started_under_an_export() {
    let fixture = Fixture::new().await;
    let engine = &fixture.engine;
    let sandbox = by_id(&fixture.create(persistent()).await.unwrap());
    engine.stop(&alice(), &sandbox).await.unwrap();
    let export = engine.export(&alice(), &sandbox).await.unwrap();
    assert_wrong_state(engine.start_sandbox(&alice(), &sandbox).await);
    assert_wrong_state(engine.export(&alice(), &sandbox).await.map(|_| ()));
    drop(export);
    engine.start_sandbox(&alice(), &sandbox).await.unwrap();
}

#[tokio::test]
async fn a_delete_ends_an_export() {
    let fixture = Fixture::new().await;
    let engine = &fixture.engine;
    let sandbox = by_id(&fixture.create(persistent()).await.unwrap());
    engine.stop(&alice(), &sandbox).await.unwrap();
    let mut export = engine.export(&alice(), &sandbox).await.unwrap();
    engine.delete(&alice(), &sandbox).await.unwrap();
    assert!(export.next().await.unwrap().is_err());
    fixture.assert_empty().await;
}

#[tokio::test]
async fn a_paused_sandbox_has_no_files() {
    let fixture = Fixture::new().await;
    let sandbox = by_id(&fixture.create(persistent()).await.unwrap());
    fixture.engine.pause(&alice(), &sandbox).await.unwrap();
    let read = fixture.engine.read_file(&alice(), &sandbox, "/workspace/f").await.map(|_| ());
    assert_wrong_state(read);
    assert_wrong_state(fixture.engine.export(&alice(), &sandbox).await.map(|_| ()));
}

#[tokio::test]
async fn a_tunnel_reaches_a_port_and_a_closed_port_is_said_to_be_closed() {
    let fixture = Fixture::new().await;
    let sandbox = by_id(&fixture.create(persistent()).await.unwrap());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut tunnel = fixture.engine.tunnel(&alice(), &sandbox, port).await.unwrap();
    let (mut inside, _) = listener.accept().await.unwrap();
    tunnel.write_all(b"ping").await.unwrap();
    let mut heard = [0; 4];
    inside.read_exact(&mut heard).await.unwrap();
    inside.write_all(b"pong").await.unwrap();
    tunnel.read_exact(&mut heard).await.unwrap();
    assert_eq!(&heard, b"pong");
    drop(listener);
    let closed = fixture.engine.tunnel(&alice(), &sandbox, port).await.map(|_| ());
    assert!(matches!(closed, Err(Error::Unavailable { .. })), "{closed:?}");
}

#[tokio::test]
async fn use_is_counted_on_the_host() {
    let fixture = Fixture::new().await;
    fixture.driver.set_cpu_usec(42);
    let sandbox = by_id(&fixture.create(persistent()).await.unwrap());
    assert_eq!(fixture.engine.usage(&alice(), &sandbox).await.unwrap().cpu_usec, 42);
}
