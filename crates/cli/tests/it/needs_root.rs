//! Every command of the client against a real server with real sandboxes, made from the template
//! `host`, which needs no building.

mod clients;
mod commands;
mod crashes;
mod files;
mod operator;
mod run;
mod standard;

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
        let mut instance = Instance::new(Path::new(env!("CARGO_BIN_EXE_bastide"))).unwrap();
        instance.start().unwrap();
        let server = Self { instance: Some(instance) };
        server.ok(&[
            "sandbox",
            "create",
            "--template",
            "host",
            "--name",
            "box",
            "--tier",
            "persistent",
        ]);
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
