//! What `--help` says of every command, reviewed as a diff.

use std::fmt::Write;

use clap::CommandFactory;

#[test]
fn the_help_of_every_command() {
    let mut root = cli::Cli::command().term_width(100).disable_help_subcommand(true);
    root.build();
    let mut text = String::new();
    write_help(&mut root, &mut text);
    insta::assert_snapshot!(text);
}

#[test]
fn the_command_line_is_consistent() {
    cli::Cli::command().debug_assert();
}

#[test]
fn an_update_without_a_change_is_wrong_usage() {
    let given = |rest: &[&str]| {
        let all = ["bastide", "sandbox", "update"].iter().chain(rest);
        cli::Cli::command().try_get_matches_from(all)
    };
    let error = given(&["demo"]).unwrap_err().to_string();
    assert!(error.contains("<--llm-key-env <VARIABLE>|--policy <NAME>>\n"), "{error}");
    assert!(given(&["demo", "--policy", "open"]).is_ok());
    assert!(given(&["--policy", "open"]).is_err());
}

fn write_help(command: &mut clap::Command, text: &mut String) {
    let title = command.get_bin_name().unwrap_or("bastide").to_owned();
    writeln!(text, "$ {title} --help\n{}\n", command.render_long_help()).unwrap();
    for child in command.get_subcommands_mut().filter(|child| !child.is_hide_set()) {
        write_help(child, text);
    }
}
