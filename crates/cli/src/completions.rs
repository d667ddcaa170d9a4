//! Completion scripts for shells.

use clap_complete::Shell;

pub(crate) fn print(shell: Shell, command: &mut clap::Command) {
    let mut script = Vec::new();
    clap_complete::generate(shell, command, "bastide", &mut script);
    // A reader that went away is not our failure.
    let _ = crate::out::stdout(&script);
}
