//! What a session uses, where it is shown, and that it ends when nobody pays for it any more.

use std::time::Duration;

use engine::Clock;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::double::{Double, item};
use super::parts::{Came, Daemon, Made, Socket, becomes, is_prompt, wanted};
use crate::billing::{grant, owner};
use crate::client::Client;
use crate::harness::Setup;
use crate::vendor::{Vendor, request, say, tokens};

/// A tool that the agent calls, and what it says of itself: twice what is so, to be told apart.
fn of_itself() -> Vec<Value> {
    let call =
        json!({ "type": "tool_call", "name": "search", "arguments": "{}", "call_id": "call_1" });
    let used = json!({ "type": "usage", "input_tokens": 7, "output_tokens": 3, "tool_calls": 4 });
    let used = json!({ "type": "status", "label": "runtime_event", "detail": used.to_string() });
    let call = item("tool_call", "assistant", &call);
    vec![call.clone(), call, item("status", "system", &used)]
}

/// Waits until the path answers with what is wanted of it.
pub(super) async fn until(client: &Client, path: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let mut seen = Value::Null;
    for _ in 0..1000 {
        seen = client.get(path).await.json(200);
        if wanted(&seen) {
            return seen;
        }
        sleep(Duration::from_millis(10)).await;
    }
    panic!("{path}: {seen}");
}

#[tokio::test]
async fn what_the_relay_sees_is_its_owners_and_what_the_agent_says_is_the_sessions() {
    let (vendor, agent) = (Vendor::start().await, Double::start("no", of_itself()).await);
    let setup = Setup::with(&format!("[llm]\nallowed_base_urls = '{}'", vendor.origin));
    setup.pools[0].0.set_agents(agent.port);
    setup.pools[0].0.set_cpu_usec(5_000_000);
    let server = setup.start().await;
    let ann = server.account("ann").await;
    let mut body = wanted(&owner(&ann).await);
    body["llm"] = json!({ "vendor": "anthropic", "base_url": vendor.origin });
    let made = Made::new(&ann, &body).await;
    // With two calls of tools in its answer.
    let said = say(&server, &json!({ "id": made.sandbox }), request("/long")).await;
    assert_eq!(said.status, 200);
    assert!(vendor.last().headers.contains_key("x-api-key"), "the relay answered");

    let told = json!({ "input_tokens": 7, "output_tokens": 3, "tool_calls": 4 });
    until(&ann, &made.path(), |session| session["usage"] == told).await;
    let overview = "/v1/dashboard/overview";
    until(&ann, overview, |seen| seen["input_tokens"] != 0).await;
    // All of it is there now.
    assert_eq!(tokens(&ann).await, (900, 80));
    assert_eq!(ann.get(overview).await.json(200)["billable_tool_calls"], 2);
    let today = Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC).date();
    let (from, to) = (today.yesterday().unwrap(), today.tomorrow().unwrap());
    let daily = ann.get(&format!("/v1/dashboard/usage/daily?from={from}&to={to}")).await;
    let daily = daily.json(200);
    let sum = |name: &str| {
        let days = daily["entries"].as_array().unwrap().iter();
        days.filter_map(|day| day[name].as_i64()).sum::<i64>()
    };
    assert_eq!((sum("input_tokens"), sum("output_tokens")), (900, 80), "{daily}");

    ann.delete(&made.path()).await.json(200);
    let spent = |seen: &Value| seen["infra_usage"]["cpu_seconds"] == 5;
    until(&ann, "/v1/usage", spent).await;
    let list = ann.get("/v1/dashboard/sandboxes").await.json(200);
    let of_session = &list["sandboxes"][0];
    assert_eq!(of_session["sandbox_id"], made.sandbox);
    assert_eq!(of_session["cpu_seconds"], 5);
    server.stop().await;
}

/// Everything up to the close: the frames beside the log, the events, and how it closed.
async fn to_the_end(socket: &mut Socket) -> (Vec<Value>, Vec<Value>, Came) {
    let (mut control, mut events) = (Vec::new(), Vec::new());
    loop {
        match socket.next().await {
            Came::Event(event) => events.push(event),
            Came::Control(frame) => control.push(frame),
            over => return (control, events, over),
        }
    }
}

#[tokio::test]
async fn a_session_without_credit_is_told_so_once_and_ends_and_goes_on_with_credit() {
    let daemon = Daemon::start().await;
    // A cent is a hundred seconds.
    let paid = "[billing]\nenforce = true\n[billing.prices]\nsandbox_second = 10000\n";
    let setup = Setup { clock: Clock::manual(Timestamp::now()), ..Setup::with(paid) };
    setup.pools[0].0.set_agents(daemon.port);
    let server = setup.start().await;
    let ann = server.account("ann").await;
    let id = owner(&ann).await;
    let body = wanted(&id);
    ann.post("/v1/sessions", &body).await.problem(402, "credits_exhausted");
    grant(&server, &id, 2).await;
    let made = Made::new(&ann, &body).await;
    let mut socket = made.attach(ann.address, 0).await;
    socket.events_until(is_prompt).await;

    // A minute is counted at a time: the fourth is beyond what there was.
    let frames = to_the_end(&mut socket);
    let time = async {
        for _ in 0..6 {
            server.clock.advance(Duration::from_secs(61));
            sleep(Duration::from_millis(100)).await;
        }
        std::future::pending::<()>().await;
    };
    let (control, events, over) = tokio::select! {
        frames = frames => frames,
        () = time => unreachable!(),
    };
    let cancel = json!({ "type": "system", "event": "cancel", "reason": "credits_exhausted" });
    assert_eq!(control, [cancel]);
    let [.., error, ended] = &events[..] else { panic!("{events:?}") };
    assert_eq!(error["type"], "error");
    assert_eq!(error["data"]["code"], "credits_exhausted");
    assert_eq!(
        (&ended["type"], &ended["data"]["reason"]),
        (&json!("session.ended"), &json!("terminated"))
    );
    assert_eq!(over, Came::Close(1001, "sandbox destroyed".into()));
    assert_eq!(becomes(&ann, &made, "interrupted").await["reason"], "credits_exhausted");
    let sandbox = ann.get(&format!("/v1/sandboxes/{}", made.sandbox)).await.json(200);
    assert_eq!(
        (&sandbox["state"], &sandbox["end_reason"]),
        (&json!("destroyed"), &json!("credits_exhausted"))
    );

    let ask = json!({ "chat_session_id": made.id });
    ann.post("/v1/sessions/resume", &ask).await.problem(402, "credits_exhausted");
    ann.post(&format!("{}/fork", made.path()), &json!({})).await.problem(402, "credits_exhausted");
    grant(&server, &id, 1000).await;
    let resumed = ann.post("/v1/sessions/resume", &ask).await.json(200);
    assert_eq!(resumed["resumed_from"]["previous_status"], "interrupted");
    Made::of(&resumed).attach(ann.address, 0).await.events_until(is_prompt).await;
    server.stop().await;
    daemon.stop().await;
}
