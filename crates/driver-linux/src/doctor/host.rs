//! What this host has, lacks, and is set to. Reads only.

use std::fs;
use std::path::Path;

use super::{Outcome, Row};

/// Overlay layers and mounts are passed by descriptor from this version on.
const KERNEL_MIN: (u32, u32) = (6, 15);
/// Sandboxes may have 1,024 processes each by default.
const PIDS_MIN: u64 = 131_072;
/// A file that is open costs about this much of a sandbox's memory.
const OPEN_FILE_BYTES: u64 = 256;
const FREE_BYTES_MIN: u64 = 5 << 30;

/// Checks the host for what sandboxes need, and for what makes them weaker.
pub fn check_host(data_dir: &Path) -> Vec<Row> {
    let mut rows = vec![kernel(), root(), groups(), limits_of_groups(), file_systems(), tools()];
    rows.extend([
        free_space(data_dir),
        disk_pool(data_dir),
        swap(),
        core_dumps(),
        process_numbers(),
        open_files(),
    ]);
    rows.extend([huge_pages(), processor(), python()]);
    rows
}

fn row(what: &str, how: &str, checked: Result<String, (Outcome, String, &str)>) -> Row {
    let (outcome, seen, hint) = match checked {
        Ok(seen) => (Outcome::Held, seen, None),
        Err((outcome, seen, hint)) => (outcome, seen, Some(hint.to_owned())),
    };
    Row { area: "host", what: what.to_owned(), how: how.to_owned(), outcome, seen, hint }
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

fn number(path: &str) -> Option<u64> {
    read(path).parse().ok()
}

fn kernel() -> Row {
    let release = read("/proc/sys/kernel/osrelease");
    let mut parts = release.split(['.', '-']).map(|part| part.parse::<u32>().unwrap_or_default());
    let version = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let checked = if version >= KERNEL_MIN {
        Ok(release)
    } else {
        Err((Outcome::Broken, release, "sandboxes need Linux 6.15 or later"))
    };
    row("kernel", "its version", checked)
}

fn root() -> Row {
    let checked = if rustix::process::geteuid().is_root() {
        Ok("root".to_owned())
    } else {
        let hint = "run it as root; what an ordinary user gets is in docs/rootless.md";
        Err((Outcome::Weak, "an ordinary user".to_owned(), hint))
    };
    row("privileges", "who runs this", checked)
}

fn mounts() -> String {
    read("/proc/self/mountinfo")
}

fn groups() -> Row {
    let found = mounts().lines().any(|line| line.contains(" - cgroup2 "));
    let hint = "mount it: mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified";
    let checked = if found {
        Ok("mounted".to_owned())
    } else {
        Err((Outcome::Broken, "no cgroup v2 mount".to_owned(), hint))
    };
    row("control groups", "a mount of version 2, for freeze and kill", checked)
}

fn limits_of_groups() -> Row {
    let mounts = mounts();
    let root = mounts.lines().find(|line| line.contains(" - cgroup2 "));
    let root = root.and_then(|line| line.split(' ').nth(4)).unwrap_or_default().to_owned();
    let unified = read(&format!("{root}/cgroup.controllers"));
    let (mut seen, mut lacking) = (Vec::new(), Vec::new());
    for name in ["memory", "cpu", "pids", "io"] {
        let legacy = if name == "io" { "blkio" } else { name };
        let has = |line: &str| {
            let options = line.split(" - cgroup ").nth(1).and_then(|rest| rest.rsplit(' ').next());
            options.is_some_and(|options| options.split(',').any(|option| option == legacy))
        };
        if unified.split_whitespace().any(|one| one == name) {
            seen.push(format!("{name} v2"));
        } else if mounts.lines().any(has) {
            seen.push(format!("{name} v1"));
        } else {
            lacking.push(name);
        }
    }
    let checked = match lacking.as_slice() {
        [] => Ok(seen.join(", ")),
        ["io"] => Err((Outcome::Weak, "no io controller".to_owned(), "io limits cannot be set")),
        lacking => {
            let hint = "enable them at boot (cgroup_enable=memory) or in the kernel";
            Err((Outcome::Broken, format!("no controller: {}", lacking.join(", ")), hint))
        }
    };
    row("limits", "controllers of memory, cpu, pids and io", checked)
}

fn file_systems() -> Row {
    let known = read("/proc/filesystems");
    let has = |name: &str| known.lines().any(|line| line.trim().ends_with(name));
    let loops = Path::new("/dev/loop-control").exists();
    let checked = match (has("overlay"), has("btrfs") && loops, has("ext4") && loops) {
        (false, ..) => Err((Outcome::Broken, "no overlay".to_owned(), "modprobe overlay")),
        (true, true, _) => Ok("overlay, btrfs, loop devices".to_owned()),
        (true, false, true) => {
            Err((Outcome::Weak, "no btrfs".to_owned(), "disks are images, slower to make"))
        }
        (true, false, false) => {
            let hint = "modprobe btrfs loop; without them disk_gb is not enforced";
            Err((Outcome::Weak, "neither btrfs nor loop devices".to_owned(), hint))
        }
    };
    row("file systems", "what the kernel has", checked)
}

fn tools() -> Row {
    let wanted = [("mkfs.btrfs", "btrfs-progs"), ("mkfs.ext4", "e2fsprogs"), ("mmdebstrap", "")];
    let found = |name: &str| {
        ["/usr/sbin", "/usr/bin", "/sbin", "/bin"]
            .iter()
            .any(|dir| Path::new(dir).join(name).exists())
    };
    let lacking: Vec<&str> =
        wanted.iter().map(|(name, _)| *name).filter(|name| !found(name)).collect();
    let checked = if lacking.is_empty() {
        Ok("mkfs.btrfs, mkfs.ext4, mmdebstrap".to_owned())
    } else {
        let hint = "apt-get install btrfs-progs e2fsprogs mmdebstrap";
        Err((Outcome::Weak, format!("missing: {}", lacking.join(", ")), hint))
    };
    row("tools", "programs for disks and templates", checked)
}

fn python() -> Row {
    let checked = if Path::new("/usr/bin/python3").exists() {
        Ok("/usr/bin/python3".to_owned())
    } else {
        let hint = "apt-get install python3; the attacks are written in it";
        Err((Outcome::Weak, "no python3: attacks are skipped".to_owned(), hint))
    };
    row("attacks", "what they run on", checked)
}

fn free_space(data_dir: &Path) -> Row {
    let dir = data_dir.ancestors().find(|dir| dir.exists()).unwrap_or(Path::new("/"));
    let free = rustix::fs::statvfs(dir).map_or(0, |stat| stat.f_bavail * stat.f_frsize);
    let seen = format!("{} GiB free at {}", free >> 30, dir.display());
    let hint = "make room, or set data_dir to a larger file system";
    let checked = if free >= FREE_BYTES_MIN { Ok(seen) } else { Err((Outcome::Weak, seen, hint)) };
    row("disk", "free space for the data directory", checked)
}

fn disk_pool(data_dir: &Path) -> Row {
    let seen = crate::pool::describe(data_dir);
    let hint = "with btrfs or ext4 and loop devices, a new data directory gets another kind";
    let checked = match seen {
        Some((seen, true)) => Ok(seen.to_owned()),
        Some((seen, false)) => Err((Outcome::Weak, seen.to_owned(), hint)),
        None => Ok("none yet: the first start makes one".to_owned()),
    };
    row("disk pool", "its kind, and whether it enforces disk_gb", checked)
}

fn swap() -> Row {
    let on = read("/proc/swaps").lines().count() > 1;
    let counted = mounts().lines().any(|line| {
        let mount = line.split(' ').nth(4).unwrap_or_default();
        Path::new(mount).join("memory.memsw.limit_in_bytes").exists()
            || Path::new(mount).join("cgroup.controllers").exists()
                && read(&format!("{mount}/cgroup.controllers")).contains("memory")
    });
    let checked = match (on, counted) {
        (false, _) => Ok("none".to_owned()),
        (true, true) => Ok("on, and counted".to_owned()),
        (true, false) => {
            let hint = "boot with swapaccount=1, or swapoff -a";
            Err((Outcome::Weak, "on, and not counted: sandboxes may fill it".to_owned(), hint))
        }
    };
    row("swap", "whether memory limits cover it", checked)
}

fn core_dumps() -> Row {
    let pattern = read("/proc/sys/kernel/core_pattern");
    let checked = if pattern.starts_with('|') {
        let hint =
            "sysctl kernel.core_pattern=core; a crash inside runs that program as root outside";
        Err((Outcome::Weak, format!("a program of the host: {pattern}"), hint))
    } else {
        Ok(format!("a file inside: {pattern}"))
    };
    row("core dumps", "kernel.core_pattern", checked)
}

fn process_numbers() -> Row {
    let most = number("/proc/sys/kernel/pid_max").unwrap_or_default();
    let seen = format!("{most} processes on the whole host");
    let hint = "sysctl kernel.pid_max=4194304; a few dozen sandboxes can use them all up";
    let checked = if most >= PIDS_MIN { Ok(seen) } else { Err((Outcome::Weak, seen, hint)) };
    row("process numbers", "kernel.pid_max", checked)
}

fn open_files() -> Row {
    let most = number("/proc/sys/fs/file-max").unwrap_or(u64::MAX);
    let memory = read("/proc/meminfo");
    let total = memory.lines().next().and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
    let possible = total.unwrap_or(0u64) * 1024 / OPEN_FILE_BYTES;
    let hint = "sysctl fs.file-max=9223372036854775807; then memory limits bound them";
    let checked = if most >= possible {
        Ok("bounded by memory".to_owned())
    } else {
        Err((
            Outcome::Weak,
            format!("{most} on the whole host: one sandbox of several GiB can use them all up"),
            hint,
        ))
    };
    row("open files", "fs.file-max", checked)
}

fn huge_pages() -> Row {
    let pages = number("/proc/sys/vm/nr_hugepages").unwrap_or_default();
    let checked = if pages == 0 {
        Ok("none are reserved".to_owned())
    } else {
        let hint = "sysctl vm.nr_hugepages=0; sandboxes can take them, uncounted";
        Err((Outcome::Weak, format!("{pages} are reserved"), hint))
    };
    row("huge pages", "vm.nr_hugepages", checked)
}

fn processor() -> Row {
    let dir = "/sys/devices/system/cpu/vulnerabilities";
    let mut weak: Vec<String> = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if read(&entry.path().display().to_string()).starts_with("Vulnerable") {
            weak.push(entry.file_name().display().to_string());
        }
    }
    weak.sort();
    let checked = if weak.is_empty() {
        Ok("no vulnerability without a mitigation".to_owned())
    } else {
        let hint = "update the microcode and the kernel; sandboxes share the processor";
        Err((Outcome::Weak, format!("vulnerable: {}", weak.join(", ")), hint))
    };
    row("processor", "what the kernel says of its vulnerabilities", checked)
}
