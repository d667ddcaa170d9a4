//! The binary that a sandbox starts as its PID 1.
//!
//! `guestd --listen-fd 3 [--cgroup-fd 4] [--agents-fd 5] --nonce N --user NAME --workdir DIR`; its environment is
//! the sandbox's. It prints nothing: what goes wrong before it serves is its exit code.
//!
//! With `--arguments-fd N` it is started before its sandbox is wanted: the rest of its arguments is read there, each
//! with a NUL behind it, up to the end, where `--go` must be the last. Without that nobody wants it any more. Until
//! then its root directory is being made, and it opens no file.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::fd::OwnedFd;
use std::process::ExitCode;

use guestd::{Accounts, Config, Listener, Orphans};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use tokio::signal::unix::{SignalKind, signal};

/// Above the guest's own, which is what the launcher gave it.
const OOM_SCORE_ADJ_STEP: i32 = 500;

/// Threads for the contents of files. The first one is made on first use.
const FILE_THREADS_MAX: usize = 8;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::from(70),
    }
}

fn run() -> std::io::Result<()> {
    #[cfg(target_env = "gnu")]
    guestd::keep_memory_small();
    // Nobody inside reads our memory or descriptors, short of root.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let mut arguments = Arguments::new();
    arguments.add(std::env::args().skip(1))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(FILE_THREADS_MAX)
        .thread_keep_alive(std::time::Duration::from_secs(2))
        .build()?;
    if let Some(rest) = arguments.rest.take() {
        arguments.add(wait_for(rest)?.into_iter())?;
    }
    fill_standard_descriptors()?;
    arguments.config.oom_score_adj =
        own_oom_score_adj().map(|own| (own + OOM_SCORE_ADJ_STEP).min(1000));
    let listen = arguments.listen.ok_or(ErrorKind::InvalidInput)?;
    runtime.block_on(async {
        let listener = Listener::from_fd(listen)?;
        let mut terminate = signal(SignalKind::terminate())?;
        let stop = async move {
            terminate.recv().await;
        };
        guestd::serve(listener, arguments.config, stop).await
    })
}

struct Arguments {
    listen: Option<OwnedFd>,
    rest: Option<OwnedFd>,
    config: Config,
}

impl Arguments {
    fn new() -> Self {
        let config = Config {
            nonce: String::new(),
            user: "root".into(),
            workdir: String::new(),
            env: std::env::vars_os()
                .filter_map(|(name, value)| {
                    Some((name.into_string().ok()?, value.into_string().ok()?))
                })
                .collect::<BTreeMap<_, _>>(),
            cgroup: None,
            agents: None,
            oom_score_adj: None,
            orphans: Orphans::Reap,
            accounts: Accounts::default(),
        };
        Self { listen: None, rest: None, config }
    }

    fn add(&mut self, mut arguments: impl Iterator<Item = String>) -> std::io::Result<()> {
        let config = &mut self.config;
        while let Some(name) = arguments.next() {
            let value = arguments.next().ok_or(ErrorKind::InvalidInput)?;
            match name.as_str() {
                "--listen-fd" => self.listen = Some(guestd::adopt_fd(&value)?),
                "--arguments-fd" => self.rest = Some(guestd::adopt_fd(&value)?),
                "--cgroup-fd" => config.cgroup = Some(guestd::adopt_fd(&value)?),
                "--agents-fd" => config.agents = Some(guestd::adopt_fd(&value)?),
                "--nonce" => config.nonce = value,
                "--user" => config.user = value,
                "--workdir" => config.workdir = value,
                "--hostname" => set_hostname(&value),
                _ => return Err(ErrorKind::InvalidInput.into()),
            }
        }
        Ok(())
    }
}

/// The arguments that come later.
fn wait_for(rest: OwnedFd) -> std::io::Result<Vec<String>> {
    let mut text = String::new();
    File::from(rest).read_to_string(&mut text)?;
    let text = text.strip_suffix("--go\0").ok_or(ErrorKind::UnexpectedEof)?;
    Ok(text.split_terminator('\0').map(str::to_owned).collect())
}

/// The launcher has usually done it; a guest without the right to is as good.
fn set_hostname(name: &str) {
    let _ = rustix::system::sethostname(name.as_bytes());
}

fn own_oom_score_adj() -> Option<i32> {
    std::fs::read_to_string("/proc/self/oom_score_adj").ok()?.trim().parse().ok()
}

/// So that no pipe of a command ever gets one of the numbers 0 to 2, which whoever started us has usually seen to.
fn fill_standard_descriptors() -> std::io::Result<()> {
    loop {
        let flags = rustix::fs::OFlags::RDWR;
        let opened = rustix::fs::open("/dev/null", flags, rustix::fs::Mode::empty())?;
        if std::os::fd::AsRawFd::as_raw_fd(&opened) > 2 {
            return Ok(());
        }
        std::mem::forget(opened);
    }
}
