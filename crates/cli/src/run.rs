//! `bastide run`: one command in a fresh sandbox, without a server. Nothing of it is left, however
//! it ends. There is no network inside unless one is asked for.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use driver_linux::egress::{Egress, EgressConfig, Sockets};
use driver_linux::template::TemplateStore;
use driver_linux::{OneShot, OneShotConfig, Privilege};
use guest_proto::{ExecStart, GUEST_PORT, Guest};
use model::{Limits, Policy, PolicyName, SandboxId, TemplateName};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::args::{DataDir, pair};
use crate::attach::{self, Lines, Program, Signals};
use crate::envd::Envd;
use crate::failure::Failure;
use crate::{block_on, out};

/// As shells answer for a command that they cannot find.
const NOT_FOUND: u8 = 127;
const DISK_GB_MAX: i64 = 1024;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  bastide run -- id
  bastide run -it -- bash
  bastide run --disk-gb 2 --memory-mib 512 --cpu-fraction 0.5 -- ./build.sh
  bastide run --allow example.com:443 -- curl https://example.com/
  tar -c . | bastide run --template standard -- sh -c 'tar -x && make'")]
pub(crate) struct RunArgs {
    /// What to make it from; `host` is this machine's own programs, read-only
    #[arg(long, short = 'T', default_value = "host")]
    template: TemplateName,
    /// Pass stdin on, which is done anyway; for those who are used to -it
    #[arg(long, short)]
    interactive: bool,
    /// Give the command a terminal
    #[arg(long, short)]
    tty: bool,
    /// As whom; default: the template's user
    #[arg(long, short)]
    user: Option<String>,
    /// Where to run it; default: /workspace
    #[arg(long, short = 'w', value_name = "DIR")]
    cwd: Option<String>,
    /// A variable for the command; may be repeated
    #[arg(long, short, value_name = "NAME=VALUE", value_parser = pair)]
    env: Vec<(String, String)>,
    /// Processors; default: the template's
    #[arg(long, value_name = "N")]
    vcpu: Option<u32>,
    /// A share of each processor, above 0 and up to 1; default: the template's
    #[arg(long, value_name = "SHARE", value_parser = share)]
    cpu_fraction: Option<f64>,
    /// Memory; default: the template's
    #[arg(long, value_name = "MIB")]
    memory_mib: Option<u32>,
    /// Processes; default: the template's
    #[arg(long, value_name = "N")]
    pids: Option<u32>,
    /// What it may write, needs root; default: what there is room for in the temporary directory
    #[arg(long, value_name = "GIB", value_parser = clap::value_parser!(u32).range(1..=DISK_GB_MAX))]
    disk_gb: Option<u32>,
    /// What it may reach: none, open (the public internet), or a policy of the configuration
    #[arg(long, value_name = "POLICY", default_value = "none")]
    network: PolicyName,
    /// A host, address or range that it may reach, as host:port, *.host or 10.0.0.0/8; may be repeated
    #[arg(long, value_name = "RULE")]
    allow: Vec<String>,
    /// Kill the command after so long
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u64>,
    #[command(flatten)]
    data: DataDir,
    #[arg(required = true, value_name = "COMMAND", trailing_var_arg = true)]
    command: Vec<String>,
}

pub(crate) fn execute(args: RunArgs) -> Result<ExitCode, Failure> {
    let data_dir = args.data.dir()?;
    // Before this process is somebody else: where the configuration is depends on who asks.
    let policy = policy(&args)?;
    if driver_linux::enter(&data_dir)? != Privilege::Host {
        tell_once(&data_dir);
    }
    let limits = limits(&args, &data_dir)?;
    let timeout = args.timeout.map(Duration::from_secs);
    let config = OneShotConfig {
        data_dir,
        template: args.template,
        limits,
        disk_gb: args.disk_gb,
        egress: !policy.is_closed(),
        runtime_dir: PathBuf::from("/run/bastide"),
    };
    // Before any runtime: it forks.
    let mut sandbox = OneShot::start(&config)?;
    let own = sandbox.env().clone();
    let env = own.clone().into_iter().chain(args.env).collect();
    let background = ExecStart {
        id: "start".into(),
        argv: sandbox.start_program().to_vec(),
        env: own,
        detached: true,
        ..ExecStart::default()
    };
    let program = Program { command: args.command, cwd: args.cwd, env };
    let user = args.user.unwrap_or_else(|| sandbox.user().to_owned());
    let way_out = sandbox.take_egress().map(|sockets| (sockets, policy));
    let (tty, user, program) = (args.tty, user.as_str(), &program);
    let attached = Attached { user, program, background: &background, tty, timeout };
    let result = block_on(run(sandbox.guest(), &attached, way_out));
    sandbox.close();
    match result {
        Err(failure) if failure.message.contains("no such program") => {
            out::failure(&failure);
            Ok(ExitCode::from(NOT_FOUND))
        }
        other => other,
    }
}

/// What is weaker without root, to a person, at the first run of a data directory.
fn tell_once(data_dir: &Path) {
    let mark = data_dir.join(".told-what-is-weaker");
    if mark.exists() || !std::io::stderr().is_terminal() {
        return;
    }
    out::note("running without root; weaker than with it (this is told once):");
    for weakness in driver_linux::weaknesses() {
        out::note(format!("- {}: {}", weakness.missing, weakness.effect));
        out::note(format!("  hint: {}", weakness.hint));
    }
    // It is told again if it cannot be noted.
    let noted = std::fs::create_dir_all(data_dir).and_then(|()| std::fs::write(mark, ""));
    drop(noted);
}

/// How the command is run.
struct Attached<'a> {
    user: &'a str,
    program: &'a Program,
    /// What the template itself runs, beside it.
    background: &'a ExecStart,
    tty: bool,
    timeout: Option<Duration>,
}

async fn run(
    guest: &Guest,
    attached: &Attached<'_>,
    way_out: Option<(Sockets, Policy)>,
) -> Result<ExitCode, Failure> {
    let Attached { user, program, background, tty, timeout } = *attached;
    let egress = Egress::new(EgressConfig::default(), TaskTracker::new(), CancellationToken::new());
    // Served for as long as the command runs.
    let _serving = match way_out {
        Some((sockets, policy)) => Some(egress.serve(SandboxId::generate(), sockets, policy)?),
        None => None,
    };
    if !background.argv.is_empty()
        && let Err(error) = guest.exec(background).await
    {
        // As in a server's sandboxes, it is no reason not to run the command.
        out::note(format!("the template's own program does not start: {error}"));
    }
    let open = async || -> Result<Envd, Failure> {
        let tunnel = guest
            .tunnel(GUEST_PORT)
            .await
            .map_err(|error| Failure::new(format!("cannot reach the sandbox: {error}")))?;
        Envd::over(tunnel, Some(user)).await
    };
    let lines = Lines { output: open().await?, input: open().await?, control: open().await? };
    if tty {
        attach::with_terminal(lines, program).await
    } else {
        attach::with_pipes(lines, program, Signals::Pass, timeout).await
    }
}

/// What it may reach: the named policy, and what was allowed beside it.
fn policy(args: &RunArgs) -> Result<Policy, Failure> {
    let mut policy = match args.network.as_str() {
        "none" => Policy::none(),
        "open" => Policy::open(),
        name => {
            let flags = server::config::Flags { config: args.data.config(), ..Default::default() };
            let config = server::config::load(&flags, &server::config::Environment::of_process())?;
            let named = config.engine().policies.remove(&args.network);
            named.ok_or_else(|| {
                Failure::new(format!("no such policy: {name}"))
                    .hint("none, open, or one that the file given with --config has")
            })?
        }
    };
    policy.rules.extend(Policy::parse(&args.allow).map_err(anyhow::Error::from)?.rules);
    Ok(policy)
}

/// The template's, with what was asked for instead.
fn limits(args: &RunArgs, data_dir: &Path) -> Result<Option<Limits>, Failure> {
    let is_default = args.vcpu.is_none() && args.cpu_fraction.is_none();
    if is_default && args.memory_mib.is_none() && args.pids.is_none() {
        return Ok(None);
    }
    let Some(built) = TemplateStore::open(data_dir)?.get(&args.template)? else { return Ok(None) };
    let own = built.template.limits;
    let limits = Limits {
        vcpu: args.vcpu.unwrap_or(own.vcpu),
        cpu_fraction: args.cpu_fraction.unwrap_or(own.cpu_fraction),
        memory_mib: args.memory_mib.unwrap_or(own.memory_mib),
        pids: args.pids.unwrap_or(own.pids),
        ..own
    };
    limits.check()?;
    Ok(Some(limits))
}

fn share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share| *share > 0.0 && *share <= 1.0);
    share.ok_or_else(|| "a number above 0 and up to 1, like 0.5".to_owned())
}
