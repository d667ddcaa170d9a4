//! What the assertions work on: one driver, specs, and short ways to use a guest.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use guest_proto::{ExecEnd, ExecFrame, ExecStart, Guest, OutputStream};
use jiff::Timestamp;
use model::{
    Clocks, ExecId, Limits, Name, OwnerId, Phase, Policy, PolicyName, SandboxId, SandboxSpec,
    Shape, Tier,
};
use tokio::sync::mpsc;

use super::{ASKED, Options};
use crate::{Driver, Exit, Launch, Observed};

/// Longer than anything here takes, also on a busy machine.
pub(super) const SOON: Duration = Duration::from_secs(30);

pub(super) struct Bench {
    pub(super) driver: Arc<dyn Driver>,
    pub(super) options: Options,
    pub(super) exits: Mutex<Option<mpsc::Receiver<Exit>>>,
    made: Mutex<Vec<SandboxId>>,
}

/// What a command did.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) stdout: String,
    pub(super) stderr: String,
    pub(super) end: ExecEnd,
}

impl Bench {
    pub(super) fn new(driver: Arc<dyn Driver>, options: Options) -> Self {
        let exits = driver.take_exits();
        assert!(exits.is_some(), "exits have one listener, and nobody else is there");
        assert!(driver.take_exits().is_none(), "exits have one listener");
        Self { driver, options, exits: Mutex::new(exits), made: Mutex::default() }
    }

    pub(super) fn launch(&self) -> Launch {
        let spec = SandboxSpec {
            id: SandboxId::generate(),
            owner: owner(),
            name: Name::generate(),
            shape: Shape::Image,
            template: self.options.template.clone(),
            image: Some(self.options.template.to_string()),
            tier: Tier::Persistent,
            clocks: Clocks::default(),
            limits: Limits { vcpu: 1, cpu_fraction: 1.0, memory_mib: 128, pids: 256, disk_gb: 1 },
            policy: policy("none"),
            env: BTreeMap::from([("CONFORMANCE".to_owned(), "seen inside".to_owned())]),
            metadata: serde_json::Map::new(),
            workspace: None,
            agent: None,
            payer: None,
            created_at: Timestamp::now(),
        };
        self.made.lock().unwrap_or_else(PoisonError::into_inner).push(spec.id);
        Launch { spec, policy: Policy::none() }
    }

    pub(super) async fn create(&self) -> Observed {
        let made = self.driver.create(self.launch()).await;
        made.expect("a sandbox can be made")
    }

    pub(super) async fn observe(&self, id: SandboxId) -> Observed {
        let observed = self.driver.observe(id).await.expect("a sandbox can be observed");
        observed.expect("the sandbox exists")
    }

    #[track_caller]
    pub(super) fn guest(&self, id: SandboxId) -> Guest {
        self.driver.guest(id).expect("a running sandbox has a guest")
    }

    pub(super) async fn assert_phase(&self, id: SandboxId, phase: Phase) {
        let observed = self.observe(id).await;
        assert_eq!(observed.phase, phase, "{observed:?}");
        let has_compute = matches!(phase, Phase::Running | Phase::Paused);
        assert_eq!(observed.incarnation.is_some(), has_compute, "{observed:?}");
    }

    pub(super) async fn remove(&self, id: SandboxId) {
        self.driver.remove(id, ASKED).await.expect("a sandbox can be removed");
    }

    /// Runs a shell command in the workspace to its end.
    pub(super) async fn sh(&self, id: SandboxId, command: &str) -> Done {
        self.run(id, &start(command)).await
    }

    pub(super) async fn run(&self, id: SandboxId, start: &ExecStart) -> Done {
        let work = run(self.guest(id), start);
        tokio::time::timeout(SOON, work).await.expect("the command ends")
    }

    pub(super) async fn write(&self, id: SandboxId, path: &str, bytes: &[u8]) {
        let pieces: Vec<_> =
            bytes.chunks(64 * 1024).map(|piece| Ok(bytes::Bytes::copy_from_slice(piece))).collect();
        let body = futures_util::stream::iter(pieces);
        self.guest(id).write_file(path, body).await.expect("a file can be written");
    }

    pub(super) async fn read(&self, id: SandboxId, path: &str) -> Vec<u8> {
        let file = self.guest(id).read_file(path).await.expect("a file can be read");
        file.body.collect(64 << 20).await.expect("a file can be read to its end").to_vec()
    }

    /// Removes everything that was made here, whatever state it is in.
    pub(super) async fn clear(&self) {
        let made = std::mem::take(&mut *self.made.lock().unwrap_or_else(PoisonError::into_inner));
        for id in made {
            // The assertions have spoken; this only tidies up.
            let _ = self.driver.remove(id, ASKED).await;
        }
    }
}

pub(super) fn owner() -> OwnerId {
    "usr_conformance".parse().expect("a constant owner")
}

pub(super) fn policy(name: &str) -> PolicyName {
    name.parse().expect("a constant policy name")
}

/// A shell command in the workspace.
pub(super) fn start(command: &str) -> ExecStart {
    ExecStart {
        id: ExecId::generate().to_string(),
        argv: vec!["/bin/sh".into(), "-c".into(), command.into()],
        cwd: Some("/workspace".into()),
        ..ExecStart::default()
    }
}

async fn run(guest: Guest, start: &ExecStart) -> Done {
    let mut frames = guest.exec(start).await.expect("a command can be started");
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    while let Some(frame) = StreamExt::next(&mut frames).await {
        match frame.expect("the output can be read") {
            ExecFrame::Output { stream: OutputStream::Stdout, bytes, .. } => stdout.extend(bytes),
            ExecFrame::Output { stream: OutputStream::Stderr, bytes, .. } => stderr.extend(bytes),
            ExecFrame::Gap { .. } | ExecFrame::Keepalive => {}
            ExecFrame::End(end) => {
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                return Done { stdout: text(&stdout), stderr: text(&stderr), end };
            }
        }
    }
    panic!("the command did not say how it ended");
}
