//! The floor: the least that a sandbox of the same isolation costs here. Raw system calls, no HTTP,
//! nothing durable, no disk limit; the sandbox's PID 1 is this program's own copy, waiting on a pipe.
//!
//! It runs in a small process of its own (`xtask bench-floor`), so that cloning does not pay for the
//! benchmark's memory; that process measures one cycle for each line it reads.

mod inside;
mod sys;

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::mount::{OpenTreeFlags, open_tree};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, WaitOptions, waitpid};

use super::clock::Stopwatch;
use super::peers::{Contender, Cycle};
use super::tree;
use crate::say;

const UID_BASE: u32 = 200_000_000;

/// The benchmark's end.
pub(super) struct Floor {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Floor {
    pub(super) fn start(rootfs: &Path, work: &Path) -> anyhow::Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("bench-floor")
            .args([rootfs, work])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("start the floor")?;
        let to = child.stdin.take().context("the floor has no input")?;
        let from = BufReader::new(child.stdout.take().context("the floor has no output")?);
        Ok(Self { child, to, from })
    }
}

impl Contender for Floor {
    fn name(&self) -> &'static str {
        "floor"
    }

    fn cycle(&mut self) -> anyhow::Result<Cycle> {
        self.to.write_all(b"cycle\n")?;
        let mut line = String::new();
        self.from.read_line(&mut line)?;
        let times: Vec<u64> = line.split_whitespace().map_while(|t| t.parse().ok()).collect();
        let [first, again, pause, resume, whole] = times.as_slice() else {
            bail!("the floor failed: {line}");
        };
        let time = |nanos: &u64| Some(Duration::from_nanos(*nanos));
        Ok(Cycle {
            create: None,
            first: time(first),
            exec: time(again),
            pause: time(pause),
            resume: time(resume),
            whole: Duration::from_nanos(*whole),
        })
    }
}

impl Drop for Floor {
    fn drop(&mut self) {
        // It ends with its input; this is for one that hangs.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `xtask bench-floor ROOTFS WORK`.
pub(crate) fn serve(rootfs: &Path, work: &Path) -> anyhow::Result<()> {
    for line in std::io::stdin().lines() {
        line?;
        match cycle(rootfs, work) {
            Ok(times) => {
                let times: Vec<String> = times.iter().map(|t| t.as_nanos().to_string()).collect();
                say::line(&times.join(" "));
            }
            Err(error) => say::line(&format!("{error:#}")),
        }
    }
    Ok(())
}

/// Create and first command, a second command, freeze, thaw, all of it with removal.
fn cycle(rootfs: &Path, work: &Path) -> anyhow::Result<[Duration; 5]> {
    // Entering a cgroup can wait for the kernel (a grace period, when nobody has done so lately); being
    // born in one does not. So this process is in them before the clock starts, as ours are.
    let cgroups = tree::cgroups("bastide-bench-floor")?;
    enter(&cgroups[1..])?;
    let whole = Stopwatch::start();
    let mut sandbox = Sandbox::launch(rootfs, &work.join("floor"), cgroups)?;
    if let Err(error) = sandbox.exec() {
        sandbox.remove()?;
        return Err(error);
    }
    let first = whole.time();
    let watch = Stopwatch::start();
    sandbox.exec()?;
    let again = watch.time();
    let watch = Stopwatch::start();
    sandbox.freeze("1")?;
    let pause = watch.time();
    let watch = Stopwatch::start();
    sandbox.freeze("0")?;
    let resume = watch.time();
    let watch = Stopwatch::start();
    let cgroups = sandbox.remove()?;
    let whole = first + watch.time();
    // Empty cgroups are nobody's wait.
    let above: Vec<PathBuf> =
        cgroups[1..].iter().filter_map(|dir| Some(dir.parent()?.to_owned())).collect();
    enter(&above)?;
    cgroups.iter().try_for_each(|cgroup| tree::remove_cgroup(cgroup))?;
    Ok([first, again, pause, resume, whole])
}

struct Sandbox {
    pid: Pid,
    control: File,
    answers: File,
    cgroups: Vec<PathBuf>,
    dir: PathBuf,
}

impl Sandbox {
    fn launch(rootfs: &Path, dir: &Path, cgroups: Vec<PathBuf>) -> anyhow::Result<Self> {
        tree::make_owned(&dir.join("upper"), UID_BASE)?;
        tree::make_owned(&dir.join("work"), UID_BASE)?;
        let scratch = tree::scratch(dir)?;
        let unified = File::open(&cgroups[0])?;
        let (control_read, control_write) = pipe_with(PipeFlags::CLOEXEC)?;
        let (answers_read, answers_write) = pipe_with(PipeFlags::CLOEXEC)?;
        let pid = match sys::clone_into(unified.as_fd()).context("clone3")? {
            sys::Side::Child => inside::main(inside::Handed {
                control: control_read,
                answers: answers_write,
                dir: dir.to_owned(),
                scratch,
            }),
            sys::Side::Parent(pid) => pid,
        };
        let mut control = File::from(control_write);
        let mut answers = File::from(answers_read);
        let lower = attend(pid, rootfs)?;
        writeln!(control, "{}", lower.as_raw_fd())?;
        // The child has a table of its own from here on, so ours may be closed.
        let mut ready = [0];
        answers.read_exact(&mut ready)?;
        drop((control_read, answers_write));
        Ok(Self { pid, control, answers, cgroups, dir: dir.to_owned() })
    }

    fn exec(&mut self) -> anyhow::Result<()> {
        self.control.write_all(b"x")?;
        let mut answer = [0];
        self.answers.read_exact(&mut answer).context("PID 1 of the floor died")?;
        if answer != [b'+'] {
            let mut rest = String::new();
            self.answers.read_to_string(&mut rest)?;
            bail!("in the sandbox: {rest}");
        }
        Ok(())
    }

    fn freeze(&self, state: &str) -> anyhow::Result<()> {
        std::fs::write(self.cgroups[0].join("cgroup.freeze"), state)?;
        let wanted = format!("frozen {state}");
        for _ in 0..100_000 {
            if std::fs::read_to_string(self.cgroups[0].join("cgroup.events"))?.contains(&wanted) {
                return Ok(());
            }
        }
        bail!("the floor does not freeze")
    }

    fn remove(self) -> anyhow::Result<Vec<PathBuf>> {
        std::fs::write(self.cgroups[0].join("cgroup.kill"), "1")?;
        waitpid(Some(self.pid), WaitOptions::empty())?;
        std::fs::remove_dir_all(&self.dir).context("remove the floor's directories")?;
        Ok(self.cgroups)
    }
}

/// Moves this process into cgroups.
fn enter(cgroups: &[PathBuf]) -> anyhow::Result<()> {
    for cgroup in cgroups {
        let file = cgroup.join("cgroup.procs");
        std::fs::write(&file, "0").with_context(|| format!("enter {}", cgroup.display()))?;
    }
    Ok(())
}

/// Does from outside what the child cannot: maps ids, hands in the root.
fn attend(pid: Pid, rootfs: &Path) -> anyhow::Result<OwnedFd> {
    let pid = pid.as_raw_nonzero();
    let map = format!("0 {UID_BASE} 65536");
    std::fs::write(format!("/proc/{pid}/uid_map"), &map).context("map users")?;
    std::fs::write(format!("/proc/{pid}/gid_map"), &map).context("map groups")?;
    let userns = File::open(format!("/proc/{pid}/ns/user"))?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let lower = open_tree(rustix::fs::CWD, rootfs, flags).context("open the root")?;
    sys::map_owners(&lower, &userns).context("map owners of the root")?;
    Ok(lower)
}
