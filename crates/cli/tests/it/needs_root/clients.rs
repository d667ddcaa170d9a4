//! The published clients of the guest's protocol against a real sandbox, by way of a forwarded port.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::Server;

/// In their debug mode the clients speak to this port of this machine.
const ADDRESS: &str = "127.0.0.1:49983";

#[test]
fn the_published_clients_work_through_a_forwarded_port() {
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests-sdk");
    let python = scripts.join("venv/bin/python");
    let prepared = python.exists() && scripts.join("node_modules/e2b").exists();
    assert!(prepared, "run scripts/install-deps.sh test: it installs the clients");
    let server = Server::start();
    let mut forwarding = server
        .instance()
        .command(&["sandbox", "forward", "box", "49983", "--local", ADDRESS])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(forwarding.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let said = [
        smoke(&scripts, &[python, "smoke.py".into()]),
        smoke(&scripts, &["node".into(), "smoke.mjs".into()]),
    ];
    let pid = Pid::from_raw(i32::try_from(forwarding.id()).unwrap()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    forwarding.wait().unwrap();
    assert_eq!(line, format!("forwarding {ADDRESS} to port 49983 of box\n"));
    for (good, text) in said {
        assert!(good, "{text}");
    }
    server.end();
}

fn smoke(scripts: &Path, command: &[PathBuf]) -> (bool, String) {
    let output = Command::new(&command[0])
        .args(&command[1..])
        .current_dir(scripts)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    let text = format!("{}{}", String::from_utf8_lossy(&text), output.status);
    (output.status.success(), text)
}
