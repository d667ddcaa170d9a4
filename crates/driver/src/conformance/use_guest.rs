//! Commands and files, through the guest.

use std::collections::BTreeMap;
use std::io::Read;
use std::time::Duration;

use futures_util::StreamExt;
use guest_proto::{ExecFrame, ExecFrames, ExecStart, GuestError};
use model::{Error, Phase, Policy};

use super::ASKED;
use super::bench::{Bench, SOON, start};

pub(super) async fn a_command_has_output_status_environment_and_input(bench: &Bench) {
    let id = bench.create().await.spec.id;
    let done = bench.sh(id, "echo out; echo err >&2; exit 7").await;
    assert_eq!((done.stdout.as_str(), done.stderr.as_str()), ("out\n", "err\n"));
    assert_eq!((done.end.exit_code, done.end.signal), (7, None));
    assert_eq!(done.end.total_bytes, 8);

    let killed = bench.sh(id, "kill -9 $$").await.end;
    assert_eq!((killed.exit_code, killed.signal), (137, Some(9)));

    let env = BTreeMap::from([("ASKED".to_owned(), "with it".to_owned())]);
    let command = "printf '%s, %s: ' \"$CONFORMANCE\" \"$ASKED\"; cat";
    let stdin = Some(b"input".to_vec());
    let done = bench.run(id, &ExecStart { env, stdin, ..start(command) }).await;
    assert_eq!(done.stdout, "seen inside, with it: input");

    let missing = bench.driver.guest(id).expect("it has a guest");
    let argv = vec!["/no/such/program".to_owned()];
    let refused = missing.exec(&ExecStart { argv, ..start("") }).await;
    let told = match refused {
        Err(GuestError::Invalid(_) | GuestError::NotFound) => true,
        Ok(frames) => end_of(frames).await == 127,
        Err(_) => false,
    };
    assert!(told, "a program that is not there is not a fault of the sandbox");
    bench.remove(id).await;
}

pub(super) async fn a_command_ends_with_its_client(bench: &Bench) {
    let id = bench.create().await.spec.id;
    let command = start("echo $$; sleep 1000 & sleep 1000");
    let mut frames = bench.guest(id).exec(&command).await.expect("a command can be started");
    let pid = first_line(&mut frames).await;
    assert_eq!(bench.sh(id, &format!("kill -0 {pid}")).await.end.exit_code, 0, "it runs");
    drop(frames);
    eventually(bench, id, &format!("! kill -0 {pid}")).await;
    bench.remove(id).await;
}

pub(super) async fn a_detached_command_can_be_read_again(bench: &Bench) {
    let id = bench.create().await.spec.id;
    let guest = bench.guest(id);
    let command = ExecStart {
        detached: true,
        ..start("echo one; while [ ! -e go ]; do sleep 0.05; done; echo two; exit 3")
    };
    let mut frames = guest.exec(&command).await.expect("a command can be started");
    assert_eq!(first_line(&mut frames).await, "one");
    drop(frames);
    bench.write(id, "/workspace/go", b"").await;
    let mut frames = guest.exec_attach(&command.id, 4).await.expect("it can be read again");
    assert_eq!(first_line(&mut frames).await, "two");
    assert_eq!(end_of(frames).await, 3);

    let endless = ExecStart { detached: true, ..start("echo ready; sleep 1000") };
    let mut frames = guest.exec(&endless).await.expect("a command can be started");
    assert_eq!(first_line(&mut frames).await, "ready");
    guest.exec_kill(&endless.id).await.expect("a command can be killed");
    assert_eq!(end_of(frames).await, 137);
    let unknown = guest.exec_attach("ex-unknown", 0).await;
    assert!(matches!(unknown, Err(GuestError::NotFound)), "{unknown:?}");
    bench.remove(id).await;
}

pub(super) async fn a_command_is_ended_by_its_timeout(bench: &Bench) {
    let id = bench.create().await.spec.id;
    let command = ExecStart { timeout_ms: Some(100), ..start("echo begun; sleep 1000 | cat") };
    let done = bench.run(id, &command).await;
    assert!(done.end.timed_out, "{done:?}");
    assert_ne!(done.end.exit_code, 0);
    bench.remove(id).await;
}

pub(super) async fn files_go_in_and_out_unchanged(bench: &Bench) {
    let id = bench.create().await.spec.id;
    let bytes: Vec<u8> =
        (0..300_000_u32).map(|i| i.to_le_bytes()[usize::from(i % 3 == 0)]).collect();
    bench.write(id, "/workspace/a file", &bytes).await;
    assert_eq!(bench.read(id, "/workspace/a file").await, bytes);
    assert_eq!(bench.sh(id, "wc -c < 'a file'").await.stdout.trim(), "300000");
    bench.write(id, "/workspace/a file", b"").await;
    assert_eq!(bench.read(id, "/workspace/a file").await, b"");

    let guest = bench.guest(id);
    let missing = guest.read_file("/workspace/none").await.map(|file| file.size);
    assert!(matches!(missing, Err(GuestError::NotFound)), "{missing:?}");
    let no_parent = guest.write_file("/workspace/none/file", futures_util::stream::empty()).await;
    let refused = matches!(no_parent, Err(GuestError::NotFound | GuestError::Invalid(_)));
    assert!(refused, "{no_parent:?}");
    bench.remove(id).await;
}

pub(super) async fn the_workspace_of_a_stopped_sandbox_can_be_exported_and_imported(bench: &Bench) {
    let id = bench.create().await.spec.id;
    assert_eq!(bench.sh(id, "mkdir dir && echo exported > dir/out").await.end.exit_code, 0);
    let running = bench.driver.maintenance(id).await.err();
    assert!(matches!(running, Some(Error::Conflict { .. })), "{running:?}");
    bench.driver.stop(id, ASKED).await.expect("a sandbox can be stopped");

    let desk = bench.driver.maintenance(id).await.expect("its workspace can be reached");
    let workspace = desk.workspace.to_str().expect("a path of ours").to_owned();
    let archive = desk.guest.export_tar(&workspace).await.expect("it can be exported");
    let archive = archive.collect(16 << 20).await.expect("the archive can be read");
    assert_eq!(text_in(&archive, "dir/out").as_deref(), Some("exported\n"));

    let body = futures_util::stream::iter([Ok(archive_of("in", "imported\n").into())]);
    desk.guest.import_tar(&workspace, body).await.expect("it can be imported");
    bench.assert_phase(id, Phase::Stopped).await;
    drop(desk);

    bench.driver.start(id, Policy::none()).await.expect("it can be started");
    assert_eq!(bench.sh(id, "cat in dir/out").await.stdout, "imported\nexported\n");
    bench.remove(id).await;
}

async fn first_line(frames: &mut ExecFrames) -> String {
    let mut line = String::new();
    let read = async {
        while !line.ends_with('\n') {
            match StreamExt::next(frames).await.expect("there is more").expect("it can be read") {
                ExecFrame::Output { bytes, .. } => line += &String::from_utf8_lossy(&bytes),
                ExecFrame::Gap { .. } | ExecFrame::Keepalive => {}
                ExecFrame::End(end) => panic!("it ended: {end:?}"),
            }
        }
    };
    tokio::time::timeout(SOON, read).await.expect("it says something");
    line.trim().to_owned()
}

/// How it ends.
async fn end_of(mut frames: ExecFrames) -> i32 {
    let read = async {
        while let Some(frame) = StreamExt::next(&mut frames).await {
            if let ExecFrame::End(end) = frame.expect("it can be read") {
                return end.exit_code;
            }
        }
        panic!("it did not say how it ended");
    };
    tokio::time::timeout(SOON, read).await.expect("it ends")
}

/// Until a shell command succeeds.
async fn eventually(bench: &Bench, id: model::SandboxId, command: &str) {
    let tried = async {
        while bench.sh(id, command).await.end.exit_code != 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(SOON, tried).await.expect("it happens soon");
}

fn archive_of(name: &str, text: &str) -> Vec<u8> {
    let mut header = tar::Header::new_gnu();
    header.set_size(text.len() as u64);
    header.set_mode(0o644);
    let mut archive = tar::Builder::new(Vec::new());
    archive.append_data(&mut header, name, text.as_bytes()).expect("an archive in memory");
    archive.into_inner().expect("an archive in memory")
}

fn text_in(archive: &[u8], name: &str) -> Option<String> {
    let mut archive = tar::Archive::new(archive);
    for entry in archive.entries().expect("it is an archive") {
        let mut entry = entry.expect("it is an archive");
        let path = entry.path().expect("it has a path").into_owned();
        if path.strip_prefix(".").unwrap_or(&path) == std::path::Path::new(name) {
            let mut text = String::new();
            entry.read_to_string(&mut text).expect("it is text");
            return Some(text);
        }
    }
    None
}
