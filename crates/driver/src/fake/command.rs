//! Commands of a fake guest: process groups on this host, with everything they wrote kept.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use bytes::{Bytes, BytesMut};
use futures_util::{Stream, stream};
use guest_proto::{ExecEnd, ExecFrame, ExecStart, OutputStream, frame};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::guest::inside;

pub(super) struct Commands {
    root: PathBuf,
    env: BTreeMap<String, String>,
    ended: CancellationToken,
    tasks: TaskTracker,
    known: Mutex<BTreeMap<String, Arc<Known>>>,
}

/// One command and what it wrote.
struct Known {
    log: Mutex<Log>,
    /// Grows with the log.
    version: watch::Sender<u64>,
    killed: CancellationToken,
}

#[derive(Default)]
struct Log {
    frames: Vec<ExecFrame>,
    bytes: u64,
}

impl Commands {
    pub(super) fn new(
        root: PathBuf,
        env: BTreeMap<String, String>,
        ended: CancellationToken,
        tasks: TaskTracker,
    ) -> Self {
        Self { root, env, ended, tasks, known: Mutex::default() }
    }

    pub(super) fn start(
        &self,
        start: ExecStart,
    ) -> anyhow::Result<impl Stream<Item = Bytes> + Send + 'static> {
        let child = self.spawn(&start)?;
        let known = Arc::new(Known {
            log: Mutex::default(),
            version: watch::Sender::new(0),
            killed: self.ended.child_token(),
        });
        let hold = (!start.detached).then(|| known.killed.clone().drop_guard());
        self.known().insert(start.id.clone(), Arc::clone(&known));
        self.tasks.spawn(run(child, start, Arc::clone(&known)));
        Ok(known.follow(0, hold))
    }

    pub(super) fn attach(
        &self,
        id: &str,
        offset: u64,
    ) -> Option<impl Stream<Item = Bytes> + Send + 'static> {
        Some(self.known().get(id).cloned()?.follow(offset, None))
    }

    /// Those whose end nobody was told of.
    pub(super) fn running(&self) -> Vec<String> {
        let known = self.known();
        let running = known.iter().filter(|(_, known)| {
            let log = known.log.lock().unwrap_or_else(PoisonError::into_inner);
            !matches!(log.frames.last(), Some(ExecFrame::End(_)))
        });
        running.map(|(id, _)| id.clone()).collect()
    }

    pub(super) fn kill(&self, id: &str) -> bool {
        self.known().get(id).inspect(|known| known.killed.cancel()).is_some()
    }

    fn spawn(&self, start: &ExecStart) -> anyhow::Result<Child> {
        let (program, arguments) = start.argv.split_first().context("no command")?;
        let cwd = inside(&self.root, start.cwd.as_deref().unwrap_or("/workspace"));
        Command::new(program)
            .args(arguments)
            .current_dir(cwd.context("not an absolute path")?)
            .env("HOME", &self.root)
            .envs(&self.env)
            .envs(&start.env)
            .process_group(0)
            .kill_on_drop(true)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot run the command")
    }

    fn known(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Arc<Known>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn run(mut child: Child, start: ExecStart, known: Arc<Known>) {
    let began = Instant::now();
    let group = Group(child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)));
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let feed = async {
        if let (Some(mut pipe), Some(bytes)) = (stdin, start.stdin) {
            // The command may end without reading it.
            let _ = pipe.write_all(&bytes).await;
        }
    };
    let work = async {
        let out = copy(stdout, OutputStream::Stdout, &known);
        let err = copy(stderr, OutputStream::Stderr, &known);
        tokio::join!(feed, out, err);
        child.wait().await
    };
    let timeout = start.timeout_ms.map_or(Duration::MAX, Duration::from_millis);
    let outcome = tokio::select! {
        status = work => Some(status),
        () = known.killed.cancelled() => None,
        () = tokio::time::sleep(timeout) => None,
    };
    let timed_out = outcome.is_none() && !known.killed.is_cancelled();
    drop(group);
    let status = match outcome {
        Some(status) => status.ok(),
        None => child.wait().await.ok(),
    };
    known.end(status, timed_out, began.elapsed());
}

/// A process group that goes with this, also with what its command left behind.
struct Group(Option<Pid>);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            // Fails when nothing is left.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

async fn copy(pipe: Option<impl AsyncRead + Unpin>, stream: OutputStream, known: &Known) {
    let Some(mut pipe) = pipe else { return };
    let mut buffer = BytesMut::with_capacity(64 * 1024);
    while let Ok(1..) = pipe.read_buf(&mut buffer).await {
        known.push(|offset| ExecFrame::Output { stream, offset, bytes: buffer.split().freeze() });
        buffer.reserve(64 * 1024);
    }
}

impl Known {
    fn push(&self, make: impl FnOnce(u64) -> ExecFrame) {
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        let frame = make(log.bytes);
        if let ExecFrame::Output { bytes, .. } = &frame {
            log.bytes += bytes.len() as u64;
        }
        log.frames.push(frame);
        drop(log);
        self.version.send_modify(|version| *version += 1);
    }

    fn end(&self, status: Option<ExitStatus>, timed_out: bool, took: Duration) {
        let signal = status.and_then(|status| status.signal());
        let code = status.and_then(|status| status.code());
        let duration_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        self.push(|total_bytes| {
            let exit_code = code.unwrap_or_else(|| 128 + signal.unwrap_or(9));
            ExecFrame::End(ExecEnd { exit_code, signal, timed_out, duration_ms, total_bytes })
        });
    }

    /// Everything from byte `offset` on until the end. `hold` is dropped with the stream.
    fn follow(
        self: Arc<Self>,
        offset: u64,
        hold: Option<tokio_util::sync::DropGuard>,
    ) -> impl Stream<Item = Bytes> + Send + 'static {
        let version = self.version.subscribe();
        let state = (self, version, 0_usize, false, hold);
        stream::unfold(state, move |(known, mut version, mut index, ended, hold)| async move {
            if ended {
                return None;
            }
            let seen = *version.borrow_and_update();
            let frames = known.frames_after(index);
            if frames.is_empty() {
                // The sender lives in `known`.
                let _ = version.wait_for(|version| *version != seen).await;
                return Some((Bytes::new(), (known, version, index, false, hold)));
            }
            index += frames.len();
            let ended = matches!(frames.last(), Some(ExecFrame::End(_)));
            let mut out = BytesMut::new();
            for piece in frames.into_iter().filter_map(|piece| from(piece, offset)) {
                frame::encode(&piece, &mut out);
            }
            Some((out.freeze(), (known, version, index, ended, hold)))
        })
    }

    fn frames_after(&self, index: usize) -> Vec<ExecFrame> {
        let log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        log.frames.get(index..).unwrap_or_default().to_vec()
    }
}

/// What of a frame lies at or after `offset`.
fn from(piece: ExecFrame, wanted: u64) -> Option<ExecFrame> {
    let ExecFrame::Output { stream, offset, bytes } = piece else { return Some(piece) };
    let skip = usize::try_from(wanted.saturating_sub(offset)).unwrap_or(usize::MAX);
    if skip >= bytes.len() {
        return None;
    }
    Some(ExecFrame::Output { stream, offset: offset + skip as u64, bytes: bytes.slice(skip..) })
}
