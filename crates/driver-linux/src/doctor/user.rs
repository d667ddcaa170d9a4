//! What an ordinary user is given here, and what is weaker without root.

use std::path::Path;

use super::{Outcome, Row};
use crate::privilege::{self, Privilege, Weakness};

/// What was found out about whoever runs this.
#[derive(Debug)]
pub struct UserCheck {
    /// Whether sandboxes can be made at all.
    pub usable: bool,
    pub weaknesses: Vec<Weakness>,
    pub rows: Vec<Row>,
}

/// Becomes root of a user namespace, as `serve` would with this data directory, and tells everything that
/// is weaker than under the host's root; for that one there is nothing to tell. Call it before any runtime:
/// it forks.
pub fn check_user(data_dir: &Path) -> UserCheck {
    let (usable, mut rows) = match privilege::enter(data_dir) {
        Ok(Privilege::Host) => (true, Vec::new()),
        Ok(Privilege::Namespace { ids }) => (true, vec![entered(ids)]),
        Err(error) => (false, vec![refused(&format!("{error:#}"))]),
    };
    let weaknesses = if usable { privilege::weaknesses() } else { Vec::new() };
    rows.extend(weaknesses.iter().map(weak));
    UserCheck { usable, weaknesses, rows }
}

fn row(what: &str, how: &str, outcome: Outcome, seen: String, hint: Option<String>) -> Row {
    Row { area: "without root", what: what.to_owned(), how: how.to_owned(), outcome, seen, hint }
}

fn entered(ids: u32) -> Row {
    let seen = format!("root of a user namespace of {ids} ids");
    row("user namespaces", "one is made and entered", Outcome::Held, seen, None)
}

fn refused(error: &str) -> Row {
    let (seen, hint) = match error.split_once("\nhint: ") {
        Some((seen, hint)) => (seen, hint),
        None => (error, "run it as root; docs/rootless.md has what hosts refuse"),
    };
    let (seen, hint) = (seen.to_owned(), Some(hint.to_owned()));
    row("user namespaces", "one is made and entered", Outcome::Broken, seen, hint)
}

fn weak(weakness: &Weakness) -> Row {
    let how = format!("looked for {}", weakness.missing);
    let (effect, hint) = (weakness.effect.to_owned(), weakness.hint.clone());
    row(weakness.code, &how, Outcome::Weak, effect, Some(hint))
}
