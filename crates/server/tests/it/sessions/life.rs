//! One session from its create to its end, as its client sees it.

use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use model::{EndReason, SandboxId};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use super::parts::{
    Came, Daemon, Made, Socket, another, becomes, is_prompt, log, says, sequence, server,
    server_with_a_manual_clock, wanted,
};
use crate::client::Client;
use crate::harness::Setup;

fn ends(event: &Value) -> bool {
    event["type"] == "session.ended"
}

#[tokio::test]
async fn a_session_is_made_spoken_to_read_and_deleted() {
    let daemon = Daemon::start().await;
    let server = server(&daemon).await;
    let ann = server.tenant("ann").await;
    let made = Made::new(&ann, &wanted("usr_ann")).await;
    let mut socket = made.attach(ann.address, 0).await;
    let mut events = socket.events_until(is_prompt).await;
    assert_eq!(events[0]["type"], "session.started");
    socket.say(&json!({ "type": "message", "message": "echo héllo" })).await;
    events.extend(socket.events_until(|event| says(event, "héllo")).await);
    events.extend(socket.events_until(is_prompt).await);
    for (n, event) in (1..).zip(&events) {
        assert_eq!(sequence(event), n);
        assert_eq!(event["session_id"], made.id);
        assert_eq!(event["event_id"], format!("evt_{n}"));
    }
    assert_eq!(log(&ann, &made).await, events, "the log is what the client was given");

    socket
        .say(&json!({ "type": "exec", "id": "7", "command": "printf hi; printf no >&2; exit 3" }))
        .await;
    let mut frames = Vec::new();
    while frames.last().is_none_or(|last: &Value| last["type"] != "exit") {
        frames.push(socket.control().await);
    }
    let of = |kind: &str| {
        let frames = frames.iter().filter(|frame| frame["type"] == kind);
        frames.map(|frame| frame["data"].as_str().unwrap_or_default()).collect::<String>()
    };
    assert_eq!((of("stdout"), of("stderr")), ("hi".into(), "no".into()));
    assert_eq!(frames.last().unwrap(), &json!({ "type": "exit", "exit_code": 3, "id": "7" }));

    // What an agent does not take, or that is no frame, is told and closes nothing.
    socket
        .say(&json!({ "type": "permission.reply", "permission_id": "../x", "reply": "once" }))
        .await;
    assert_eq!(socket.control().await["event"], "error");
    socket.say(&json!({ "type": "screenshot" })).await;
    assert_eq!(socket.control().await["event"], "error");

    let sandbox = format!("/v1/sandboxes/{}", made.sandbox);
    let shown = ann.get(&sandbox).await.json(200);
    assert_eq!(shown["metadata"]["session_id"], made.id);
    ann.delete(&made.path()).await.json(200);
    let (_, over) = socket.rest().await;
    assert_eq!(over, Came::Close(1001, "sandbox destroyed".into()));
    assert_eq!(ann.get(&made.path()).await.status.as_u16(), 404);
    assert_eq!(ann.get(&sandbox).await.json(200)["state"], "destroyed");
    let today = Timestamp::now().to_zoned(TimeZone::UTC).date();
    let history = format!("/v1/usage/history?to={}", today.tomorrow().unwrap());
    let history = ann.get(&history).await.json(200);
    let counts = history["entries"].as_array().unwrap().iter();
    assert_eq!(counts.filter_map(|day| day["session_count"].as_i64()).sum::<i64>(), 1, "{history}");
    server.stop().await;
    daemon.stop().await;
}

#[tokio::test]
async fn a_session_that_names_no_model_has_the_one_of_the_settings() {
    let daemon = Daemon::start().await;
    let setup = Setup::with("[llm.default_models]\nopenai = 'gpt-ours'\n");
    setup.pools[0].0.set_agents(daemon.port);
    let server = setup.start().await;
    let ann = server.tenant("ann").await;
    for (llm, expected) in [
        (json!({ "vendor": "openai" }), "gpt-ours"),
        (json!({ "vendor": "openai", "model": "gpt-theirs" }), "gpt-theirs"),
        (json!({ "vendor": "anthropic" }), "claude-sonnet-4-5"),
    ] {
        let mut body = wanted("usr_ann");
        body["llm"] = llm;
        let made = Made::new(&ann, &body).await;
        assert_eq!(ann.get(&made.path()).await.json(200)["llm"]["model"], expected);
    }
    server.stop().await;
    daemon.stop().await;
}

#[tokio::test]
async fn a_list_is_read_a_page_at_a_time_the_newest_first() {
    let daemon = Daemon::start().await;
    let server = server(&daemon).await;
    let (ann, bob) = (server.tenant("ann").await, server.tenant("bob").await);
    let mut made = Vec::new();
    for _ in 0..3 {
        made.insert(0, Made::new(&ann, &wanted("usr_ann")).await.id);
    }
    Made::new(&bob, &wanted("usr_bob")).await;
    let ids = |page: &Value| -> Vec<String> {
        let sessions = page["sessions"].as_array().unwrap().iter();
        sessions.map(|one| one["chat_session_id"].as_str().unwrap().to_owned()).collect()
    };
    let all = ann.get("/v1/sessions").await.json(200);
    assert_eq!((ids(&all), all.get("next_token")), (made.clone(), None));
    let first = ann.get("/v1/sessions?limit=2").await.json(200);
    assert_eq!(ids(&first), made[..2]);
    let token = first["next_token"].as_str().unwrap();
    let rest = ann.get(&format!("/v1/sessions?limit=2&token={token}")).await.json(200);
    assert_eq!((ids(&rest), rest.get("next_token")), (made[2..].to_vec(), None));
    let exact = ann.get("/v1/sessions?limit=3").await.json(200);
    assert_eq!(exact.get("next_token"), None, "nothing comes after it");
    for (query, field) in
        [("limit=0", "limit"), ("limit=x", "limit"), ("token=x", "token"), ("offset=1", "offset")]
    {
        ann.get(&format!("/v1/sessions?{query}")).await.refuses(field);
    }
    server.stop().await;
    daemon.stop().await;
}

#[tokio::test]
async fn what_cannot_be_made_leaves_nothing() {
    let daemon = Daemon::start().await;
    let server = server(&daemon).await;
    let ann = server.tenant("ann").await;
    let mut body = wanted("usr_ann");
    body["secrets"] = json!(["nothing"]);
    ann.post("/v1/sessions", &body).await.problem(404, "not_found");
    let mut body = wanted("usr_ann");
    body["agent"]["version"] = json!("b4232d5");
    ann.post("/v1/sessions", &body).await.refuses("agent.version");
    let mut body = wanted("usr_ann");
    body["llm"]["base_url"] = json!("https://127.0.0.1/v1");
    ann.post("/v1/sessions", &body).await.refuses("llm.base_url");
    let port = daemon.port;
    daemon.stop().await;
    let refused = ann.post("/v1/sessions", &wanted("usr_ann")).await;
    assert!(refused.status.is_server_error(), "{refused:?}");
    let list = ann.get("/v1/sessions").await.json(200);
    assert_eq!(list["sessions"], json!([]));
    let list = ann.get("/v1/sandboxes").await.json(200);
    let all = list.as_array().unwrap();
    assert!(all.iter().all(|sandbox| sandbox["state"] == "destroyed"), "{list} at {port}");
    server.stop().await;
}

#[tokio::test]
async fn another_server_goes_on_where_the_log_ends() {
    let daemon = Daemon::start().await;
    let server = server(&daemon).await;
    let ann = server.tenant("ann").await;
    let made = Made::new(&ann, &wanted("usr_ann")).await;
    let mut socket = made.attach(ann.address, 0).await;
    let mut events = socket.events_until(is_prompt).await;
    let key = ann.key.clone();
    let server = another(server).await;
    let (more, over) = socket.rest().await;
    assert_eq!((more, over), (vec![], Came::Close(1001, "server shutting down".into())));
    let ann = Client { key, ..server.operator.clone() };
    let from = events.last().map_or(0, sequence);
    let mut socket = made.attach(ann.address, from).await;
    socket.say(&json!({ "type": "message", "message": "demo" })).await;
    events.extend(socket.events_until(is_prompt).await);
    // The daemon may be restarted too: it is told again what it had in memory.
    let daemon = daemon.restart().await;
    for tries in 0.. {
        socket.say(&json!({ "type": "message", "message": "echo again" })).await;
        let next = socket.next().await;
        if let Came::Event(event) = next {
            events.push(event);
            break;
        }
        assert!(tries < 500, "{next:?}");
        sleep(Duration::from_millis(20)).await;
    }
    events.extend(socket.events_until(is_prompt).await);
    assert!(events.iter().map(sequence).eq(1..=events.len() as u64));
    assert_eq!(log(&ann, &made).await, events);
    server.stop().await;
    daemon.stop().await;
}

#[tokio::test]
async fn a_sandbox_that_dies_under_a_session_is_told_with_its_reason() {
    let daemon = Daemon::start().await;
    let server = server(&daemon).await;
    let ann = server.tenant("ann").await;
    for (reason, code, status) in
        [(EndReason::Oom, "oom", "failed"), (EndReason::Exited, "exited", "failed")]
    {
        let made = Made::new(&ann, &wanted("usr_ann")).await;
        let mut socket = made.attach(ann.address, 0).await;
        socket.events_until(is_prompt).await;
        let sandbox: SandboxId = made.sandbox.parse().unwrap();
        server.driver.kill(sandbox, reason);
        let (events, over) = socket.rest().await;
        let [.., error, ended] = &events[..] else { panic!("{events:?}") };
        assert_eq!((&error["type"], &error["data"]["code"]), (&json!("error"), &json!(code)));
        assert_eq!(ended["type"], "session.ended");
        assert_eq!(ended["data"]["terminated_by"], "daemon");
        assert_eq!(over, Came::Close(1001, "sandbox destroyed".into()));
        let seen = becomes(&ann, &made, status).await;
        assert_eq!(seen["reason"], code);
        let refused = made.attach(ann.address, 0).await.rest().await;
        assert_eq!(refused.1, Came::Close(1011, "upstream unavailable".into()));
    }
    server.stop().await;
    daemon.stop().await;
}

/// Of a pool that does not answer when a server begins, nobody knows yet what it has.
#[tokio::test]
async fn one_whose_pool_was_away_at_the_start_goes_on_when_it_is_back() {
    let daemon = Daemon::start().await;
    let server = server_with_a_manual_clock(&daemon).await;
    let ann = server.tenant("ann").await;
    let made = Made::new(&ann, &wanted("usr_ann")).await;
    let driver = server.driver.clone();
    driver.set_reachable(false);
    let server = another(server).await;
    let ann = Client { key: ann.key, ..server.operator.clone() };
    ann.get("/v1/sandboxes").await.problem(503, "unavailable");
    driver.set_reachable(true);
    // It answers, and was not read: longer than between two looks for the session's sandbox.
    assert_eq!(ann.get("/v1/sandboxes").await.json(200)["partial"], true);
    sleep(Duration::from_millis(1500)).await;
    assert_eq!(ann.get(&made.path()).await.json(200)["status"], "running");
    server.clock.advance(Duration::from_secs(10));
    made.attach(ann.address, 0).await.events_until(is_prompt).await;
    server.stop().await;
    daemon.stop().await;
}

#[tokio::test]
async fn one_that_died_while_nobody_served_is_found_and_told_once() {
    let daemon = Daemon::start().await;
    let server = server(&daemon).await;
    let ann = server.tenant("ann").await;
    let made = Made::new(&ann, &wanted("usr_ann")).await;
    made.attach(ann.address, 0).await.events_until(is_prompt).await;
    let (key, driver) = (ann.key.clone(), server.driver.clone());
    let (clock, dir) = (server.clock.clone(), server.dir.clone());
    server.stop().await;
    driver.kill(made.sandbox.parse().unwrap(), EndReason::Oom);
    let mut server =
        Setup { clock, dir, pools: vec![(driver, None)], ..Setup::new() }.start().await;
    for _ in 0..2 {
        let ann = Client { key: key.clone(), ..server.operator.clone() };
        becomes(&ann, &made, "failed").await;
        let events = log(&ann, &made).await;
        assert_eq!(events.iter().filter(|event| ends(event)).count(), 1, "{events:?}");
        server = another(server).await;
    }
    server.stop().await;
    daemon.stop().await;
}

#[tokio::test]
async fn an_agent_that_ends_ends_its_session() {
    let daemon = Daemon::start().await;
    let server = server(&daemon).await;
    let ann = server.tenant("ann").await;
    let made = Made::new(&ann, &wanted("usr_ann")).await;
    let mut socket = made.attach(ann.address, 0).await;
    socket.say(&json!({ "type": "message", "message": "end" })).await;
    let (events, over) = socket.rest().await;
    assert!(ends(events.last().unwrap()), "{events:?}");
    assert_eq!(over, Came::Close(1001, "sandbox destroyed".into()));
    let shown = ann.get(&made.path()).await.json(200);
    assert_ne!(shown["status"], "running", "{shown}");
    server.stop().await;
    daemon.stop().await;
}

#[tokio::test]
async fn a_second_client_displaces_the_first() {
    let daemon = Daemon::start().await;
    let server = server(&daemon).await;
    let ann = server.tenant("ann").await;
    let made = Made::new(&ann, &wanted("usr_ann")).await;
    let mut first = made.attach(ann.address, 0).await;
    first.events_until(is_prompt).await;
    let mut second = made.attach(ann.address, 0).await;
    second.events_until(is_prompt).await;
    let (_, over) = first.rest().await;
    assert!(matches!(over, Came::Close(1011, _)), "{over:?}");
    second.say(&json!({ "type": "message", "message": "echo still here" })).await;
    second.events_until(|event| says(event, "still here")).await;
    server.stop().await;
    daemon.stop().await;
}

#[tokio::test]
async fn a_session_that_nobody_uses_idles_away_and_one_with_a_client_does_not() {
    let daemon = Daemon::start().await;
    let server = server_with_a_manual_clock(&daemon).await;
    let ann = server.tenant("ann").await;
    let made = Made::new(&ann, &wanted("usr_ann")).await;
    let mut socket = made.attach(ann.address, 0).await;
    socket.events_until(is_prompt).await;
    for _ in 0..4 {
        server.clock.advance(Duration::from_secs(40));
        sleep(Duration::from_millis(30)).await;
    }
    assert_eq!(ann.get(&made.path()).await.json(200)["status"], "running");
    drop(socket);
    for _ in 0..2000 {
        server.clock.advance(Duration::from_secs(1));
        sleep(Duration::from_millis(5)).await;
        let seen = ann.get(&made.path()).await.json(200);
        if seen["status"] == "completed" {
            assert_eq!(seen["reason"], "idle");
            server.stop().await;
            return daemon.stop().await;
        }
    }
    panic!("it never idles");
}

/// A session that names the bundle `keys`, and its client.
async fn with_keys(ann: &Client) -> (Made, Socket) {
    let bundle = json!({ "name": "keys", "values": { "LLM_API_KEY": "sk-before", "TOKEN": "a" } });
    ann.post("/v1/tenants/me/secrets", &bundle).await.json(201);
    let mut body = wanted("usr_ann");
    body["secrets"] = json!(["keys"]);
    let made = Made::new(ann, &body).await;
    let mut socket = made.attach(ann.address, 0).await;
    socket.events_until(is_prompt).await;
    (made, socket)
}

#[tokio::test]
async fn new_secrets_reach_a_session_that_runs_and_a_deleted_bundle_does_not_end_it() {
    let daemon = Daemon::start().await;
    let server = server(&daemon).await;
    let ann = server.tenant("ann").await;
    let (made, mut socket) = with_keys(&ann).await;
    let new = json!({ "values": { "LLM_API_KEY": "sk-after", "TOKEN": "a", "MORE": "b" } });
    let put = ann.request("PUT", "/v1/tenants/me/secrets/keys").body(new.to_string().into());
    ann.send(put.unwrap()).await.json(200);
    let frame = socket.control().await;
    assert_eq!(
        frame,
        json!({ "type": "system", "event": "config_update", "keys": ["LLM_API_KEY", "MORE"] })
    );
    ann.delete("/v1/tenants/me/secrets/keys").await.json(200);
    socket.say(&json!({ "type": "message", "message": "echo on" })).await;
    socket.events_until(|event| says(event, "on")).await;
    let log = log(&ann, &made).await;
    assert!(!format!("{log:?}").contains("sk-"), "no secret is in the log");
    server.stop().await;
    daemon.stop().await;
}

#[tokio::test]
async fn new_secrets_reach_a_session_also_when_who_gave_them_has_gone() {
    let daemon = Daemon::start().await;
    let server = server(&daemon).await;
    let ann = server.tenant("ann").await;
    let (_made, mut socket) = with_keys(&ann).await;
    let mut before = Value::Null;
    for round in 1..60_u64 {
        let new = json!({ "values": { "LLM_API_KEY": "sk-before", "TOKEN": round.to_string() } });
        let put = ann.request("PUT", "/v1/tenants/me/secrets/keys").body(new.to_string().into());
        tokio::select! {
            _ = ann.send(put.unwrap()) => {}
            () = sleep(Duration::from_millis(round % 6)) => {}
        }
        sleep(Duration::from_millis(30)).await;
        let now = ann.get("/v1/tenants/me/secrets/keys").await.json(200)["last_rotated_at"].take();
        if now != before {
            let told = timeout(Duration::from_secs(5), socket.control()).await;
            let told = told.unwrap_or_else(|_| panic!("round {round}: replaced, but not told"));
            assert!(told["keys"].as_array().unwrap().contains(&json!("TOKEN")), "{told}");
        }
        before = now;
    }
    drop(socket);
    server.stop().await;
    daemon.stop().await;
}
