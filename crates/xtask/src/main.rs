//! The tools of this repository: `cargo xtask ci` is what has to pass before a change goes in.

mod bench;
mod ci;
mod demo;
mod say;
mod soak;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use clap::{Parser, Subcommand};

/// Tools of this repository
#[derive(Debug, Parser)]
#[command(name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Bench(bench::BenchArgs),
    /// The floor's own process; started by `bench`
    #[command(hide = true)]
    BenchFloor {
        rootfs: PathBuf,
        work: PathBuf,
    },
    /// Starts programs and times them; started by `bench`
    #[command(hide = true)]
    BenchRunner,
    /// Format, lints, tidy, tests and documentation: all of it, then a summary
    Ci,
    /// Everything once, from the template to the destroyed sandbox, with every result checked
    Demo {
        /// The program to show; default: the release build
        #[arg(long, value_name = "PROGRAM")]
        bastide: Option<PathBuf>,
    },
    /// Kill servers, keepers, launchers and guests at random while clients work; nothing may be lost
    Soak {
        /// The program to kill; default: the release build
        #[arg(long, value_name = "PROGRAM")]
        bastide: Option<PathBuf>,
        /// What a run that failed printed; default: another every time
        #[arg(long)]
        seed: Option<u64>,
        #[arg(long, default_value_t = 2000)]
        kills: u32,
        /// End after this long even if that is fewer kills
        #[arg(long, default_value_t = 3600)]
        seconds: u64,
        /// Of the server: `--sweep-seconds=2`
        #[arg(last = true)]
        settings: Vec<String>,
    },
    /// What no other tool checks: headers, lengths, crate edges, licences, words
    Tidy,
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Bench(args) => bench::run(&root(), &args),
        Command::BenchFloor { rootfs, work } => bench::serve_floor(&rootfs, &work),
        Command::BenchRunner => bench::serve_runner(),
        Command::Ci => ci::run(&root()),
        Command::Demo { bastide } => {
            demo::run(&bastide.unwrap_or_else(|| root().join("target/release/bastide")))
        }
        Command::Soak { bastide, seed, kills, seconds, settings } => {
            let bastide = bastide.unwrap_or_else(|| root().join("target/release/bastide"));
            run_soak(&bastide, seed, (kills, seconds), &settings)
        }
        Command::Tidy => tidy::run(&root()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say::error(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run_soak(
    bastide: &Path,
    seed: Option<u64>,
    (kills, seconds): (u32, u64),
    settings: &[String],
) -> anyhow::Result<()> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    let tally = soak::run(&soak::Soak {
        bastide,
        seed: seed.unwrap_or(u64::from(now.subsec_nanos())),
        kills,
        within: Duration::from_secs(seconds),
        settings: &settings.iter().map(String::as_str).collect::<Vec<_>>(),
        say: &say::line,
    })?;
    say::line(&format!("{tally:#?}"));
    Ok(())
}

/// The root of the repository.
fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).expect("this crate is in crates/xtask").to_owned()
}
