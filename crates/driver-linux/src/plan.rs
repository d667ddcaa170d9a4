//! What the server tells the keeper: one launch, as data. It carries no secret and nothing of the
//! tenant's but limits; the environment reaches the guest over its socket.

use std::path::PathBuf;

use model::Limits;
use serde::{Deserialize, Serialize};

/// One launch of one sandbox.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct LaunchPlan {
    /// The sandbox's bare id, for messages.
    pub(crate) sandbox: String,
    /// What the guest answers in `/health`, so that nobody else can pass for it.
    pub(crate) nonce: String,
    /// First host uid and gid of its range of 65,536.
    pub(crate) uid_base: u32,
    pub(crate) root: RootPlan,
    /// Mounted at `/workspace`.
    pub(crate) workspace: PathBuf,
    pub(crate) limits: Limits,
    #[serde(default)]
    pub(crate) io: Option<IoLimit>,
    pub(crate) guest: GuestPlan,
    /// Whether to make the egress sockets now (a policy that allows something).
    pub(crate) egress: bool,
    /// Where the run record is written before the guest starts.
    pub(crate) record: PathBuf,
}

/// How fast a sandbox may read from its disk, and write to it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct IoLimit {
    /// `MAJOR:MINOR` of the block device.
    pub(crate) device: String,
    pub(crate) bytes_per_second: Option<u64>,
    pub(crate) operations_per_second: Option<u64>,
}

/// The root file system: an overlay of read-only layers under one writable directory.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct RootPlan {
    /// Top first.
    pub(crate) layers: Vec<PathBuf>,
    /// Read-only host directories over it: (host path, path inside, relative).
    pub(crate) binds: Vec<(PathBuf, String)>,
    /// Holds `upper` and `work`.
    pub(crate) upper: PathBuf,
    /// Skip flushing: what is thrown away need not reach the disk.
    pub(crate) volatile: bool,
    /// Whose `/app/config` is, in memory; without one there is none.
    #[serde(default)]
    pub(crate) config_uid: Option<u32>,
    /// A host directory of empty directories to build on; the host sees nothing mounted there.
    pub(crate) mount_point: PathBuf,
}

/// PID 1.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct GuestPlan {
    pub(crate) binary: PathBuf,
    /// The agent daemon, which the guest starts when it is wanted.
    #[serde(default)]
    pub(crate) agents: Option<PathBuf>,
    /// Where the host dials it.
    pub(crate) socket: PathBuf,
    pub(crate) user: String,
    pub(crate) workdir: String,
    pub(crate) hostname: String,
    /// Off only for templates that offer `sudo`.
    pub(crate) no_new_privs: bool,
    /// Programs may make namespaces of their own.
    #[serde(default)]
    pub(crate) nesting: bool,
}

/// What is known of a running incarnation; a file beside the spec, gone with the compute.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct RunRecord {
    pub(crate) incarnation: String,
    pub(crate) nonce: String,
    pub(crate) pid: i32,
    pub(crate) boot_id: String,
    pub(crate) uid_base: u32,
    /// When it began; with the pid it says which process it is.
    #[serde(default)]
    pub(crate) started_ticks: u64,
    /// Its cgroup v2 directory; `None` where this host gives us none.
    pub(crate) unified: Option<PathBuf>,
    pub(crate) legacy: Vec<PathBuf>,
    pub(crate) socket: PathBuf,
    pub(crate) started_at: jiff::Timestamp,
}

/// What the keeper is asked.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    Ping,
    Launch(Box<LaunchPlan>),
    /// The egress sockets of a running sandbox, made now if they were not before.
    Egress {
        incarnation: String,
        pid: i32,
    },
    /// Forget what is kept for an incarnation that ended.
    Forget {
        incarnation: String,
    },
    /// The incarnations whose cgroups are the keeper's: waiting launchers, and launches under way.
    Busy,
    /// End, if nothing runs.
    Quit,
}

/// What it answers. Descriptors of egress sockets travel beside the answer.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Reply {
    Pong { pid: i32 },
    Launched { pid: i32 },
    Egress,
    Busy { incarnations: Vec<String> },
    Done,
    Failed { step: String, error: String },
}
