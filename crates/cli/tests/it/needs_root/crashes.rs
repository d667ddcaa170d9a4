//! Servers and keepers that are killed, from the point of view of who uses them (DESIGN 6: state is
//! derived): no sandbox is lost, and what was stopped stays stopped.

use super::Server;

#[test]
fn sandboxes_outlive_a_killed_server_a_killed_keeper_and_both() {
    let mut server = Server::start();
    server.ok(&[
        "sandbox",
        "create",
        "--template",
        "host",
        "--name",
        "asleep",
        "--tier",
        "persistent",
    ]);
    server.ok(&["sandbox", "stop", "asleep"]);
    let begun = "nohup sleep 1000 >/dev/null 2>&1 & echo $! > /workspace/pid";
    server.ok(&["sandbox", "exec", "box", "--", begun]);
    for (kill_server, kill_keeper) in [(true, false), (false, true), (true, true)] {
        let instance = server.instance.as_mut().expect("it is taken only at the end");
        if kill_server {
            instance.kill_server().unwrap();
        }
        if kill_keeper {
            instance.end_keeper().unwrap();
        }
        if kill_server {
            instance.start().unwrap();
        }
        let alive = "tr '\\0' ' ' < /proc/$(cat /workspace/pid)/cmdline";
        assert_eq!(server.ok(&["sandbox", "exec", "box", "--", alive]).trim_end(), "sleep 1000");
        assert_eq!(server.json(&["sandbox", "get", "asleep"])["state"], "stopped");
        // What needs a keeper works too: a new one is started.
        server.ok(&["sandbox", "start", "asleep"]);
        assert_eq!(server.ok(&["sandbox", "exec", "asleep", "--", "echo up"]), "up\n");
        server.ok(&["sandbox", "stop", "asleep"]);
    }
    server.ok(&["sandbox", "rm", "asleep"]);
    server.end();
}

/// What was used is read off the host's own counter, and counted as that says, whoever was killed while it was.
#[test]
fn usage_is_neither_lost_nor_counted_twice_when_servers_are_killed_while_they_count() {
    let mut server = Server::with(&[("BASTIDE_METER_SECONDS", "1")], &[]);
    let busy = "nohup sh -c 'while :; do :; done' >/dev/null 2>&1 &";
    server.ok(&["sandbox", "exec", "box", "--", busy]);
    for pause_ms in [1500, 2300, 900, 3100, 1000, 1900] {
        pause(pause_ms);
        let instance = server.instance.as_mut().expect("it is taken only at the end");
        instance.kill_server().unwrap();
        // Nobody counts now, and it goes on being used.
        pause(pause_ms / 3);
        instance.start().unwrap();
    }
    let used = |server: &Server| -> f64 {
        let id = server.json(&["sandbox", "get", "box"])["id"].as_str().unwrap().to_owned();
        let usage = server.curl(&format!("/v1/sandboxes/{id}/usage"));
        let usage: serde_json::Value = serde_json::from_str(&usage).unwrap();
        usage["cpu_seconds"].as_f64().unwrap()
    };
    let counted = |server: &Server| -> serde_json::Value {
        let all: serde_json::Value =
            serde_json::from_str(&server.curl("/v1/dashboard/sandboxes")).unwrap();
        assert_eq!(all["total"], 1, "{all}");
        all["sandboxes"][0].clone()
    };
    // A little later than it is asked, so never less than this.
    let before = used(&server);
    server.ok(&["sandbox", "stop", "box"]);
    let sandbox = counted(&server);
    let (cpu, running) =
        (sandbox["cpu_seconds"].as_f64().unwrap(), sandbox["running_seconds"].as_f64().unwrap());
    assert!(before > 4.0, "it was hardly used: {before}");
    assert_eq!(sandbox["starts"], 1, "{sandbox}");
    // Whole seconds are shown; stopping takes a moment of its own.
    assert!(cpu + 1.0 >= before && cpu <= before + 5.0, "{before} s were used: {sandbox}");
    let time = |field: &str| sandbox[field].as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
    let lived = time("last_ended_at").duration_since(time("first_started_at")).as_secs_f64();
    assert!((lived - running).abs() <= 1.0, "it ran for {lived} s: {sandbox}");
    // The days say the same as the sandboxes.
    let overview: serde_json::Value =
        serde_json::from_str(&server.curl("/v1/dashboard/overview")).unwrap();
    assert!((overview["cpu_seconds"].as_f64().unwrap() - cpu).abs() <= 1.0, "{overview}");
    let instance = server.instance.as_mut().expect("it is taken only at the end");
    instance.kill_server().unwrap();
    instance.start().unwrap();
    assert_eq!(counted(&server), sandbox, "it is counted again after its end");
    server.end();
}

/// What the host is to keep free, it keeps: nothing is made, everything that is there works.
#[test]
fn below_the_reserve_of_the_disk_a_create_is_507_and_the_rest_goes_on() {
    let mut server = Server::start();
    let restart = |server: &mut Server, reserve_mib: &str| {
        let instance = server.instance.as_mut().expect("it is taken only at the end");
        instance.kill_server().unwrap();
        instance.settings = vec![("BASTIDE_DISK_RESERVE_MIB".to_owned(), reserve_mib.to_owned())];
        instance.start().unwrap();
    };
    // More than any machine has.
    restart(&mut server, "1000000000");
    let body = r#"{"template": "host", "name": "more"}"#;
    let refused = server.curl_with("/v1/sandboxes", &["-d", body]);
    let refused: serde_json::Value = serde_json::from_str(&refused).unwrap();
    assert_eq!((&refused["status"], &refused["code"]), (&507.into(), &"disk_full".into()));
    assert!(refused["detail"].as_str().is_some_and(|why| !why.is_empty()), "{refused}");
    let told = server.instance().command(&["sandbox", "create", "--template", "host"]).output();
    assert_eq!(told.unwrap().status.code(), Some(1));
    // What is there can be used, and removed; nothing of the refused one is left.
    assert_eq!(server.ok(&["sandbox", "exec", "box", "--", "echo up"]), "up\n");
    assert_eq!(server.json(&["sandbox", "list"]).as_array().unwrap().len(), 1);
    restart(&mut server, "64");
    server.ok(&["sandbox", "create", "--template", "host", "--name", "more"]);
    server.ok(&["sandbox", "rm", "more"]);
    server.end();
}

/// Whether the first start chose it or an operator: a later one must not look as if there were a limit.
#[test]
fn disks_without_a_limit_are_told_at_every_start() {
    let mut server = Server::with(&[("BASTIDE_DISK_KIND", "plain")], &[]);
    let said = |server: &Server| {
        let log = server.instance().data().with_file_name("server.log");
        std::fs::read_to_string(log).unwrap().matches("disk_gb is not enforced").count()
    };
    assert_eq!(said(&server), 1);
    let instance = server.instance.as_mut().expect("it is taken only at the end");
    instance.kill_server().unwrap();
    instance.settings.clear();
    instance.start().unwrap();
    assert_eq!(said(&server), 1);
    server.end();
}

#[expect(clippy::disallowed_methods, reason = "a plain thread")]
fn pause(ms: u64) {
    std::thread::sleep(std::time::Duration::from_millis(ms));
}
