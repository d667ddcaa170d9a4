//! `bastide doctor`: checks this host and attacks sandboxes of its own; prints what held. It needs no
//! server, disturbs none, and leaves nothing.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use driver_linux::doctor::{self, DoctorConfig, Outcome, Row, UserCheck};
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::args::{DataDir, Shown};
use crate::failure::Failure;
use crate::out;

#[derive(Debug, Args)]
#[command(after_help = "\
The exit code is 0 when everything held, 1 when anything did not. What is weak works, but could be \
better on this host; what to do is said below the table.

Examples:
  bastide doctor
  bastide doctor --host-only
  bastide doctor --json | jq '.rows[] | select(.outcome != \"held\")'")]
pub(crate) struct DoctorArgs {
    /// Only look at the host: no sandbox, no attack
    #[arg(long)]
    host_only: bool,
    #[command(flatten)]
    data: DataDir,
    #[command(flatten)]
    shown: Shown,
}

/// For programs.
#[derive(Serialize)]
struct Report<'a> {
    held: usize,
    weak: usize,
    broken: usize,
    skipped: usize,
    rows: &'a [Row],
}

pub(crate) fn execute(args: &DoctorArgs) -> Result<ExitCode, Failure> {
    let data_dir = args.data.dir()?;
    // These first: who asks is somebody else afterwards.
    let mut rows = doctor::check_host(&data_dir);
    let UserCheck { usable, weaknesses, rows: of_user } = doctor::check_user(&data_dir);
    rows.extend(of_user);
    let result = if usable && !args.host_only {
        let config = DoctorConfig {
            temp_dir: std::env::temp_dir(),
            runtime_dir: PathBuf::from("/run/bastide"),
            weaknesses,
        };
        tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(attack(&config))
    } else {
        Ok(Vec::new())
    };
    let failure = match result {
        Ok(attacked) => {
            rows.extend(attacked);
            None
        }
        Err(failure) => Some(failure),
    };
    report(&rows, args.shown.json)?;
    if let Some(failure) = failure {
        return Err(failure);
    }
    let broken = rows.iter().any(|row| row.outcome == Outcome::Broken);
    Ok(if broken { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

async fn attack(config: &DoctorConfig) -> Result<Vec<Row>, Failure> {
    let cancel = CancellationToken::new();
    let bar = out::spinner("making sandboxes to attack");
    let mut on_row = |row: &Row| bar.set_message(format!("{}: {}", row.area, row.what));
    let attacking = doctor::attack(config, &cancel, &mut on_row);
    tokio::pin!(attacking);
    let attacked = tokio::select! {
        attacked = &mut attacking => attacked,
        _ = server::signalled() => {
            // It clears up before it answers.
            cancel.cancel();
            attacking.await
        }
    };
    bar.finish_and_clear();
    attacked.map_err(|error| told(&error))
}

/// The driver's hints are on a line of their own.
fn told(error: &anyhow::Error) -> Failure {
    let text = format!("{error:#}");
    let failure = |text: &str| Failure::new(format!("the attacks could not be run: {text}"));
    match text.split_once("\nhint: ") {
        Some((message, hint)) => failure(message).hint(hint),
        None => failure(&text),
    }
}

fn report(rows: &[Row], json: bool) -> Result<(), Failure> {
    let count = |outcome| rows.iter().filter(|row| row.outcome == outcome).count();
    let report = Report {
        held: count(Outcome::Held),
        weak: count(Outcome::Weak),
        broken: count(Outcome::Broken),
        skipped: count(Outcome::Skipped),
        rows,
    };
    if json {
        return out::json(&report);
    }
    let cells = |row: &Row| {
        vec![
            word(row.outcome).to_owned(),
            row.area.to_owned(),
            row.what.clone(),
            row.how.clone(),
            row.seen.clone(),
        ]
    };
    out::table(
        &["RESULT", "AREA", "WHAT", "HOW IT WAS TRIED", "SEEN"],
        rows.iter().map(cells).collect(),
    );
    out::line("");
    for row in rows {
        if let Some(hint) = &row.hint {
            out::line(format!("{} ({}): {}", row.what, word(row.outcome), row.seen));
            out::line(format!("hint: {hint}"));
        }
    }
    let Report { held, weak, broken, skipped, .. } = report;
    out::line(format!("{held} held, {weak} weak, {broken} broken, {skipped} skipped"));
    Ok(())
}

fn word(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Held => "held",
        Outcome::Weak => "weak",
        Outcome::Broken => "BROKEN",
        Outcome::Skipped => "skipped",
    }
}
