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
