//! `bastide` as an ordinary user: with the ids of a subuid range, and with none but their own.

mod serve;

mod user;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use self::user::{Ids, UID, User, pause, processes, text};

#[test]
fn a_command_runs_with_its_input_output_and_exit_code() {
    for ids in [Ids::Range, Ids::One] {
        let user = User::new(ids);
        let script = "cat; echo err >&2; exit 42";
        user.check(&["--", "sh", "-c", script], "in\n", (42, "in\n", "err\n"));
        user.check(
            &["-e", "A=b c", "-w", "/tmp", "--", "sh", "-c", "echo $A $PWD"],
            "",
            (0, "b c /tmp\n", ""),
        );
        user.check(&["-u", "root", "--", "id", "-u"], "", (0, "0\n", ""));
        user.check(&["--", "sh", "-c", "kill -SEGV $$"], "", (139, "", ""));
        let expected = if ids == Ids::Range { "user /home/user\n" } else { "root /home/user\n" };
        user.check(&["--", "sh", "-c", "echo $(id -un) $HOME"], "", (0, expected, ""));
        let wrote = "cd && touch mine && touch /workspace/too && ls";
        user.check(&["--", "sh", "-c", wrote], "", (0, "mine\n", ""));
        assert_eq!(user.run(&["--", "no-such-program-here"], "").status.code(), Some(127));
    }
}

#[test]
fn doctor_says_what_is_weaker() {
    for (ids, expected) in [(Ids::Range, "shared_ids"), (Ids::One, "one_id")] {
        let user = User::new(ids);
        let output = user.command(&["doctor", "--host-only", "--json"]).output().unwrap();
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let rows = report["rows"].as_array().unwrap();
        let of_user: Vec<_> = rows.iter().filter(|row| row["area"] == "without root").collect();
        let weak = of_user.iter().filter(|row| row["outcome"] == "weak" && row["hint"].is_string());
        let weak: Vec<_> = weak.filter_map(|row| row["what"].as_str()).collect();
        assert!(weak.contains(&expected) && weak.contains(&"disk"), "{ids:?}: {report:#}");
        assert_eq!(
            (&of_user[0]["what"], &of_user[0]["outcome"]),
            (&json!("user namespaces"), &json!("held"))
        );
    }
}

#[test]
fn doctors_attacks_get_through_only_where_it_says_so() {
    for ids in [Ids::Range, Ids::One] {
        let user = User::new(ids);
        let output = user.command(&["doctor", "--json"]).output().unwrap();
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(0), "{ids:?}: {report:#}");
        let rows = report["rows"].as_array().unwrap();
        assert!(rows.len() > 60, "{report:#}");
        let row = |area, what| rows.iter().find(|row| row["area"] == area && row["what"] == what);
        let inotify = row("neighbours", "inotify").unwrap();
        let expected = if ids == Ids::Range { "held" } else { "weak" };
        assert_eq!(inotify["outcome"], expected, "{inotify}");
        let pipes = row("neighbours", "pipes").unwrap()["seen"].as_str().unwrap().to_owned();
        assert!(pipes.contains("; its pipes "), "{pipes}");
        // No package that could be installed helps an ordinary user.
        let disk = row("limits", "disk").unwrap()["hint"].as_str().unwrap().to_owned();
        assert!(disk.starts_with("run as root"), "{disk}");
    }
}

#[test]
fn debian_is_not_begun_with_one_id() {
    let user = User::new(Ids::One);
    let output = user.command(&["template", "build", "standard"]).output().unwrap();
    let said = text(&output.stderr);
    assert!(!output.status.success() && said.contains("\nhint: docs/rootless.md"), "{said}");
    assert!(!said.contains("[1/"), "{said}");
}

#[test]
fn a_command_may_have_a_terminal() {
    let user = User::new(Ids::Range);
    let script = format!("{} run -t -- sh -c 'tty; id -un'", user.program().display());
    let mut command = Command::new("script");
    command.args(["-qec", &script, "/dev/null"]).env("TMPDIR", user.dir.path().join("home"));
    let output = command.stdin(Stdio::null()).output().unwrap();
    let said = text(&output.stdout);
    assert!(said.contains("/dev/pts/") && said.contains("user"), "{said}");
}

#[test]
fn the_walls_stand() {
    for ids in [Ids::Range, Ids::One] {
        let user = User::new(ids);
        for (attack, refusal) in [
            ("cat /etc/shadow", "No such file"),
            (&*format!("ls {}", user.dir.path().display()), "No such file"),
            ("mount -t tmpfs none /mnt", ""),
            ("unshare -U true", ""),
            ("mknod /tmp/disk b 254 0", "permitted"),
            ("echo 1 > /proc/sys/kernel/panic", "Read-only"),
            ("chown 70000 /tmp", "nvalid argument"),
            (
                "python3 -c 'import socket; socket.create_connection((\"1.1.1.1\", 80), 2)'",
                "unreachable",
            ),
            ("touch /usr/bin/x", "Read-only"),
        ] {
            let output = user.run(&["-u", "root", "--", "sh", "-c", attack], "");
            let said = text(&output.stdout) + &text(&output.stderr);
            assert!(!output.status.success(), "{ids:?}: {attack}: {said}");
            assert!(said.contains(refusal), "{ids:?}: {attack}: {said}");
        }
        user.check(&["--", "ls", "/sys/fs/cgroup"], "", (0, "", ""));
        let others = "ls -d /proc/[0-9]* | wc -l";
        let seen: u32 =
            text(&user.run(&["--", "sh", "-c", others], "").stdout).trim().parse().unwrap();
        assert!(seen < 8, "{seen} processes are seen");
    }
}

#[test]
fn processes_and_memory_are_limited_without_control_groups() {
    for ids in [Ids::Range, Ids::One] {
        let user = User::new(ids);
        let fork = "import os, time\nn = 0\ntry:\n    while n < 500:\n        \
                    if os.fork() == 0: os.close(1); os.close(2); time.sleep(20); os._exit(0)\n        n += 1\n\
                    except OSError: pass\nprint(n < 60)";
        for account in ["user", "root"] {
            let many = ["--pids", "60", "-u", account, "--", "python3", "-c", fork];
            assert_eq!(text(&user.run(&many, "").stdout), "True\n", "{ids:?} {account}");
        }
        let eat = "b = bytearray(400 << 20)";
        let output = user.run(&["--memory-mib", "200", "--", "python3", "-c", eat], "");
        assert!(text(&output.stderr).contains("MemoryError"), "{output:?}");
        let enough = user.run(&["--memory-mib", "800", "--", "python3", "-c", eat], "");
        assert!(enough.status.success(), "{enough:?}");
    }
}

#[test]
fn what_is_allowed_is_reached_and_nothing_else() {
    let user = User::new(Ids::Range);
    let server = std::net::TcpListener::bind("127.0.0.77:0").unwrap();
    let port = server.local_addr().unwrap().port();
    // The sandbox's loopback is its own, so the name is of somewhere else; the host's file knows it.
    let hosts = fs::read_to_string("/etc/hosts").unwrap();
    fs::write(user.dir.path().join("hosts"), hosts + "127.0.0.77 outside.test\n").unwrap();
    let inner = user.dir.path().join("inner");
    let bound = format!("set -e\nmount --bind {}/hosts /etc/hosts\n", user.dir.path().display());
    fs::write(&inner, fs::read_to_string(&inner).unwrap().replace("set -e\n", &bound)).unwrap();
    let answering = std::thread::spawn(move || {
        let (mut stream, _) = server.accept().unwrap();
        let mut asked = [0; 4];
        stream.read_exact(&mut asked).unwrap();
        stream
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\nhello\n")
            .unwrap();
    });
    let url = format!("http://outside.test:{port}/");
    let closed = user.run(&["--", "curl", "-sS", &url], "");
    assert_eq!(closed.status.code(), Some(6), "{closed:?}");
    let rule = format!("outside.test:{port}");
    let allow =
        ["--allow", &rule, "--allow", "127.0.0.77/32", "--", "curl", "-sS", "-m", "10", &url];
    user.check(&allow, "", (0, "hello\n", ""));
    answering.join().unwrap();
}

#[test]
fn a_killed_run_leaves_nothing() {
    for ids in [Ids::Range, Ids::One] {
        let user = User::new(ids);
        let mut child =
            user.command(&["run", "--", "sh", "-c", "echo up; sleep 1000"]).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "up\n");
        child.kill().unwrap();
        child.wait().unwrap();
        for _ in 0..500 {
            if user.left().is_empty() && processes(UID).is_empty() {
                break;
            }
            pause();
        }
    }
}

#[test]
fn signals_reach_the_command() {
    let user = User::new(Ids::One);
    let script = "trap 'echo got-it; exit 3' TERM; echo ready; while :; do sleep 0.05; done";
    let mut child = user.command(&["run", "--", "sh", "-c", script]).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    out.read_line(&mut line).unwrap();
    assert_eq!((line.as_str(), child.wait().unwrap().code()), ("ready\ngot-it\n", Some(3)));
}
