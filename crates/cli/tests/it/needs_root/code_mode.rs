//! Code mode with real sandboxes: a job from end to end, code that means ill, and that nothing is left.

use std::fs;
use std::io::Write as _;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use super::{Server, pause};

fn server(warm: &str, timeout_ms: &str) -> Server {
    let settings = [
        ("BASTIDE_CODE_TIMEOUT_MS", timeout_ms),
        ("BASTIDE_CODE_WARM", warm),
        ("BASTIDE_CODE_REQUESTS_MAX", "20"),
    ];
    Server::with(&settings, &[])
}

impl Server {
    fn key(&self) -> String {
        let key = fs::read_to_string(self.instance().data().join("operator.key")).unwrap();
        key.trim().to_owned()
    }

    fn asking(&self, message: &Value) -> Child {
        let mut child = Command::new("curl")
            .args(["-sS", "-H", &format!("Authorization: Bearer {}", self.key())])
            .args(["-H", "Content-Type: application/json"])
            .args(["-H", "Accept: application/json, text/event-stream"])
            .args(["--data-binary", "@-", &format!("{}/mcp", self.url())])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(message.to_string().as_bytes()).unwrap();
        child
    }

    /// What a tool said, without the marks around it, and whether it is an error.
    #[track_caller]
    fn tool(&self, name: &str, code: &str) -> (Value, bool) {
        let output = self.asking(&call(name, code)).wait_with_output().unwrap();
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
            panic!("{error}: {}{}", text(&output.stdout), text(&output.stderr))
        });
        let said = answer["result"]["content"][0]["text"].as_str();
        let said = said.unwrap_or_else(|| panic!("{answer}"));
        let inner = said.lines().find(|line| line.starts_with('{')).unwrap();
        (serde_json::from_str(inner).unwrap(), answer["result"]["isError"] == true)
    }

    #[track_caller]
    fn good(&self, name: &str, code: &str) -> Value {
        let (told, is_error) = self.tool(name, code);
        assert!(!is_error, "{code}: {told}");
        told["result"].clone()
    }

    #[track_caller]
    fn bad(&self, name: &str, code: &str) -> String {
        let (told, is_error) = self.tool(name, code);
        assert!(is_error, "{code}: {told}");
        told["error"].as_str().unwrap().to_owned()
    }

    /// Sandboxes on the disk, beside those that wait.
    fn on_disk(&self) -> usize {
        fs::read_dir(self.instance().data().join("sandboxes")).unwrap().count()
    }

    #[track_caller]
    fn until_on_disk(&self, count: usize) {
        for _ in 0..1500 {
            if self.on_disk() == count {
                return;
            }
            pause();
        }
        panic!("there are {} sandboxes, not {count}", self.on_disk());
    }
}

fn call(name: &str, code: &str) -> Value {
    let params = json!({ "name": name, "arguments": { "code": code } });
    json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params })
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_job_is_looked_up_and_done_from_end_to_end() {
    let server = server("2", "8000");
    let found = server.good(
        "search",
        "async () => ['/v1/sandboxes', '/v1/sandboxes/{id}/exec', '/v1/sandboxes/{id}/files',
          '/v1/sandboxes/{id}'].map((path) => [path, Object.keys(spec.paths[path]).sort()])",
    );
    assert_eq!(found[0], json!(["/v1/sandboxes", ["get", "post"]]));
    assert_eq!(found[2], json!(["/v1/sandboxes/{id}/files", ["get", "post"]]));
    let body = "async () => {
        const op = spec.paths['/v1/sandboxes/{id}/exec'].post;
        const schema = op.requestBody.content['application/json'].schema;
        return { fields: Object.keys(schema.properties), says: (op.description ?? op.summary).length > 20 };
    }";
    let body = server.good("search", body);
    assert!(body["fields"].as_array().unwrap().contains(&json!("command")), "{body}");
    assert_eq!(body["says"], true);

    let job = "async () => {
        const call = async (method, path, more = {}) => {
            const res = await api.request({ method, path, ...more });
            if (!res.ok) throw new Error(`${method} ${path}: ${res.status} ${JSON.stringify(res.data)}`);
            return res.data;
        };
        const { id } = await call('POST', '/v1/sandboxes', { body: { template: 'host' } });
        const at = `/v1/sandboxes/${id}`;
        try {
            await call('POST', `${at}/files`, { query: { path: '/workspace/in.txt' }, rawBody: 'b\\na\\nc\\n' });
            const run = await call('POST', `${at}/exec`, { body: { command: 'sort in.txt > out.txt && wc -l < out.txt' } });
            const sorted = await call('GET', `${at}/files`, { query: { path: '/workspace/out.txt' } });
            await call('POST', `${at}/files`, { query: { path: '/workspace/b' }, rawBody: new Uint8Array([0, 255, 7]) });
            const bytes = await call('GET', `${at}/files`, { query: { path: '/workspace/b' } });
            return { code: run.exit_code, lines: run.stdout.trim(), sorted, bytes };
        } finally {
            await call('DELETE', at);
        }
    } // the end";
    let done = server.good("execute_write", job);
    let wanted =
        json!({ "code": 0, "lines": "3", "sorted": "a\nb\nc\n", "bytes": { "base64": "AP8H" } });
    assert_eq!(done, wanted);
    let names = "async () => (await api.request({ path: '/v1/sandboxes' })).data
        .filter((one) => one.state === 'running').map((one) => one.name)";
    assert_eq!(server.good("execute_read", names), json!(["box"]));
    server.until_on_disk(1);
    server.end();
}

#[test]
fn code_that_means_ill_gains_nothing() {
    let server = server("0", "2000");
    for (code, why) in [
        ("async () => { for (;;) {} }", "did not end within 2000 ms"),
        ("async () => { try { for (;;) {} } catch { return 1 } }", "did not end within 2000 ms"),
        (
            "async () => { const all = []; for (;;) all.push('x'.repeat(1e6) + all.length) }",
            "out of memory",
        ),
        ("async () => { const all = []; for (;;) all.push(new ArrayBuffer(1e7)) }", "memory"),
        ("async () => { const f = () => f() + 1; return f() }", "RangeError"),
        ("async () => new Promise(() => {})", "never happens"),
        ("async () => { throw { a: 1 } }", "thrown: {\"a\":1}"),
        ("async () => { return ( }", "SyntaxError"),
        ("async () => { const a = {}; a.a = a; return a }", "circular"),
        ("async () => fetch('http://127.0.0.1')", "ReferenceError"),
        ("async () => require('fs')", "ReferenceError"),
        ("async () => import('fs')", "Error"),
        (
            "async () => api.request({ method: 'POST', path: '/v1/sandboxes', body: {} })",
            "execute_write",
        ),
        ("async () => api.request({ path: '/v1/%61pi-keys' })", "api-keys"),
        ("async () => api.request({ path: 'http://example.com/' })", "must begin with /"),
        ("async () => api.request({ path: '/x%2F..%2Fv1%2Fadmin' })", "admin"),
        (
            "async () => { for (let i = 0; i < 30; i++) await api.request({ path: '/healthz' }) }",
            "20 requests",
        ),
        ("async () => api.request({ path: '/v1/events' })", "did not end within 2000 ms"),
    ] {
        let told = server.bad("execute_read", code);
        assert!(told.contains(why), "{code}: {told}");
    }
    let (told, _) = server
        .tool("execute_read", "async () => { for (let i = 0; i < 1e5; i++) console.log('y') }");
    assert!(told["stdout"].as_str().unwrap().len() < 11_000);
    let (told, _) = server.tool("execute_read", "async () => 'x'.repeat(1e6)");
    assert!(told["truncated"].is_string() && told["result"].as_str().unwrap().len() <= 100_000);
    let seen = server.good("execute_write", "async () => Object.getOwnPropertyNames(globalThis).join() +
        JSON.stringify(Object.getOwnPropertyNames(api.request)) + typeof process + typeof std + typeof os");
    assert!(!seen.as_str().unwrap().contains("e2a_"));
    assert!(seen.as_str().unwrap().ends_with("undefinedundefinedundefined"), "{seen}");
    let spec = server.bad("search", "async () => api.request({ path: '/healthz' })");
    assert!(spec.contains("ReferenceError"), "{spec}");
    server.until_on_disk(1);
    server.end();
}

#[test]
fn a_call_leaves_nothing_also_when_its_client_or_its_server_goes_away() {
    let mut server = server("0", "8000");
    let waits = call("execute_read", "async () => sleep(4500)");
    let mut client = server.asking(&waits);
    server.until_on_disk(2);
    let listed: Value = serde_json::from_str(&server.curl("/v1/sandboxes")).unwrap();
    assert_eq!(listed.as_array().unwrap().len(), 1, "{listed}");
    client.kill().unwrap();
    client.wait().unwrap();
    server.until_on_disk(1);

    let mut client = server.asking(&waits);
    server.until_on_disk(2);
    let instance = server.instance.as_mut().unwrap();
    instance.kill_server().unwrap();
    client.wait().unwrap();
    instance.start().unwrap();
    server.until_on_disk(1);
    assert_eq!(server.good("execute_read", "async () => 1 + 1"), 2);
    server.end();
}
