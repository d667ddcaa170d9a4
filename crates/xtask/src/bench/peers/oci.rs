//! `runc` and `crun`: a container of the same isolation as ours, from a bundle. The root is
//! read-only, so neither pays for an overlay.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::{Value, json};

use super::{Contender, Cycle, version};
use crate::bench::tree;
use crate::say;

pub(crate) struct Oci {
    program: &'static str,
    runner: Runner,
    dir: PathBuf,
    /// A container that stays, to measure commands in it.
    standing: bool,
}

impl Oci {
    pub(crate) fn new(program: &'static str, rootfs: &Path, work: &Path) -> anyhow::Result<Self> {
        version(program)?;
        let dir = work.join(program);
        for (bundle, command) in [("true", "/bin/true"), ("sleep", "/bin/sleep")] {
            let bundle = dir.join(bundle);
            std::fs::create_dir_all(&bundle)?;
            let name = format!("bastide-bench-{program}-{command}").replace("/bin/", "");
            let config = config(rootfs, command, &name);
            std::fs::write(bundle.join("config.json"), serde_json::to_vec(&config)?)?;
        }
        let runner = Runner::start(program)?;
        let mut oci = Self { program, runner, dir, standing: false };
        oci.cycle_of("true").with_context(|| format!("{program} does not run here"))?;
        oci.call(&["run", "--detach", "--bundle", &oci.bundle("sleep"), "bastide-bench-standing"])
            .with_context(|| format!("{program} run --detach"))?;
        oci.standing = true;
        Ok(oci)
    }

    fn bundle(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }

    fn cycle_of(&mut self, bundle: &str) -> anyhow::Result<Duration> {
        self.call(&["run", "--bundle", &self.bundle(bundle), "bastide-bench-once"])
    }

    fn call(&mut self, arguments: &[&str]) -> anyhow::Result<Duration> {
        let state = self.dir.join("state").display().to_string();
        let mut words = vec![self.program, "--root", &state];
        words.extend(arguments);
        self.runner.run(&words)
    }
}

impl Contender for Oci {
    fn name(&self) -> &'static str {
        self.program
    }

    fn cycle(&mut self) -> anyhow::Result<Cycle> {
        let whole = self.cycle_of("true")?;
        let exec = self.call(&["exec", "bastide-bench-standing", "/bin/true"])?;
        let pause = self.call(&["pause", "bastide-bench-standing"])?;
        let resume = self.call(&["resume", "bastide-bench-standing"])?;
        Ok(Cycle {
            exec: Some(exec),
            pause: Some(pause),
            resume: Some(resume),
            whole,
            ..Cycle::default()
        })
    }
}

impl Drop for Oci {
    fn drop(&mut self) {
        if self.standing
            && let Err(error) = self.call(&["delete", "--force", "bastide-bench-standing"])
        {
            say::error(&format!("{}: {error:#}", self.program));
        }
    }
}

/// A process that starts programs and times them. `crun` refuses cgroups where v2 stands beside v1
/// with a controller of its own, so its runner has v2 out of sight, in a mount namespace of its own.
struct Runner {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Runner {
    fn start(program: &str) -> anyhow::Result<Self> {
        let own = std::env::current_exe()?;
        let hybrid = tree::unified().is_some_and(|dir| dir.ends_with("unified"));
        let mut command = Command::new("unshare");
        let script = if program == "crun" && hybrid {
            "umount /sys/fs/cgroup/unified && exec \"$0\" bench-runner"
        } else {
            "exec \"$0\" bench-runner"
        };
        command.args(["--mount", "sh", "-c", script]).arg(own);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let to = child.stdin.take().context("no input")?;
        let from = BufReader::new(child.stdout.take().context("no output")?);
        Ok(Self { child, to, from })
    }

    fn run(&mut self, words: &[&str]) -> anyhow::Result<Duration> {
        writeln!(self.to, "{}", serde_json::to_string(words)?)?;
        let mut line = String::new();
        self.from.read_line(&mut line)?;
        match line.trim().parse() {
            Ok(nanos) => Ok(Duration::from_nanos(nanos)),
            Err(_) => bail!("{}", line.trim()),
        }
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        // It ends with its input; this is for one that hangs.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `xtask bench-runner`: a line is a command as JSON; the answer is how long it took, or an error.
pub(crate) fn serve() -> anyhow::Result<()> {
    for line in std::io::stdin().lines() {
        let words: Vec<String> = serde_json::from_str(&line?)?;
        let [program, arguments @ ..] = words.as_slice() else { bail!("an empty command") };
        let watch = crate::bench::clock::Stopwatch::start();
        // A detached container keeps the descriptors it was started with, so none may be a pipe.
        let errors = std::env::temp_dir().join(format!("bench-runner-{}", std::process::id()));
        let status = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(&errors)?)
            .status()?;
        let took = watch.time();
        let said = std::fs::read_to_string(&errors).unwrap_or_default();
        std::fs::remove_file(&errors)?;
        if status.success() {
            say::line(&took.as_nanos().to_string());
        } else {
            say::line(&format!("{program} ended with {status}: {}", said.replace('\n', " ")));
        }
    }
    Ok(())
}

fn config(rootfs: &Path, command: &str, name: &str) -> Value {
    let args = if command == "/bin/sleep" { vec![command, "3600"] } else { vec![command] };
    let map = json!([{ "containerID": 0, "hostID": 200_000_000, "size": 65536 }]);
    let kept = json!(["CAP_CHOWN", "CAP_SETUID", "CAP_SETGID", "CAP_KILL", "CAP_DAC_OVERRIDE"]);
    let kinds = ["pid", "mount", "network", "ipc", "uts", "user", "cgroup"];
    let namespaces: Vec<Value> = kinds.iter().map(|kind| json!({ "type": kind })).collect();
    json!({
        "ociVersion": "1.0.2",
        "root": { "path": rootfs, "readonly": true },
        "hostname": "peer",
        "process": {
            "user": { "uid": 0, "gid": 0 }, "cwd": "/", "args": args, "noNewPrivileges": true,
            "env": ["PATH=/bin"],
            "capabilities": { "bounding": kept, "effective": kept, "permitted": kept },
        },
        "mounts": [
            { "destination": "/proc", "type": "proc", "source": "proc" },
            { "destination": "/dev", "type": "tmpfs", "source": "tmpfs",
              "options": ["nosuid", "mode=755", "size=65536k"] },
            { "destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid"] },
        ],
        "linux": {
            "namespaces": namespaces, "uidMappings": map, "gidMappings": map,
            "cgroupsPath": format!("/{name}"),
            "resources": {
                "memory": { "limit": 1_073_741_824 }, "pids": { "limit": 1024 },
                "cpu": { "quota": 100_000, "period": 100_000 },
            },
            "seccomp": {
                "defaultAction": "SCMP_ACT_ALLOW", "architectures": [],
                "syscalls": [{
                    "names": ["mount", "umount2", "pivot_root", "bpf", "keyctl", "add_key",
                        "request_key", "kexec_load", "init_module", "delete_module",
                        "perf_event_open", "userfaultfd", "io_uring_setup", "swapon", "swapoff"],
                    "action": "SCMP_ACT_ERRNO",
                }],
            },
            "maskedPaths": ["/proc/kcore", "/proc/keys", "/proc/timer_list"],
            "readonlyPaths": ["/proc/sys", "/proc/irq", "/proc/bus"],
        },
    })
}
