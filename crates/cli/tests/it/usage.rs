//! Exit codes and messages of the binary where no server is needed.

use std::process::{Command, Output};

fn bastide(arguments: &[&str]) -> Output {
    let dir = tempfile::tempdir().unwrap();
    Command::new(env!("CARGO_BIN_EXE_bastide"))
        .args(arguments)
        .env_clear()
        .env("BASTIDE_DATA_DIR", dir.path())
        .env("BASTIDE_SERVER", "http://127.0.0.1:1")
        .output()
        .unwrap()
}

#[track_caller]
fn check(arguments: &[&str], code: i32, stderr: &str) {
    let output = bastide(arguments);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{text}");
    assert!(text.contains(stderr), "{text}");
}

#[test]
fn wrong_usage_is_exit_code_2() {
    check(&["no-such-command"], 2, "unrecognized subcommand");
    check(&["sandbox", "create", "--template", "a", "--image", "b"], 2, "cannot be used with");
    check(&["sandbox", "get", "Not A Name"], 2, "no such sandbox: Not A Name");
    check(&["sandbox", "create", "--env", "NOVALUE"], 2, "must be NAME=VALUE");
}

#[test]
fn a_failure_is_exit_code_1_with_a_hint() {
    check(&["sandbox", "list"], 1, "error: cannot reach the server at http://127.0.0.1:1");
    check(&["sandbox", "list"], 1, "\nhint: start one with `bastide serve`");
    check(&["sandbox", "list", "--server", "nonsense"], 1, "not a server URL: nonsense");
    check(&["sandbox", "list", "--key-file", "/nonexistent"], 1, "cannot read the key");
    check(&["sandbox", "cp", "a", "b"], 1, "one end must be in a sandbox");
}

#[test]
fn a_data_directory_that_cannot_be_is_told_by_name_with_what_to_do() {
    let place = ["--data-dir", "/dev/null/x"];
    let commands: [&[&str]; 3] = [&["serve"], &["template", "list"], &["run", "true"]];
    for command in commands {
        let said = |text| check(&[&command[..1], &place, &command[1..]].concat(), 1, text);
        said("error: cannot use the data directory /dev/null/x: Not a directory");
        said("\nhint: name one that you may write to with --data-dir or BASTIDE_DATA_DIR");
    }
}

#[test]
fn a_server_that_runs_is_spoken_to_over_stdio_or_by_the_client_itself() {
    let server = ["mcp", "--server", "http://127.0.0.1:1/"];
    let with = |more: &'static [&'static str]| [&server[..], more].concat();
    check(&server, 1, "http://127.0.0.1:1/ answers over HTTP itself, at http://127.0.0.1:1/mcp\n");
    check(&server, 1, "\nhint: give clients that URL, or add --stdio");
    check(&with(&["--stdio"]), 1, "there is no API key\nhint: set BASTIDE_API_KEY");
    check(&with(&["--stdio", "--data-dir", "/x"]), 1, "--data-dir is a setting of a server of its");
    check(&with(&["--stdio", "--spec", "x"]), 2, "cannot be used with");
    check(&["mcp", "--key-file", "x"], 2, "--stdio");
}

#[test]
fn what_is_in_the_file_env_is_said_unless_the_environment_says_it() {
    let dir = tempfile::tempdir().unwrap();
    let run = |text: &str, more: &[(&str, &str)]| {
        std::fs::write(dir.path().join(".env"), text).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_bastide"));
        command.args(["mcp", "--stdio", "--server", "nonsense"]).current_dir(dir.path());
        let output = command.env_clear().envs(more.iter().copied()).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    };
    // Whoever has a key gets as far as the server.
    assert!(run("", &[]).contains("there is no API key"));
    assert!(run("export BASTIDE_API_KEY=e2a_1 # mine\n", &[]).contains("not a server URL"));
    let emptied = run("E2B_API_KEY='e2a_1'\n", &[("E2B_API_KEY", "")]);
    assert!(emptied.contains("there is no API key"), "{emptied}");
    assert!(run("HOST=no-address\nnonsense\n", &[]).contains("there is no API key"));
}

#[test]
fn every_shell_has_completions() {
    for shell in ["bash", "zsh", "fish"] {
        let output = bastide(&["completions", shell]);
        assert!(output.status.success());
        assert!(String::from_utf8(output.stdout).unwrap().contains("bastide"));
    }
}
