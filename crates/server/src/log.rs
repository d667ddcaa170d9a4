//! Logs: one line an event, to standard error, for people or for machines.

use anyhow::Context;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt;

use crate::config::{Log, LogFormat};

/// Sends everything that is traced from now on to standard error. Once a process.
pub fn start(settings: &Log) -> anyhow::Result<()> {
    // It tells of the ends of every message, which we do better.
    let filter = EnvFilter::try_new(format!("rmcp=warn,{}", settings.level))
        .with_context(|| format!("log.level: not a level: {:?}", settings.level))?;
    let lines = fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let started = match settings.format {
        LogFormat::Json => lines.json().flatten_event(true).try_init(),
        LogFormat::Pretty => {
            let colour = std::io::IsTerminal::is_terminal(&std::io::stderr());
            lines.with_ansi(colour).with_target(false).try_init()
        }
    };
    started.map_err(|error| anyhow::anyhow!("start logging: {error}"))
}
