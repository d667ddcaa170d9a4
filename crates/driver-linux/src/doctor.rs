//! Checks this host, and attacks sandboxes of its own on it, for an operator to see what holds.
//!
//! The attacks are data (`attacks`), so that the tests run the same ones. What happens inside is a
//! program of its own (`inside.py`); what needs two sandboxes, or the host's side, is `outside`.
//! Everything is done in a data directory that is thrown away; nothing of it is left, also when it
//! is interrupted.

mod attacks;
mod host;
mod outside;
mod stage;
mod user;

use std::path::PathBuf;

use serde::Serialize;
use tokio_util::sync::CancellationToken;

use self::attacks::{Attack, How, NESTED, PLAIN};
use self::stage::Stage;

pub use self::host::check_host;
pub use self::user::{UserCheck, check_user};
use crate::privilege::Weakness;

/// How one check went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Held,
    /// It works, but less well than it could.
    Weak,
    /// It did not hold.
    Broken,
    /// It could not be tried.
    Skipped,
}

/// One line of the report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Row {
    pub area: &'static str,
    pub what: String,
    /// How it was tried.
    pub how: String,
    pub outcome: Outcome,
    pub seen: String,
    pub hint: Option<String>,
}

/// What to run on.
#[derive(Debug, Clone)]
pub struct DoctorConfig {
    /// A directory of its own is made below it, and removed.
    pub temp_dir: PathBuf,
    pub runtime_dir: PathBuf,
    /// Of this process: an attack that is known to get through with one of them makes a weak row.
    pub weaknesses: Vec<Weakness>,
}

/// Runs every attack, without `nesting` and with it; tells each row as it comes.
///
/// # Errors
/// When sandboxes cannot be made here at all, or `cancel` came first; nothing is left then.
pub async fn attack(
    config: &DoctorConfig,
    cancel: &CancellationToken,
    on_row: &mut (dyn FnMut(&Row) + Send),
) -> anyhow::Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (attacks, nesting) in [(PLAIN, false), (NESTED, true)] {
        let mut stage = Box::pin(Stage::open(config, nesting)).await?;
        let interrupted = tokio::select! {
            () = Box::pin(run_all(&mut stage, (attacks, &config.weaknesses), &mut rows, on_row)) => false,
            () = cancel.cancelled() => true,
        };
        let left = stage.close().await;
        if interrupted {
            left?;
            anyhow::bail!("interrupted");
        }
        let row = leftovers(left, nesting);
        on_row(&row);
        rows.push(row);
    }
    Ok(rows)
}

async fn run_all(
    stage: &mut Stage,
    (attacks, weaknesses): (&[Attack], &[Weakness]),
    rows: &mut Vec<Row>,
    on_row: &mut (dyn FnMut(&Row) + Send),
) {
    for attack in attacks {
        let verdict = match attack.how {
            How::Inside(name, arguments) => stage.inside(name, arguments).await,
            How::Outside(outside) => outside::run(stage, outside).await,
        };
        let (outcome, seen) = match verdict {
            Ok(verdict) => (verdict.outcome, verdict.seen),
            Err(error) => (Outcome::Broken, format!("the attack itself failed: {error:#}")),
        };
        let known = weaknesses.iter().find(|weakness| attack.known_with.contains(&weakness.code));
        let (outcome, seen, hint) = match (outcome, known) {
            (Outcome::Held, _) => (outcome, seen, None),
            (Outcome::Weak | Outcome::Broken, Some(Weakness { code, hint, .. })) => {
                (Outcome::Weak, format!("{seen} (weaker: {code})"), Some(hint.clone()))
            }
            (Outcome::Weak | Outcome::Broken | Outcome::Skipped, _) => {
                (outcome, seen, attack.hint.map(str::to_owned))
            }
        };
        let (what, how) = (attack.what.to_owned(), attack.tried.to_owned());
        let row = Row { area: attack.area, what, how, outcome, seen, hint };
        on_row(&row);
        rows.push(row);
    }
}

fn leftovers(left: anyhow::Result<()>, nesting: bool) -> Row {
    let (outcome, seen) = match left {
        Ok(()) => (Outcome::Held, "no process, mount, cgroup or loop device".to_owned()),
        Err(error) => (Outcome::Broken, format!("{error:#}")),
    };
    let after = if nesting { "with nesting" } else { "plain" };
    Row {
        area: "end",
        what: format!("nothing is left ({after})"),
        how: "everything is removed, then looked for".to_owned(),
        outcome,
        seen,
        hint: None,
    }
}
