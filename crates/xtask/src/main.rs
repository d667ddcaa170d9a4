//! The tools of this repository: `cargo xtask ci` is what has to pass before a change goes in.

mod bench;
mod ci;
mod demo;
mod say;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

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

/// The root of the repository.
fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).expect("this crate is in crates/xtask").to_owned()
}
