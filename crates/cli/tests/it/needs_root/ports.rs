//! Ports of a real sandbox in a real browser, by a signed link.

use std::process::{Child, Stdio};

use super::Server;
use super::browser::{self, Browser};

const PORT: &str = "8000";

/// A server inside; it ends with its command.
struct Inside(Child);

impl Inside {
    fn start(server: &Server) -> Self {
        let script = include_bytes!("ports/server.py");
        server.fed(&["sandbox", "files", "put", "box", "/workspace/server.py"], script);
        let api = server.url();
        let command =
            ["sandbox", "exec", "box", "--", "python3", "/workspace/server.py", PORT, &api];
        let child = server
            .instance()
            .command(&command)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let inside = Self(child);
        let listening =
            format!("until curl -s -o /dev/null http://127.0.0.1:{PORT}/; do sleep 0.1; done");
        server.ok(&["sandbox", "exec", "box", "--timeout", "20", "--", &listening]);
        inside
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_signed_link_opens_in_a_browser_with_files_and_a_websocket() {
    let server = Server::start();
    let inside = Inside::start(&server);
    let link = server.ok(&["sandbox", "url", "box", PORT, "--expires", "120"]);
    assert!(link.contains(".sandbox.localhost:") && link.contains("?bastide_link="), "{link}");
    let browser = Browser::open(link.trim());
    let wait = "until cat /tmp/result 2>/dev/null; do sleep 0.1; done";
    let told = server.ok(&["sandbox", "exec", "box", "--timeout", "60", "--", wait]);
    drop(browser);
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    let origin = link.trim().split("/?").next().unwrap();
    assert_eq!(told["origin"], origin);
    assert_eq!(told["file"], "data");
    assert_eq!(told["socket"], "ping");
    // It sees its own cookie and not the one that lets it in; and the API's answers are not for it.
    assert_eq!(told["cookies"], "own=1");
    assert_eq!(told["api"], "refused");

    let link = server.ok(&["sandbox", "url", "box", PORT, "--path"]);
    let page = browser::page(&link.trim().replace("/?", "/lonely?"));
    let seen = page.split("id=\"p\">").nth(1).and_then(|rest| rest.split('<').next());
    assert_eq!(seen, Some("null refused refused refused refused refused"), "{page}");

    drop(inside);
    let closed = server.json(&["sandbox", "url", "box", "1"]);
    let answer = curl(closed["path_url"].as_str().unwrap());
    assert!(answer.contains("\"code\":\"port_closed\"") && answer.ends_with(" 502"), "{answer}");
    let link = closed["url"].as_str().unwrap().to_owned();
    server.ok(&["sandbox", "rm", "box"]);
    let answer = curl(&link);
    assert!(answer.contains("\"code\":\"not_found\"") && answer.ends_with(" 404"), "{answer}");
    server.ok(&["sandbox", "create", "--template", "host", "--name", "box"]);
    server.end();
}

/// The body, and the status.
fn curl(url: &str) -> String {
    let output = std::process::Command::new("curl")
        .args(["-sS", "-w", " %{http_code}", url])
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap()
}
