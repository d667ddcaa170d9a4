//! Every command of the client against a real server with real sandboxes, made from the template
//! `host`, which needs no building.

mod accounts;
mod agents;
mod browser;
mod clients;
mod code_mode;
mod commands;
mod crashes;
mod doctor;
mod egress;
mod files;
mod full_disk;
mod images;
mod mcp_clients;
mod operator;
mod ordinary;
mod ports;
mod replicas;
mod replicas_on_postgres;
mod run;
mod sessions;
mod soak;
mod standard;
mod tasks;
mod town;
mod workspaces;

use std::io::Write;
use std::path::Path;
use std::process::{Output, Stdio};

use crate::instance::Instance;

/// A server with one running sandbox called `box`.
struct Server {
    instance: Option<Instance>,
}

impl Server {
    fn start() -> Self {
        Self::with(&[], &[])
    }

    /// With these variables for the server, and more arguments for the sandbox's creation.
    fn with(settings: &[(&str, &str)], arguments: &[&str]) -> Self {
        let mut instance = Instance::new(Path::new(env!("CARGO_BIN_EXE_bastide"))).unwrap();
        for (variable, value) in settings {
            instance.settings.push(((*variable).to_owned(), (*value).to_owned()));
        }
        instance.start().unwrap();
        let server = Self { instance: Some(instance) };
        let create = ["sandbox", "create", "--template", "host", "--name", "box"];
        server.ok(&[&create[..], &["--tier", "persistent"], arguments].concat());
        server
    }

    fn instance(&self) -> &Instance {
        self.instance.as_ref().expect("it is taken only at the end")
    }

    /// Runs `bastide`, which must succeed; answers its stdout.
    #[track_caller]
    fn ok(&self, arguments: &[&str]) -> String {
        self.instance().bastide(arguments).unwrap()
    }

    #[track_caller]
    fn json(&self, arguments: &[&str]) -> serde_json::Value {
        self.instance().json(arguments).unwrap()
    }

    fn url(&self) -> String {
        self.instance().url()
    }

    /// A path of the API, as the operator.
    #[track_caller]
    fn curl(&self, path: &str) -> String {
        self.curl_with(path, &[])
    }

    #[track_caller]
    fn curl_with(&self, path: &str, arguments: &[&str]) -> String {
        let key = std::fs::read_to_string(self.instance().data().join("operator.key")).unwrap();
        let output = std::process::Command::new("curl")
            .args(["-sS", "-H", &format!("X-API-Key: {}", key.trim())])
            .args(arguments)
            .arg(format!("{}{path}", self.url()))
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs `bastide` with something on its stdin.
    #[track_caller]
    fn fed(&self, arguments: &[&str], input: &[u8]) -> Output {
        let mut child = self
            .instance()
            .command(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let input = input.to_vec();
        // In a thread, because the output may be wanted before all of the input is.
        let feeding = std::thread::spawn(move || {
            let _ = stdin.write_all(&input);
        });
        let output = child.wait_with_output().unwrap();
        feeding.join().unwrap();
        output
    }

    fn files(&self) -> std::path::PathBuf {
        self.instance().files().unwrap()
    }

    /// Removes the sandbox and the server; a test ends with it to see that both end well.
    fn end(mut self) {
        self.ok(&["sandbox", "rm", "box"]);
        self.instance.take().expect("it is taken only here").finish().unwrap();
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "there is no runtime here whose thread it could block"
)]
fn pause() {
    std::thread::sleep(std::time::Duration::from_millis(20));
}
