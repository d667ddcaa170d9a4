//! A bounded run of `cargo xtask soak`: the same kills in the same order every time.

#[path = "../../../../xtask/src/soak.rs"]
mod run;

use std::path::Path;
use std::time::Duration;

#[test]
fn dozens_of_kills_lose_nothing_that_was_acknowledged_and_leave_nothing() {
    let soak = run::Soak {
        bastide: Path::new(env!("CARGO_BIN_EXE_bastide")),
        seed: 3,
        kills: 40,
        within: Duration::from_secs(30),
        settings: &["--sweep-seconds=2", "--warm={ host = 2 }"],
        say: &|_| {},
    };
    let tally = run::run(&soak).unwrap();
    // A machine that is busy with other things does fewer in that time.
    assert!(tally.kills >= 10 && tally.calls >= 30 && tally.sandboxes >= 4, "{tally:?}");
    assert!(tally.builds_cut_off >= 2, "{tally:?}");
    assert!(tally.slowest_collection < Duration::from_secs(30), "{tally:?}");
}
