//! `bastide agents server`: the daemon in this process.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use agentd::host::passed_environment;
use agentd::{Cors, Token};
use clap::Args;
use http::HeaderValue;
use server::config::Log;
use tokio::net::TcpListener;

use crate::failure::Failure;

#[derive(Debug, Args)]
pub(crate) struct ServerArgs {
    /// The address to listen at
    #[arg(short = 'H', long, default_value = "127.0.0.1")]
    host: String,
    #[arg(short, long, default_value_t = 2468)]
    port: u16,
    /// Answer pages of this origin; any of these four flags turns such answers on
    #[arg(short = 'O', long, value_name = "URL")]
    cors_allow_origin: Vec<HeaderValue>,
    #[arg(short = 'M', long, value_name = "METHOD")]
    cors_allow_method: Vec<HeaderValue>,
    #[arg(short = 'A', long, value_name = "NAME")]
    cors_allow_header: Vec<HeaderValue>,
    /// Let pages send credentials
    #[arg(short = 'C', long)]
    cors_allow_credentials: bool,
    /// Taken for compatibility: nothing is ever sent
    #[arg(long)]
    no_telemetry: bool,
    /// Where sessions, logs and installed agents are kept
    #[arg(long, value_name = "DIR", env = "BASTIDE_AGENTS_DIR", hide_env_values = true)]
    data_dir: Option<PathBuf>,
    /// Where sessions work that do not say where; default: here
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Let agents see this variable too, beside the usual ones
    #[arg(long, value_name = "NAME")]
    pass_env: Vec<String>,
    /// How many seconds turns may go on when the daemon is told to stop
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    drain_seconds: u64,
    /// What to log: info, or info,agentd=debug
    #[arg(long, env = "RUST_LOG", hide_env_values = true, default_value = "info")]
    log_level: String,
    /// What the mock agent takes between two things that it says
    #[arg(long, value_name = "MS", default_value_t = 200, hide = true)]
    mock_delay_ms: u64,
}

pub(super) fn execute(
    args: &ServerArgs,
    token: Option<String>,
    no_token: bool,
) -> Result<ExitCode, Failure> {
    if token.is_none() && !no_token {
        let failure = Failure::new("missing --token or --no-token for server mode");
        return Err(failure.hint("with --no-token everybody who reaches the port may use it"));
    }
    server::log::start(&Log { level: args.log_level.clone(), ..Log::default() })?;
    let config = config(args, token)?;
    // One thread: most of what happens is waiting for agents.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind((args.host.as_str(), args.port)).await;
        let listener = listener.map_err(|error| {
            Failure::new(format!("cannot listen at {}:{}: {error}", args.host, args.port))
        })?;
        let address = listener.local_addr()?;
        tracing::info!("listening at {address}");
        let stop = async {
            if let Err(error) = server::signalled().await {
                tracing::error!("cannot watch for signals: {error:#}");
            }
        };
        agentd::serve(listener, config, stop).await?;
        Ok(ExitCode::SUCCESS)
    })
}

fn config(args: &ServerArgs, token: Option<String>) -> Result<agentd::Config, Failure> {
    let cors = Cors {
        origins: args.cors_allow_origin.clone(),
        methods: args.cors_allow_method.clone(),
        headers: args.cors_allow_header.clone(),
        credentials: args.cors_allow_credentials,
    };
    let directory = match &args.directory {
        Some(directory) => directory.canonicalize().map_err(|error| {
            Failure::new(format!("no such directory: {}: {error}", directory.display()))
        })?,
        None => std::env::current_dir()?,
    };
    Ok(agentd::Config {
        data_dir: args.data_dir.clone().unwrap_or_else(default_data_dir),
        directory,
        environment: passed_environment(std::env::vars_os(), &args.pass_env),
        token: token.map(Token::new),
        task: None,
        cors: cors.is_wanted().then_some(cors),
        patience: Duration::from_secs(args.drain_seconds),
        adopt_orphans: true,
        mock_delay: Duration::from_millis(args.mock_delay_ms),
        // This program, whatever became of its file.
        deictic: ["/proc/self/exe", "agents", "deictic"].map(Into::into).to_vec(),
    })
}

fn default_data_dir() -> PathBuf {
    let under_home = || std::env::home_dir().map(|home| home.join(".local/share"));
    let base = std::env::var_os("XDG_DATA_HOME").map(PathBuf::from).or_else(under_home);
    base.unwrap_or_else(|| PathBuf::from("/var/lib")).join("bastide-agents")
}
