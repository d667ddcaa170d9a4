//! The engine over a real connection, with a host that answers what a test says.

#![expect(clippy::unwrap_used, reason = "a test that cannot unwrap fails")]

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};

use guest_proto::code::{Call, Done, Job, Outcome, Reply, Said, Scope};
use serde_json::{Value, json};

fn job(code: &str, scope: Scope) -> Job {
    Job {
        code: code.to_owned(),
        scope,
        timeout_ms: 3000,
        result_max: 1000,
        stream_max: 200,
        memory_max: 32 << 20,
    }
}

/// Runs the code to its end. The host answers each call with what `answer` makes of it.
fn run(job: &Job, spec: &Value, answer: impl Fn(&Call) -> Outcome) -> Done {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let host = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (engine, _) = listener.accept().unwrap();
    let serving = std::thread::spawn(move || code_runner::serve(engine));
    let mut lines = BufReader::new(host.try_clone().unwrap()).lines();
    writeln!(&host, "{}", serde_json::to_string(job).unwrap()).unwrap();
    if job.scope == Scope::Spec {
        writeln!(&host, "{spec}").unwrap();
    }
    loop {
        match serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap() {
            Said::Call(call) => {
                let reply = Reply { id: call.id, outcome: answer(&call) };
                writeln!(&host, "{}", serde_json::to_string(&reply).unwrap()).unwrap();
            }
            Said::Done(done) => {
                serving.join().unwrap().unwrap();
                return done;
            }
        }
    }
}

/// A host that gives every call back.
fn echoed(code: &str, scope: Scope) -> Done {
    let spec = json!({ "paths": { "/a": { "get": { "summary": "A" } } } });
    run(&job(code, scope), &spec, |call| {
        let data = serde_json::to_value(call).unwrap();
        Outcome::Answer { status: 200, ok: true, data }
    })
}

#[track_caller]
fn gives(code: &str, scope: Scope, wanted: &Value) {
    let done = echoed(code, scope);
    assert_eq!(done.error, None, "{code}");
    let result: Value = serde_json::from_str(&done.result.unwrap()).unwrap();
    assert_eq!(result, *wanted, "{code}");
}

#[track_caller]
fn fails(code: &str, why: &str) {
    let error = echoed(code, Scope::ApiRead).error.unwrap_or_default();
    assert!(error.contains(why), "{code}: {error}");
}

#[test]
fn code_gives_what_it_returns() {
    let any = Scope::ApiWrite;
    gives("async () => ({ a: [1, 'x', null] })", any, &json!({ "a": [1, "x", null] }));
    gives("async () => 1 // a comment at the end", any, &json!(1));
    gives("  async () => 1;  // and a semicolon\n", any, &json!(1));
    gives("// before\nasync function named() { return 2 }", any, &json!(2));
    gives("() => undefined", any, &json!(null));
    gives(
        "async () => { await sleep(20); return new Promise((r) => setTimeout(r, 5, 3)) }",
        any,
        &json!(3),
    );
    gives(
        "async () => { const t = setTimeout(() => { throw 1 }, 5); clearTimeout(t); await sleep(20); return 4 }",
        any,
        &json!(4),
    );
    gives("async () => spec.paths['/a'].get.summary", Scope::Spec, &json!("A"));
    gives(
        "async () => typeof api + typeof fetch + typeof require",
        Scope::Spec,
        &json!("undefinedundefinedundefined"),
    );
}

#[test]
fn calls_go_to_the_host_and_come_back() {
    let three = "async () => (await Promise.all(['/1', '/2', '/3'].map((path) => api.request({ path })))).map((r) => r.data.path)";
    gives(three, Scope::ApiRead, &json!(["/1", "/2", "/3"]));
    let body = "async () => (await api.request({ method: 'post', path: '/x', body: { a: 1 }, query: { q: 1 } })).data";
    let call =
        json!({ "id": 1, "method": "POST", "path": "/x", "query": { "q": 1 }, "body": { "a": 1 } });
    gives(body, Scope::ApiWrite, &call);
    let bytes = "async () => (await api.request({ method: 'PUT', path: '/x', rawBody: new Uint8Array([0, 255]), contentType: 'a/b' })).data.rawBase64";
    gives(bytes, Scope::ApiWrite, &json!("AP8="));
    let spoilt = "async () => { JSON.stringify = () => 'x'; Promise = null; Map.prototype.get = null; return (await api.request({ path: '/x' })).status }";
    let done = echoed(spoilt, Scope::ApiRead);
    assert!(done.result.is_some() || done.error.is_some());
    let refused =
        job("async () => api.request({ path: '/no' }).catch((e) => e.message)", Scope::ApiRead);
    let done = run(&refused, &Value::Null, |_| Outcome::Refused("not for you".into()));
    assert_eq!(done.result.as_deref(), Some("\"not for you\""));
}

#[test]
fn what_goes_wrong_is_said() {
    for (code, why) in [
        ("async () => { throw new Error('boom') }", "Error: boom\n    at <anonymous> (code:1"),
        ("async () => { throw null }", "thrown: null"),
        ("async () => {", "SyntaxError"),
        ("", "SyntaxError"),
        ("7", "must be an async arrow function"),
        ("async () => { for (;;); }", "did not end within 3000 ms"),
        (
            "async () => { const a = []; for (;;) a.push('x'.repeat(1e5) + a.length) }",
            "out of memory",
        ),
        ("async () => { const f = () => f() + 1; return f() }", "RangeError"),
        ("async () => new Promise(() => {})", "never happens"),
        ("async () => { const a = {}; a.a = a; return a }", "circular"),
        ("async () => api.request({ method: 'DELETE', path: '/x' })", "use execute_write"),
        ("async () => api.request({ path: 1 })", "path must be a string"),
        ("async () => api.request()", "api.request takes"),
        ("async () => api.request({ path: '/', body: 1, rawBody: '' })", "not both"),
    ] {
        fails(code, why);
    }
}

#[test]
fn what_is_too_long_is_cut() {
    let done = echoed("async () => 'é'.repeat(1000)", Scope::ApiRead);
    assert!(done.truncated && done.result.unwrap().len() <= 1000);
    let done = echoed(
        "async () => { for (let i = 0; i < 1000; i++) { console.log(i); console.error({ i }) } }",
        Scope::ApiRead,
    );
    assert!(done.stdout.starts_with("0\n1\n2\n") && done.stdout.len() <= 200);
    assert!(done.stderr.starts_with("{\"i\":0}\n") && done.stderr.len() <= 200);
}
