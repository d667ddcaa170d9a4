//! The daemon as sandboxes get it: `agentd --listen ADDRESS [--data-dir DIR] [--log FILE]`, with its
//! token as the first line of standard input. When it listens it says `ready` on standard output; when it
//! cannot, why. People use `bastide agents server`.
//!
//! `agentd deictic …` is our own agent: the daemon starts it so, and a task can be given to it alone.

mod diary;

use std::io::{BufRead as _, Write as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use agentd::host::passed_environment;
use agentd::{Config, TaskPlace, Token};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

/// This program, wherever its file is: in a sandbox it has no path.
const THIS: &str = "/proc/self/exe";

const DEICTIC: &str = "deictic";

/// A sandbox that is stopped does not wait for long.
const PATIENCE: Duration = Duration::from_secs(2);

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1).peekable();
    if arguments.next_if(|first| first == DEICTIC).is_some() {
        return agentd::deictic_main(arguments);
    }
    match run(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("the daemon ends: {error}");
            // Whoever started it may have gone.
            let _ = writeln!(std::io::stdout(), "{error}");
            ExitCode::from(70)
        }
    }
}

fn run(arguments: impl Iterator<Item = String>) -> std::io::Result<()> {
    // Nobody reads our memory. In a sandbox this holds already, because the program cannot be read.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    let arguments = Arguments::parse(arguments)?;
    if let Some(log) = &arguments.log {
        diary::keep(log);
    }
    let mut token = String::new();
    std::io::stdin().lock().read_line(&mut token)?;
    let token = token.trim();
    if token.is_empty() {
        return Err(std::io::Error::other("no token came"));
    }
    let home = std::env::home_dir().unwrap_or_else(|| "/".into());
    let config = Config {
        data_dir: arguments.data_dir.unwrap_or_else(|| home.join(".local/share/bastide-agents")),
        directory: std::env::current_dir()?,
        environment: passed_environment(std::env::vars_os(), &[]),
        token: Some(Token::new(token)),
        task: Some(TaskPlace::default()),
        cors: None,
        patience: PATIENCE,
        adopt_orphans: false,
        mock_delay: Duration::from_millis(200),
        deictic: vec![THIS.into(), DEICTIC.into()],
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let address = arguments.listen;
        let listener = TcpListener::bind(address).await.map_err(|error| {
            std::io::Error::new(error.kind(), format!("cannot listen at {address}: {error}"))
        })?;
        tracing::info!("listening at {address}");
        let mut terminate = signal(SignalKind::terminate())?;
        std::fs::create_dir_all(&config.data_dir).map_err(|error| {
            let path = config.data_dir.display();
            std::io::Error::new(error.kind(), format!("cannot make {path}: {error}"))
        })?;
        std::io::stdout().write_all(b"ready\n")?;
        std::io::stdout().flush()?;
        let stop = async move {
            terminate.recv().await;
        };
        agentd::serve(listener, config, stop).await
    })
}

struct Arguments {
    listen: SocketAddr,
    data_dir: Option<PathBuf>,
    log: Option<PathBuf>,
}

impl Arguments {
    fn parse(mut arguments: impl Iterator<Item = String>) -> std::io::Result<Self> {
        let invalid = || std::io::Error::from(std::io::ErrorKind::InvalidInput);
        let (mut listen, mut data_dir, mut log) = (None, None, None);
        while let Some(name) = arguments.next() {
            let value = arguments.next().ok_or_else(invalid)?;
            match name.as_str() {
                "--listen" => listen = Some(value.parse().map_err(|_| invalid())?),
                "--data-dir" => data_dir = Some(value.into()),
                "--log" => log = Some(value.into()),
                _ => return Err(invalid()),
            }
        }
        Ok(Self { listen: listen.ok_or_else(invalid)?, data_dir, log })
    }
}
