//! What a host does not give this process, and what is weaker for that: for `serve` to say at its
//! start, `run` once, and `doctor` in its table.

use std::fs;

use rustix::process::{WaitOptions, waitpid};
use rustix::thread::UnshareFlags;

use super::{Privilege, subids};
use crate::cgroup::Hierarchy;
use crate::egress::{self, Steering};
use crate::sys::{self, Fork};

/// Something that sandboxes of this process do without.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Weakness {
    /// One word for programs.
    pub code: &'static str,
    /// What is missing.
    pub missing: String,
    /// What that means for whoever relies on the walls.
    pub effect: &'static str,
    /// How to have it.
    pub hint: String,
}

/// Everything that is weaker than under the host's root, the worst first; nothing for that one. Call
/// it after `super::enter` and before any runtime: it forks to try things.
pub fn weaknesses() -> Vec<Weakness> {
    let privilege = Privilege::current();
    if privilege == Privilege::Host {
        return Vec::new();
    }
    let mut all = Vec::new();
    ids(privilege, &mut all);
    groups(&mut all);
    if !can_steer() {
        all.push(Weakness {
            code: "egress",
            missing: "nftables with tproxy in a network namespace of one's own".into(),
            effect: "no policy but none works: a sandbox that may reach something does not start",
            hint: "sudo modprobe -a nf_tables nft_tproxy".into(),
        });
    }
    all.push(Weakness {
        code: "disk",
        missing: "loop devices and btrfs".into(),
        effect: "disk_gb is not enforced: a sandbox can fill the data directory's file system",
        hint: "run as root, or keep the data directory on a file system of its own".into(),
    });
    all.push(Weakness {
        code: "devices",
        missing: "device nodes of each sandbox's own".into(),
        effect: "a program inside can tell (inotify) that somebody uses /dev/null, not who or what for",
        hint: "run as root".into(),
    });
    all
}

fn ids(privilege: Privilege, all: &mut Vec<Weakness>) {
    if !privilege.has_one_id() {
        all.push(Weakness {
            code: "shared_ids",
            missing: "a range of ids for each sandbox".into(),
            effect: "budgets that the kernel keeps by user (pipes, keys) are shared by all sandboxes, \
                     and root inside has your own id outside",
            hint: "run as root".into(),
        });
        return;
    }
    let (uid, gid) = (outside("uid_map"), outside("gid_map"));
    let why = subids::of_user(uid, gid).err();
    let why = why.unwrap_or_else(|| "this namespace was made with one id".into());
    all.push(Weakness {
        code: "one_id",
        missing: format!("ids beside your own: {why}"),
        effect: "every account in a sandbox is root there and you outside, and your other groups stay; \
                 budgets that the kernel keeps by user (inotify, pipes) are shared by all sandboxes",
        hint: "sudo apt-get install uidmap; sudo usermod --add-subuids 100000-165535 \
               --add-subgids 100000-165535 USER"
            .into(),
    });
}

/// What id 0 of this process is outside.
fn outside(map: &str) -> u32 {
    let text = fs::read_to_string(format!("/proc/self/{map}")).unwrap_or_default();
    text.split_ascii_whitespace().nth(1).and_then(|id| id.parse().ok()).unwrap_or_default()
}

fn groups(all: &mut Vec<Weakness>) {
    const HINT: &str = "systemd-run --user --scope -p Delegate=yes bastide …";
    // Looked for under a name that nobody has; what it made goes again.
    let hierarchy = Hierarchy::detect("probe").ok();
    let lacking: Vec<&str> = ["memory", "cpu", "pids"]
        .into_iter()
        .filter(|controller| !hierarchy.as_ref().is_some_and(|found| found.bounds(controller)))
        .collect();
    let has_groups = hierarchy.as_ref().is_some_and(Hierarchy::has_groups);
    if let Some(hierarchy) = hierarchy {
        hierarchy.remove();
    }
    if !has_groups {
        all.push(Weakness {
            code: "cgroups",
            missing: "a control group that was delegated to you".into(),
            effect: "memory is limited for each process only, cpu not at all, processes by number; no \
                     pause, no warm pool, no counters; what leaves its command's session outlives it",
            hint: HINT.into(),
        });
    } else if !lacking.is_empty() {
        all.push(Weakness {
            code: "controllers",
            missing: format!("the cgroup controllers {} in your group", lacking.join(", ")),
            effect: "what they would limit is not: memory for each process only, processes by number",
            hint: HINT.into(),
        });
    }
}

/// Tries it, in a network namespace of a child.
fn can_steer() -> bool {
    match sys::fork() {
        Ok(Fork::Child) => {
            let tried = sys::unshare(UnshareFlags::NEWNET)
                .is_ok_and(|()| egress::open_in_current_netns(Steering::Nftables).is_ok());
            sys::exit_now(i32::from(!tried))
        }
        Ok(Fork::Parent(child)) => {
            let ended = waitpid(Some(child), WaitOptions::empty());
            matches!(ended, Ok(Some((_, status))) if status.exit_status() == Some(0))
        }
        Err(_) => false,
    }
}
