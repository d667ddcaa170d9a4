//! Several servers on one data directory (ruling 24): one leads, the others pass calls on; the lease
//! moves when the leader ends or dies, and whoever calls does not notice.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use rustix::process::Signal;

use super::pause;
use super::town::{Asker, Town};

const CREATE: &str = r#"{"template":"host","tier":"persistent"}"#;

#[track_caller]
fn created(asker: &Asker) -> String {
    let answer = asker.ask("POST", "/v1/sandboxes", CREATE).unwrap();
    assert_eq!(answer.status, 201, "{answer:?}");
    answer.body["id"].as_str().unwrap().to_owned()
}

#[test]
fn every_server_answers_everything_and_shows_the_same() {
    let (mut town, first) = Town::found();
    let (second, third) = (town.join(), town.join());
    assert_eq!(town.standing(first), ("leader".into(), 1));
    for port in [second, third] {
        assert_eq!(town.standing(port), ("follower".into(), 1));
    }
    let asker = town.asker(second);
    let id = created(&asker);
    for port in [first, second, third] {
        assert_eq!(town.asker(port).exec(&id, "echo hi").unwrap(), "hi\n");
        let (leads, epoch) = (i32::from(port == first), 1);
        let metrics = town.ask(port, "GET", "/metrics", "").body.to_string();
        assert!(metrics.contains(&format!(r"bastide_leads {leads}\n")), "{metrics}");
        assert!(metrics.contains(&format!(r"bastide_lease_epoch {epoch}\n")), "{metrics}");
    }
    let status = town.status(second);
    assert_eq!(status["server"]["role"], "follower");
    let roles: Vec<_> = status["servers"].as_array().unwrap().iter().map(|s| &s["role"]).collect();
    assert_eq!(roles, ["leader", "follower", "follower"], "{status}");
    // A stream through a follower, which ends with its command.
    let streamed = asker.ask(
        "POST",
        &format!("/v1/sandboxes/{id}/exec/stream"),
        r#"{"command":"echo a; echo b"}"#,
    );
    assert!(streamed.unwrap().body.to_string().contains("exit_code"));
    // Files one way, another server the other way.
    let file = format!("/v1/sandboxes/{id}/files?path=/workspace/note");
    assert_eq!(town.ask(third, "POST", &file, "words").status, 200);
    assert_eq!(town.ask(second, "GET", &file, "").body, "words");
    for action in ["pause", "resume", "stop", "start"] {
        let answer = asker.ask("POST", &format!("/v1/sandboxes/{id}/{action}"), "").unwrap();
        assert_eq!(answer.status, 200, "{action}: {answer:?}");
        // When it was used last is heard of a little later.
        let shown = |port| {
            let mut list = town.ask(port, "GET", "/v1/sandboxes", "").body;
            for sandbox in list.as_array_mut().unwrap() {
                sandbox.as_object_mut().unwrap().remove("last_activity_at");
            }
            list
        };
        assert_eq!(shown(first), shown(second), "after {action}");
        assert_eq!(shown(first), shown(third), "after {action}");
    }
    // Refusals are the leader's.
    let unknown = asker.exec("sb-00000000000000000000000000", "true");
    assert!(unknown.unwrap_err().contains("404"));
    let key = asker.ask("POST", "/v1/api-keys", r#"{"owner":"usr_ada","plan":"free"}"#).unwrap();
    let ada = |port| Asker { port, key: key.body["key"].as_str().unwrap().to_owned() };
    for port in [first, second, third] {
        assert_eq!(ada(port).ask("GET", "/v1/sandboxes", "").unwrap().status, 200);
        assert!(ada(port).exec(&id, "true").unwrap_err().contains("404"));
    }
    // Revoked at one, refused by all at once.
    let path = format!("/v1/api-keys/{}?owner=usr_ada", key.body["key_id"].as_str().unwrap());
    assert_eq!(town.ask(third, "DELETE", &path, "").status, 200);
    for port in [first, second, third] {
        assert_eq!(ada(port).ask("GET", "/v1/sandboxes", "").unwrap().status, 401);
    }
    town.close(second);
}

#[test]
fn a_key_for_a_create_holds_over_all_servers() {
    let (mut town, first) = Town::found();
    let second = town.join();
    let race = |port| {
        let asker = town.asker(port);
        move || asker.ask_with("Idempotency-Key: race\r\n", "POST", "/v1/sandboxes", CREATE)
    };
    let callers: Vec<_> =
        (0..50).map(|n| thread::spawn(race(if n % 2 == 0 { first } else { second }))).collect();
    let answers = callers.into_iter().map(|caller| caller.join().unwrap().unwrap());
    let ids: BTreeSet<String> = answers
        .map(|answer| {
            assert_eq!(answer.status, 201, "{answer:?}");
            answer.body["id"].as_str().unwrap().to_owned()
        })
        .collect();
    assert_eq!(ids.len(), 1, "{ids:?}");
    assert_eq!(town.listed(second), ids.into_iter().collect::<Vec<_>>());
    town.close(second);
}

#[test]
fn creates_survive_leaders_that_are_killed_and_none_is_made_twice() {
    let (mut town, first) = Town::found();
    let (second, third) = (town.join(), town.join());
    let more = AtomicBool::new(true);
    let made = thread::scope(|scope| {
        let creators: Vec<_> = (0..3)
            .map(|_| {
                let asker = town.asker(third);
                let more = &more;
                scope.spawn(move || {
                    let mut made = Vec::new();
                    while more.load(Ordering::Relaxed) {
                        made.push(created(&asker));
                    }
                    made
                })
            })
            .collect();
        let grown = |town: &Town, than: usize| {
            while town.listed(third).len() < than {
                pause();
            }
        };
        grown(&town, 5);
        town.kill(first);
        let leads = |port: &u16| town.standing(*port).0 == "leader";
        let mut next = None;
        while next.is_none() {
            pause();
            next = [second, third].into_iter().find(leads);
        }
        let so_far = town.listed(third).len();
        grown(&town, so_far + 5);
        // If the creators' own server leads now, their connections would break with it.
        if next == Some(second) {
            town.kill(second);
            town.until_leads(third);
        }
        let so_far = town.listed(third).len();
        grown(&town, so_far + 5);
        more.store(false, Ordering::Relaxed);
        let made = creators.into_iter().flat_map(|creator| creator.join().unwrap());
        made.collect::<BTreeSet<_>>()
    });
    // All that was answered is there, and nothing else.
    assert_eq!(town.listed(third), made.iter().cloned().collect::<Vec<_>>());
    for id in &made {
        assert_eq!(town.asker(third).exec(id, "echo up").unwrap(), "up\n");
    }
    town.close(third);
}

/// What a client does all day, at one address; any failure is one.
fn work(asker: &Asker, more: &AtomicBool, asked: &AtomicUsize) -> Vec<String> {
    let mut failures = Vec::new();
    let mut ask = |method: &str, path: &str, body: &str, expected: u16| {
        asked.fetch_add(1, Ordering::Relaxed);
        match asker.ask(method, path, body) {
            Ok(answer) if answer.status == expected => Some(answer),
            other => {
                failures.push(format!("{method} {path}: {other:?}"));
                None
            }
        }
    };
    while more.load(Ordering::Relaxed) {
        let Some(made) = ask("POST", "/v1/sandboxes", CREATE, 201) else { continue };
        let path = format!("/v1/sandboxes/{}", made.body["id"].as_str().unwrap());
        for _ in 0..3 {
            ask("POST", &format!("{path}/exec"), r#"{"command":"echo hi"}"#, 200);
        }
        ask("POST", &format!("{path}/stop"), "", 200);
        ask("GET", "/v1/sandboxes", "", 200);
        ask("DELETE", &path, "", 200);
    }
    failures
}

#[test]
fn an_upgrade_under_load_fails_no_request() {
    let (mut town, shared) = Town::found();
    let kept = created(&town.asker(shared));
    let marked = "sleep 1000 >/dev/null 2>&1 & echo $! > /workspace/pid";
    town.asker(shared).exec(&kept, marked).unwrap();
    let (more, asked) = (AtomicBool::new(true), AtomicUsize::new(0));
    let failures = thread::scope(|scope| {
        let workers: Vec<_> = (0..4)
            .map(|_| {
                let asker = town.asker(shared);
                let (more, asked) = (&more, &asked);
                scope.spawn(move || work(&asker, more, asked))
            })
            .collect();
        let mut old = shared;
        for _ in 0..3 {
            let new = town.join_at(shared);
            let so_far = asked.load(Ordering::Relaxed);
            while asked.load(Ordering::Relaxed) < so_far + 40 {
                pause();
            }
            town.end(old);
            town.until_leads(new);
            let so_far = asked.load(Ordering::Relaxed);
            while asked.load(Ordering::Relaxed) < so_far + 40 {
                pause();
            }
            old = new;
        }
        more.store(false, Ordering::Relaxed);
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect::<Vec<_>>()
    });
    let asked = asked.into_inner();
    let _ = writeln!(std::io::stdout(), "{} of {asked} requests failed", failures.len());
    assert_eq!(failures, Vec::<String>::new(), "of {asked}");
    let alive = "tr '\\0' ' ' < /proc/$(cat /workspace/pid)/cmdline";
    assert_eq!(town.asker(shared).exec(&kept, alive).unwrap().trim_end(), "sleep 1000");
    town.close(shared);
}

#[test]
fn a_leader_that_is_stopped_stops_nothing_that_runs() {
    let (mut town, first) = Town::found();
    let second = town.join();
    let asker = town.asker(second);
    let id = created(&asker);
    // What the leader told its clients a moment ago it tells the others a moment later.
    for _ in 0..10 {
        assert_eq!(asker.exec(&id, "echo on").unwrap(), "on\n");
        pause();
    }
    town.signal(first, Signal::STOP);
    assert_eq!(asker.exec(&id, "echo on").unwrap(), "on\n");
    let refused = asker.ask("POST", &format!("/v1/sandboxes/{id}/stop"), "").unwrap();
    assert_eq!(refused.status, 503, "{refused:?}");
    assert!(refused.head.contains("retry-after: "), "{refused:?}");
    assert!(refused.body["detail"].as_str().unwrap().contains("the process "), "{refused:?}");
    // As its hint says: end that process.
    town.kill(first);
    town.until_leads(second);
    assert_eq!(asker.ask("DELETE", &format!("/v1/sandboxes/{id}"), "").unwrap().status, 200);
    town.close(second);
}

#[test]
fn a_leader_that_wakes_up_after_the_lease_has_moved_does_not_act() {
    let (mut town, first) = Town::found();
    let id = created(&town.asker(first));
    // What is written about it is written: the database is nobody's now.
    (0..100).for_each(|_| pause());
    town.signal(first, Signal::STOP);
    // A lock is kept while its holder is stopped. So somebody has to break it by hand.
    for file in ["lease", "lock"] {
        std::fs::remove_file(town.in_data(file)).unwrap();
    }
    let second = town.join();
    assert_eq!(town.standing(second), ("leader".into(), 2));
    // It finds this when it wakes up.
    let mut stale = TcpStream::connect((Ipv4Addr::LOCALHOST, first)).unwrap();
    let path = format!("/v1/sandboxes/{id}");
    let delete = town.asker(first).request("", "DELETE", &path, "");
    stale.write_all(delete.as_bytes()).unwrap();
    town.signal(first, Signal::CONT);
    let status = town.ended(first);
    assert!(!status.success(), "it ends by itself:\n{}", town.told(first));
    let mut said = String::new();
    // It may have ended before it said anything.
    let _ = stale.read_to_string(&mut said);
    assert!(!said.starts_with("HTTP/1.1 200"), "{said}");
    assert!(town.told(first).contains("was lost"), "{}", town.told(first));
    assert_eq!(town.asker(second).exec(&id, "echo still here").unwrap(), "still here\n");
    assert_eq!(town.listed(second), [id]);
    town.close(second);
}

#[test]
fn a_command_through_a_follower_keeps_its_sandbox_from_idling() {
    let (mut town, first) = Town::found();
    let second = town.join();
    let body = r#"{"template":"host","idle_timeout_seconds":2}"#;
    let made = town.ask(first, "POST", "/v1/sandboxes", body);
    assert_eq!(made.status, 201, "{made:?}");
    let id = made.body["id"].as_str().unwrap();
    assert_eq!(town.asker(second).exec(id, "sleep 6; echo done").unwrap(), "done\n");
    // And nothing keeps it once nobody uses it.
    while !town.listed(first).is_empty() {
        pause();
    }
    town.close(second);
}
