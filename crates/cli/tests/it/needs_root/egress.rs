//! Egress of a real sandbox: real programs reach what is allowed, attacks reach nothing, and the owner
//! sees both.

mod attacks;
mod doubles;

use serde_json::Value;

use self::doubles::{Doubles, inside};
use super::Server;
use super::browser;

/// A server whose policy `test` has these rules, and the addresses of these names; a sandbox with it.
fn server(rules: &[String], hosts: &[(&str, &str)]) -> Server {
    let policies = format!("{{ test = {}, other = ['other.test'] }}", toml(rules));
    let hosts: Vec<String> =
        hosts.iter().map(|(name, address)| format!("'{name}' = ['{address}']")).collect();
    let hosts = format!("{{ {} }}", hosts.join(", "));
    Server::with(
        &[("BASTIDE_POLICIES", &policies), ("BASTIDE_HOSTS", &hosts)],
        &["--policy", "test"],
    )
}

fn toml(rules: &[String]) -> String {
    let quoted: Vec<String> = rules.iter().map(|rule| format!("'{rule}'")).collect();
    format!("[{}]", quoted.join(", "))
}

/// Runs a line for the shell in the sandbox; it must succeed.
#[track_caller]
fn run(server: &Server, line: &str) -> String {
    server.ok(&["sandbox", "exec", "box", "--timeout", "60", "--", line])
}

#[track_caller]
fn put(server: &Server, name: &str, bytes: &[u8]) {
    let output = server.fed(&["sandbox", "files", "put", "box", &inside(name)], bytes);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn entries(server: &Server) -> Vec<Value> {
    let log = server.json(&["sandbox", "egress", "box", "-n", "1000"]);
    log["entries"].as_array().unwrap().clone()
}

#[test]
fn real_programs_reach_what_is_allowed() {
    let doubles = Doubles::start();
    let loopback = "127.0.0.1";
    let rules = [
        format!("web.test:{}", doubles.http),
        format!("web.test:{}", doubles.https),
        format!("ssh.test:{}", doubles.ssh),
        format!("db.test:{}", doubles.postgres),
        format!("git.test:{}", doubles.git),
        "127.0.0.1/32".into(),
    ];
    let names = ["web.test", "ssh.test", "db.test", "git.test", "denied.test"];
    let server = server(&rules, &names.map(|name| (name, loopback)));
    for name in ["ca.pem", "trust.p12", "user"] {
        put(&server, name, &doubles.read(name));
    }
    let plain = format!("http://web.test:{}", doubles.http);
    let tls = format!("https://web.test:{}", doubles.https);

    ssh_and_git(&server, &doubles, &tls);
    postgres(&server, doubles.postgres);
    put(&server, "reach.mjs", include_bytes!("egress/reach.mjs"));
    let said = run(
        &server,
        &format!(
            "NODE_EXTRA_CA_CERTS=/workspace/ca.pem node --experimental-websocket --no-warnings \
                  /workspace/reach.mjs {plain} {tls}"
        ),
    );
    let hello = |port: u16| format!("hello web.test:{port}\n");
    let both = hello(doubles.http) + &hello(doubles.https);
    assert_eq!(said, format!("{both}echo node\necho node\ndenied\n"));

    put(&server, "Reach.java", include_bytes!("egress/Reach.java"));
    let said = run(
        &server,
        &format!(
            "cd /workspace && java -Djavax.net.ssl.trustStore=trust.p12 \
                  -Djavax.net.ssl.trustStorePassword=secret Reach.java {plain} {tls}"
        ),
    );
    let each = |port| hello(port).repeat(2);
    let both = each(doubles.http) + &each(doubles.https);
    assert_eq!(said, format!("{both}echo java\ndenied\n"));

    let flags = browser::FLAGS.join(" ");
    let page = run(
        &server,
        &format!(
            "HOME=/tmp chromium {flags} --ignore-certificate-errors --dump-dom {tls}/page 2>/dev/null"
        ),
    );
    assert!(page.contains("script ran"), "{page}");

    let log = entries(&server);
    let of = |verdict: &str| log.iter().filter(|entry| entry["verdict"] == verdict).count();
    assert!(of("allowed") >= 8, "{log:#?}");
    let denied = log.iter().find(|entry| entry["verdict"] == "denied").unwrap();
    assert_eq!(denied["target"], "denied.test");
    assert_eq!(denied["hint"], "a policy with the rule denied.test would allow it");
    server.end();
}

fn ssh_and_git(server: &Server, doubles: &Doubles, tls: &str) {
    let key = "mkdir -p ~/.ssh && cp /workspace/user ~/.ssh/id && chmod 600 ~/.ssh/id";
    let ssh = format!(
        "ssh -i ~/.ssh/id -o BatchMode=yes -o StrictHostKeyChecking=no -o LogLevel=ERROR -p {}",
        doubles.ssh
    );
    let said = run(server, &format!("{key} && {ssh} root@ssh.test 'echo over $SSH_CONNECTION'"));
    assert!(said.starts_with("over 127.0.0.1 "), "{said}");
    let repository = doubles.path("www/repo.git");
    let clone = format!(
        "cd /tmp && GIT_SSH_COMMAND='{ssh}' git clone -q root@ssh.test:{} by-ssh && cat by-ssh/file",
        repository.display()
    );
    assert_eq!(run(server, &clone), "hello\n");
    let clone = format!(
        "cd /tmp && GIT_SSL_CAINFO=/workspace/ca.pem git clone -q {tls}/repo.git by-https \
         && cat by-https/file"
    );
    assert_eq!(run(server, &clone), "hello\n");
    let url = format!("git://git.test:{}/repo.git", doubles.git);
    let clone = format!("cd /tmp && git clone -q {url} by-git && cat by-git/file");
    assert_eq!(run(server, &clone), "hello\n");
}

/// With TLS, which begins in the middle of its protocol, and without.
fn postgres(server: &Server, port: u16) {
    for (mode, is_tls) in [("disable", "f"), ("verify-full", "t")] {
        let line = format!(
            "psql -XAt 'host=db.test port={port} user=me dbname=postgres sslmode={mode} \
             sslrootcert=/workspace/ca.pem' \
             -c 'select ssl from pg_stat_ssl where pid = pg_backend_pid()'"
        );
        assert_eq!(run(server, &line), format!("{is_tls}\n"));
    }
}

#[test]
fn the_owner_reads_what_was_reached_over_a_change_of_policy_a_restart_and_a_stop() {
    let outside = attacks::Outside::start();
    let port = outside.port;
    let rules = [format!("allowed.test:{port}"), "127.0.0.1/32".into()];
    let mut server = server(&rules, &[("allowed.test", "127.0.0.1")]);
    let url = format!("http://allowed.test:{port}/");
    assert_eq!(run(&server, &format!("curl -sS {url}")), "ok");
    let table = server.ok(&["sandbox", "egress", "box"]);
    assert!(table.starts_with("TIME ") && table.contains("allowed.test"), "{table}");
    // Cut by the change, while it is open.
    let cut = format!(
        "python3 -c 'import socket\ns = socket.create_connection((\"allowed.test\", {port}))\n\
         print(\"open\", flush=True)\n\
         try: print(s.recv(1))\nexcept ConnectionResetError: print(\"cut\")'"
    );
    let mut held = server
        .instance()
        .command(&["sandbox", "exec", "box", "--timeout", "60", "--", &cut])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(held.stdout.take().unwrap()));
    assert_eq!(lines.next().unwrap().unwrap(), "open");
    let open = server.json(&["sandbox", "egress", "box"])["open"].as_array().unwrap().len();
    assert_eq!(open, 1);
    patch(&server, "other");
    assert_eq!(lines.next().unwrap().unwrap(), "cut");
    held.wait().unwrap();
    let refused = run(&server, &format!("curl -sS {url} 2>&1; true"));
    assert!(refused.contains("Could not resolve host"), "{refused}");
    let before = entries(&server);
    let reasons: Vec<&str> = before.iter().map(|entry| entry["reason"].as_str().unwrap()).collect();
    assert_eq!(reasons, ["ended", "policy_changed", "not_allowed"], "{before:#?}");

    let instance = server.instance.as_mut().unwrap();
    instance.kill_server().unwrap();
    instance.start().unwrap();
    assert_eq!(entries(&server), before, "a restart forgot");
    patch(&server, "test");
    assert_eq!(run(&server, &format!("curl -sS {url}")), "ok");
    let all = entries(&server);
    assert_eq!((all.len(), &all[..3]), (4, &before[..]));
    let after = all[2]["id"].as_str().unwrap();
    let path = server.curl(&format!("/v1/sandboxes/box/egress?after={after}"));
    let newest: Value = serde_json::from_str(&path).unwrap();
    assert_eq!(newest["entries"], serde_json::json!([all[3]]));
    let all = followed(&server, all, &url);
    server.ok(&["sandbox", "stop", "box"]);
    assert_eq!(entries(&server), all);
    server.end();
}

/// What is known comes first, then what happens meanwhile, each once; gives all of it.
fn followed(server: &Server, mut known: Vec<Value>, url: &str) -> Vec<Value> {
    let mut follower = server
        .instance()
        .command(&["sandbox", "egress", "box", "--follow", "--json"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let lines = std::io::BufRead::lines(std::io::BufReader::new(follower.stdout.take().unwrap()));
    let mut lines = lines.map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap());
    let first: Vec<Value> = lines.by_ref().take(known.len()).collect();
    assert_eq!(first, known);
    assert_eq!(run(server, &format!("curl -sS {url}")), "ok");
    let next = lines.next().unwrap();
    assert_eq!((&next["target"], &next["verdict"]), (&"allowed.test".into(), &"allowed".into()));
    follower.kill().unwrap();
    follower.wait().unwrap();
    known.push(next);
    known
}

fn patch(server: &Server, policy: &str) {
    let body = format!("{{\"policy\": \"{policy}\"}}");
    let answer = server.curl_with("/v1/sandboxes/box", &["-X", "PATCH", "--data", &body]);
    assert!(answer.contains(&format!("\"policy\":\"{policy}\"")), "{answer}");
}
