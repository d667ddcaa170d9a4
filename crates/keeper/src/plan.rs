//! What the server tells the keeper: one launch, as data. It carries no secret and nothing of the
//! tenant's but limits; the environment reaches the guest over its socket.

use std::path::PathBuf;

use model::Limits;
use serde::{Deserialize, Serialize};

/// One launch of one sandbox.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LaunchPlan {
    /// The sandbox's bare id, for messages.
    pub sandbox: String,
    /// What the guest answers in `/health`, so that nobody else can pass for it.
    pub nonce: String,
    /// First host uid and gid of its range of 65,536.
    pub uid_base: u32,
    pub root: RootPlan,
    /// Mounted at `/workspace`.
    pub workspace: PathBuf,
    pub limits: Limits,
    #[serde(default)]
    pub io: Option<IoLimit>,
    pub guest: GuestPlan,
    /// Whether to make the egress sockets now (a policy that allows something).
    pub egress: bool,
    /// Where the run record is written before the guest starts.
    pub record: PathBuf,
    /// Whether the disks are still being made: a byte after the request tells when they are.
    #[serde(default)]
    pub disks_follow: bool,
    /// The ranges that the sandboxes after this one are likely to get, so that the next can be begun.
    #[serde(default)]
    pub next_uid_bases: Vec<u32>,
    /// Whether the server takes two answers: [`Reply::Launched`] with `unfinished` when the guest starts, and
    /// [`Reply::Done`] when the sandbox is whole.
    #[serde(default)]
    pub takes_two_answers: bool,
}

/// What must be known of a launch to begin it. It differs little from one sandbox to the next, so that it can be
/// guessed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outline {
    pub uid_base: u32,
    pub limits: Limits,
    pub egress: bool,
    pub mount_point: PathBuf,
    pub binary: PathBuf,
    pub agents: Option<PathBuf>,
    pub can_wait: bool,
    pub no_new_privs: bool,
    pub nesting: bool,
}

impl LaunchPlan {
    pub fn outline(&self) -> Outline {
        let guest = &self.guest;
        Outline {
            uid_base: self.uid_base,
            limits: self.limits,
            egress: self.egress,
            mount_point: self.root.mount_point.clone(),
            binary: guest.binary.clone(),
            agents: guest.agents.clone(),
            can_wait: guest.can_wait,
            no_new_privs: guest.no_new_privs,
            nesting: guest.nesting,
        }
    }
}

/// How fast a sandbox may read from its disk, and write to it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct IoLimit {
    /// `MAJOR:MINOR` of the block device.
    pub device: String,
    pub bytes_per_second: Option<u64>,
    pub operations_per_second: Option<u64>,
}

/// The root file system: an overlay of read-only layers under one writable directory.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RootPlan {
    /// Top first.
    pub layers: Vec<PathBuf>,
    /// Read-only host directories over it: (host path, path inside, relative).
    pub binds: Vec<(PathBuf, String)>,
    /// Holds `upper` and `work`.
    pub upper: PathBuf,
    /// Skip flushing: what is thrown away need not reach the disk.
    pub volatile: bool,
    /// Whose `/app/config` is, in memory; without one there is none.
    #[serde(default)]
    pub config_uid: Option<u32>,
    /// A host directory of empty directories to build on; the host sees nothing mounted there.
    pub mount_point: PathBuf,
}

/// PID 1.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct GuestPlan {
    pub binary: PathBuf,
    /// Whether the program takes arguments after it was started. Those of older servers do not.
    #[serde(default)]
    pub can_wait: bool,
    /// The agent daemon, which the guest starts when it is wanted.
    #[serde(default)]
    pub agents: Option<PathBuf>,
    /// Where the host dials it.
    pub socket: PathBuf,
    pub user: String,
    pub workdir: String,
    pub hostname: String,
    /// Off only for templates that offer `sudo`.
    pub no_new_privs: bool,
    /// Programs may make namespaces of their own.
    #[serde(default)]
    pub nesting: bool,
}

/// What is known of a running incarnation; a file beside the spec, gone with the compute.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunRecord {
    pub incarnation: String,
    pub nonce: String,
    pub pid: i32,
    pub boot_id: String,
    pub uid_base: u32,
    /// When it began; with the pid it says which process it is.
    #[serde(default)]
    pub started_ticks: u64,
    /// Its cgroup v2 directory; `None` where this host gives us none.
    pub unified: Option<PathBuf>,
    pub legacy: Vec<PathBuf>,
    pub socket: PathBuf,
    pub started_at: jiff::Timestamp,
}

/// What the keeper is asked.
#[derive(Debug, Serialize, Deserialize)]
pub enum Request {
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
pub enum Reply {
    Pong {
        pid: i32,
        /// Whether a launch may be asked for before its disks are made. Keepers of older servers say nothing.
        #[serde(default)]
        disks_may_follow: bool,
    },
    Launched {
        pid: i32,
        /// Whether another answer follows. Keepers of older servers are done by now.
        #[serde(default)]
        unfinished: bool,
    },
    Egress,
    Busy {
        incarnations: Vec<String>,
    },
    Done,
    Failed {
        step: String,
        error: String,
    },
}

#[cfg(test)]
mod tests {
    use super::Reply;

    #[test]
    fn an_older_keeper_does_not_wait_for_disks() {
        let said = serde_json::from_str(r#"{"Pong":{"pid":7}}"#);
        assert!(matches!(said, Ok(Reply::Pong { pid: 7, disks_may_follow: false })));
    }

    #[test]
    fn an_older_keeper_has_finished_when_it_answers() {
        let said = serde_json::from_str(r#"{"Launched":{"pid":7}}"#);
        assert!(matches!(said, Ok(Reply::Launched { pid: 7, unfinished: false })));
    }
}
