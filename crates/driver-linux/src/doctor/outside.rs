//! Attacks that take two sandboxes, or a look from the host's side.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use driver::Driver;
use model::{EndReason, Policy, SandboxId};
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use super::Outcome;
use super::stage::{LIMITS, Stage, Verdict};
use crate::privilege::Privilege;

#[derive(Clone, Copy)]
pub(super) enum Outside {
    Links,
    Races,
    Paths,
    Archive,
    GuestProgram,
    Setuid,
    Restart,
    Ports,
    Neighbour,
    Watch,
    Budget(&'static str),
    Forks,
    Memory,
    Locks,
    Disk,
    Unharmed,
}

type Result = anyhow::Result<Verdict>;

pub(super) async fn run(stage: &mut Stage, outside: Outside) -> Result {
    match outside {
        Outside::Links => links(stage).await,
        Outside::Races => races(stage).await,
        Outside::Paths => paths(stage).await,
        Outside::Archive => archive(stage).await,
        Outside::GuestProgram => guest_program(stage).await,
        Outside::Setuid => setuid(stage).await,
        Outside::Restart => restart(stage).await,
        Outside::Ports => ports(stage).await,
        Outside::Neighbour => neighbour(stage).await,
        Outside::Watch => watch(stage).await,
        Outside::Budget(kind) => budget(stage, kind).await,
        Outside::Forks => forks(stage).await,
        Outside::Memory => memory(stage).await,
        Outside::Locks => locks(stage).await,
        Outside::Disk => disk(stage).await,
        Outside::Unharmed => unharmed(stage).await,
    }
}

async fn links(stage: &mut Stage) -> Result {
    let mark = stage.mark.display().to_string();
    let planted = Verdict::parse(&stage.program(stage.attacker, "plant", &[mark]).await?);
    if planted.outcome != Outcome::Held {
        return Ok(planted);
    }
    let names = (0..64).flat_map(|n| [format!("fd{n}"), format!("p1{n}")]);
    let others = ["cwd", "root", "cgroup", "plain", "task"].map(str::to_owned);
    let paths = names.chain(others).map(|name| format!("/workspace/links/{name}"));
    try_files(stage, paths.collect()).await
}

/// What was a file when it was looked at may be a link when it is opened.
async fn races(stage: &mut Stage) -> Result {
    const LASTS: Duration = Duration::from_secs(2);
    let mark = stage.mark.display().to_string();
    let name = mark.rsplit('/').next().unwrap_or_default();
    let each = ["/workspace/race/file".to_owned(), format!("/workspace/race/folder/{name}")];
    let swapping = stage.holding(stage.attacker, "swap", std::slice::from_ref(&mark)).await?;
    let (started, mut rounds) = (Instant::now(), 0);
    while started.elapsed() < LASTS {
        let tried = try_files(stage, each.to_vec()).await?;
        if tried.outcome != Outcome::Held {
            return Ok(tried);
        }
        rounds += 1;
    }
    if !swapping.goes_on().await {
        return Ok(Verdict::broken("the attack itself failed: it swaps no more"));
    }
    Ok(Verdict::held(format!("{rounds} times they lead nowhere")))
}

async fn paths(stage: &mut Stage) -> Result {
    let up = "../".repeat(16);
    let mark = stage.mark.display().to_string();
    let mut paths = vec![
        mark.clone(),
        format!("/workspace/{up}{mark}"),
        format!("{up}{mark}"),
        format!("~/{up}{mark}"),
        format!("/workspace/\0{mark}"),
        format!("/./..//{mark}"),
    ];
    for way in ["1/root", "1/cwd", "self/root", "self/cwd", "self/fd/3", "self/fd/4"] {
        paths.push(format!("/proc/{way}/{up}{mark}"));
        paths.push(format!("/proc/{way}{mark}"));
    }
    try_files(stage, paths).await
}

/// Reads and writes each path as a client of the sandbox would.
async fn try_files(stage: &mut Stage, paths: Vec<String>) -> Result {
    let guest = stage.driver.guest(stage.attacker).map_err(anyhow::Error::from)?;
    for path in &paths {
        if let Ok(file) = guest.read_file(path).await
            && let Ok(bytes) = file.body.collect(1 << 20).await
            && bytes.as_ref() == b"of the host"
        {
            return Ok(Verdict::broken(format!("read a file of the host as {path}")));
        }
        let body = futures_util::stream::iter([Ok("escaped".into())]);
        let _ = guest.write_file(path, body).await;
    }
    stage.host_is_unharmed()?;
    Ok(Verdict::held(format!("{} paths lead nowhere", paths.len())))
}

async fn archive(stage: &mut Stage) -> Result {
    let mark = stage.mark.display().to_string();
    let up = format!("{}{mark}", "../".repeat(16));
    let folder = stage.dir.display().to_string();
    let bombs: Vec<(&str, Vec<Vec<u8>>)> = vec![
        ("../", vec![entry(&up, b'0', "")]),
        ("absolute", vec![entry(&mark, b'0', "")]),
        ("link", vec![entry("l", b'2', &mark), entry("l", b'0', "")]),
        ("folder", vec![entry("d", b'2', &folder), entry("d/mark", b'0', "")]),
        ("hard link", vec![entry("h", b'1', &mark), entry("h", b'0', "")]),
        ("fd", vec![entry("f", b'2', &format!("/proc/self/fd/4/{up}")), entry("f", b'0', "")]),
        ("device", vec![entry("dev", b'4', "")]),
    ];
    let guest = stage.driver.guest(stage.attacker).map_err(anyhow::Error::from)?;
    let count = bombs.len();
    for (name, entries) in bombs {
        let mut bytes = entries.concat();
        bytes.extend_from_slice(&[0; 1024]);
        let body = futures_util::stream::iter([Ok(bytes.into())]);
        let _ = guest.import_tar("/workspace", body).await;
        stage.host_is_unharmed().with_context(|| format!("an archive with {name}"))?;
    }
    let device = stage.program(stage.attacker, "devices", &[]).await?;
    let device = Verdict::parse(&device);
    if device.outcome != Outcome::Held {
        return Ok(device);
    }
    Ok(Verdict::held(format!("{count} archives stay in the workspace")))
}

/// One entry of a tar archive; what is a file has the content `escaped`.
fn entry(name: &str, kind: u8, target: &str) -> Vec<u8> {
    let content: &[u8] = if kind == b'0' { b"escaped" } else { b"" };
    let mut block = vec![0u8; 512];
    let mut put = |at: usize, bytes: &[u8], most: usize| {
        for (to, from) in block[at..].iter_mut().zip(bytes.iter().take(most)) {
            *to = *from;
        }
    };
    put(0, name.as_bytes(), 100);
    put(100, b"0000777", 7);
    put(108, b"0000000", 7);
    put(116, b"0000000", 7);
    put(124, format!("{:011o}", content.len()).as_bytes(), 11);
    put(136, b"00000000000", 11);
    put(148, b"        ", 8);
    put(156, &[kind], 1);
    put(157, target.as_bytes(), 100);
    put(257, b"ustar\x0000", 8);
    put(329, b"0000001", 7);
    put(337, b"0000001", 7);
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    if !content.is_empty() {
        block.extend_from_slice(content);
        block.resize(1024, 0);
    }
    block
}

async fn guest_program(stage: &mut Stage) -> Result {
    let before = digest_of(&stage.data().join("guest"))?;
    let mark = stage.mark.display().to_string();
    let inside =
        stage.program(stage.attacker, "guest_program", std::slice::from_ref(&mark)).await?;
    let inside = Verdict::parse(&inside);
    if inside.outcome != Outcome::Held {
        return Ok(inside);
    }
    // The guest starts a script whose interpreter is the guest; then its file is asked for again.
    let guest = stage.driver.guest(stage.attacker).map_err(anyhow::Error::from)?;
    let start = guest_proto::ExecStart {
        id: model::ExecId::generate().to_string(),
        argv: vec!["/tmp/through-exe".to_owned()],
        user: Some("root".to_owned()),
        timeout_ms: Some(3000),
        ..guest_proto::ExecStart::default()
    };
    let running = guest.exec(&start).await;
    let again = stage.program(stage.attacker, "guest_program", &[mark]).await?;
    drop(running);
    if digest_of(&stage.data().join("guest"))? != before {
        return Ok(Verdict::broken("the program of the next sandboxes was changed"));
    }
    Ok(Verdict::parse(&again))
}

fn digest_of(dir: &Path) -> anyhow::Result<Vec<u8>> {
    let mut digest = Sha256::new();
    for entry in std::fs::read_dir(dir).context("list guests")? {
        digest.update(std::fs::read(entry.context("list guests")?.path()).context("read a guest")?);
    }
    Ok(digest.finalize().to_vec())
}

async fn setuid(stage: &mut Stage) -> Result {
    let made = Verdict::parse(&stage.program(stage.attacker, "setuid", &[]).await?);
    if made.outcome != Outcome::Held {
        return Ok(made);
    }
    let mut found = 0;
    for path in stage.driver.disks_of(stage.attacker) {
        let flags = rustix::fs::statvfs(&path).context("statvfs")?.f_flag;
        let wanted = rustix::fs::StatVfsMountFlags::NOSUID | rustix::fs::StatVfsMountFlags::NODEV;
        let hidden = Privilege::current() != Privilege::Host && is_private(&path);
        if !flags.contains(wanted) && !hidden {
            let path = path.display();
            let seen = format!("{path} is not mounted nosuid and nodev, and others can reach it");
            return Ok(Verdict::broken(seen));
        }
        found += 1;
    }
    Ok(Verdict::held(format!("{found} disks are out of the reach of the host's programs")))
}

/// Whether a directory above lets nobody through but its owner.
fn is_private(path: &Path) -> bool {
    let mode_of = |dir: &Path| std::fs::metadata(dir).map(|found| found.permissions().mode());
    path.ancestors().any(|dir| mode_of(dir).is_ok_and(|mode| mode & 0o077 == 0))
}

async fn restart(stage: &mut Stage) -> Result {
    stage.program(stage.neighbour, "tamper", &[]).await?;
    let id = stage.neighbour;
    stage.driver.stop(id, EndReason::UserRequest).await?;
    stage.driver.start(id, Policy::none()).await?;
    Ok(Verdict::parse(&stage.program(id, "as_before", &[]).await?))
}

async fn ports(stage: &mut Stage) -> Result {
    let held = stage.holding(stage.attacker, "take_port", &[]).await?;
    let seen = answers(stage, stage.attacker).await?;
    drop(held);
    Ok(seen)
}

/// Whether the guest of `id` is the one that was started.
async fn answers(stage: &Stage, id: SandboxId) -> Result {
    let guest = stage.driver.guest(id).map_err(anyhow::Error::from)?;
    let health = guest.health().await.context("ask the guest")?;
    match stage.driver.nonce_of(id) {
        Some(nonce) if nonce == health.nonce => Ok(Verdict::held("the guest answers, nobody else")),
        _ => Ok(Verdict::broken("somebody else answers")),
    }
}

async fn neighbour(stage: &mut Stage) -> Result {
    const KEY: &str = "1337";
    let held = stage.holding(stage.neighbour, "be_neighbour", &[KEY.to_owned()]).await?;
    let arguments = [KEY.to_owned(), stage.neighbour.bare()];
    let text = stage.program(stage.attacker, "neighbour", &arguments).await?;
    drop(held);
    Ok(Verdict::parse(&text))
}

async fn watch(stage: &mut Stage) -> Result {
    let ours = stage.holding(stage.attacker, "lock_shared", &[]).await?;
    let theirs = stage.holding(stage.neighbour, "lock_shared", &[]).await;
    let Ok(theirs) = theirs else { return Ok(Verdict::broken("one lock for all sandboxes")) };
    let file = std::fs::File::open("/usr/bin/env").context("open /usr/bin/env")?;
    if file.try_lock().is_err() {
        return Ok(Verdict::broken("a file of the host is locked from inside"));
    }
    let watching = stage.holding(stage.attacker, "watch_shared", &[]).await?;
    for _ in 0..5 {
        stage.program(stage.neighbour, "keyrings", &[]).await?;
        std::process::Command::new("/usr/bin/env").arg("true").status().context("run env")?;
    }
    let seen = watching.rest().await?;
    drop((ours, theirs));
    Ok(seen)
}

async fn budget(stage: &mut Stage, kind: &'static str) -> Result {
    let held = stage.holding(stage.attacker, "hog", &[kind.to_owned()]).await?;
    let text = stage.program(stage.neighbour, "probe", &[kind.to_owned()]).await?;
    let verdict = Verdict::parse(&text);
    Ok(Verdict { seen: format!("{}; {}", held.first, verdict.seen), ..verdict })
}

async fn forks(stage: &mut Stage) -> Result {
    let most = LIMITS.pids.to_string();
    let text = stage.program(stage.attacker, "forks", &[most]).await?;
    let usage = stage.driver.usage(stage.attacker).await?;
    if usage.pids > u64::from(LIMITS.pids) {
        return Ok(Verdict::broken(format!("{} processes", usage.pids)));
    }
    answers(stage, stage.neighbour).await?;
    Ok(Verdict::parse(&text))
}

async fn memory(stage: &mut Stage) -> Result {
    let text = stage.program(stage.attacker, "memory", &[LIMITS.memory_mib.to_string()]).await?;
    let kills = stage.driver.usage(stage.attacker).await?.oom_kills;
    let verdict = Verdict::parse(&text);
    if verdict.outcome == Outcome::Held && kills == 0 {
        return Ok(Verdict::broken("the host counted no kill"));
    }
    answers(stage, stage.neighbour).await?;
    Ok(verdict)
}

/// 50,000 locks take the kernel 10 MB; the program that holds them a little more.
async fn locks(stage: &mut Stage) -> Result {
    const COUNTED_BYTES_MIN: u64 = 9 << 20;
    let idle = stage.holding(stage.attacker, "lock_shared", &[]).await?;
    let before = stage.driver.usage(stage.attacker).await?.memory_bytes;
    drop(idle);
    let held = stage.holding(stage.attacker, "locks", &[]).await?;
    let after = stage.driver.usage(stage.attacker).await?.memory_bytes;
    drop(held);
    if after.saturating_sub(before) >= COUNTED_BYTES_MIN {
        return Ok(Verdict::held("locks are counted as memory"));
    }
    Ok(Verdict::weak("this kernel does not count the memory of locks: 200 bytes each, without end"))
}

async fn disk(stage: &mut Stage) -> Result {
    if !stage.driver.capabilities().disk_limit {
        return Ok(Verdict::weak("disk_gb is not enforced by this kind of pool"));
    }
    let text = stage.program(stage.attacker, "disk", &[LIMITS.disk_gb.to_string()]).await?;
    let guest = stage.driver.guest(stage.neighbour).map_err(anyhow::Error::from)?;
    let body = futures_util::stream::iter([Ok(vec![7u8; 1 << 20].into())]);
    guest.write_file("/workspace/still", body).await.context("the neighbour writes")?;
    Ok(Verdict::parse(&text))
}

async fn unharmed(stage: &mut Stage) -> Result {
    stage.host_is_unharmed()?;
    for id in [stage.attacker, stage.neighbour] {
        let seen = answers(stage, id).await?;
        if seen.outcome != Outcome::Held {
            return Ok(seen);
        }
    }
    Ok(Verdict::held("the file is unwritten, the process lives, both guests answer"))
}
