//! Sessions on two processes with one `PostgreSQL`, of which the leader is killed again and again: clients lose
//! nothing, and real agents go on with what they were told.

use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};

use super::talk::Talk;
use super::town::{build, furnish};
use crate::model::{KEY, Model};
use crate::needs_root::town::Town;

/// Connections that are cut, and after how many of them the leader ends.
const CUTS: u64 = 48;
const LEADER_EVERY: u64 = 12;

struct Place {
    town: Town,
    leader: u16,
    follower: u16,
    model: Model,
    user: String,
    _runtime: Runtime,
}

struct Session {
    id: String,
    token: String,
}

impl Place {
    fn new(templates: &[&str]) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let model = runtime.block_on(Model::serve());
        let built = build(templates);
        let (mut town, leader) =
            Town::on_postgres_with(|instance| furnish(instance, &model, &built));
        let follower = town.join();
        let me = town.ask(follower, "GET", "/v1/tenants/me", "").body;
        let user = me["tenant_id"].as_str().unwrap().to_owned();
        Self { town, leader, follower, model, user, _runtime: runtime }
    }

    #[track_caller]
    fn post(&self, path: &str, body: &Value, status: u16) -> Value {
        let answer = self.town.ask(self.follower, "POST", path, &body.to_string());
        assert_eq!(answer.status, status, "{answer:?}");
        answer.body
    }

    /// Made through the follower.
    #[track_caller]
    fn session(&self, agent: &str, changes: &Value) -> Session {
        let mut body = json!({
            "agent": { "kind": agent }, "template": "standard", "user_id": self.user,
            "llm": { "vendor": "anthropic", "model": "claude-sonnet-4-5", "base_url": self.model.url() },
        });
        for (name, value) in changes.as_object().unwrap() {
            body[name] = value.clone();
        }
        let answer = self.post("/v1/sessions", &body, 201);
        let text = |name: &str| answer[name].as_str().unwrap().to_owned();
        Session { id: text("chat_session_id"), token: text("jwt") }
    }

    #[track_caller]
    fn come_back(&self, port: u16, session: &Session, from: u64) -> Talk {
        let url = format!("ws://127.0.0.1:{port}/v1/sessions/{}/ws", session.id);
        Talk::come_back(&url, &session.token, from)
    }

    /// The follower leads then, and another one follows it.
    fn replace_leader(&mut self, kills: bool) {
        if kills {
            self.town.kill(self.leader);
        } else {
            self.town.end(self.leader);
        }
        self.town.until_leads(self.follower);
        self.leader = self.follower;
        self.follower = self.town.join();
    }

    #[track_caller]
    fn log(&self, session: &Session) -> Vec<Value> {
        let mut all: Vec<Value> = Vec::new();
        loop {
            let from = all.last().map_or(0, |event| event["sequence"].as_u64().unwrap());
            let path = format!("/v1/sessions/{}/events?from={from}", session.id);
            let page = self.town.ask(self.follower, "GET", &path, "").body;
            all.extend(page["events"].as_array().unwrap().iter().cloned());
            if page["has_more"] == false {
                return all;
            }
        }
    }

    fn end(self, sessions: &[Session]) {
        for Session { id, .. } in sessions {
            let path = format!("/v1/sessions/{id}");
            assert_eq!(self.town.ask(self.follower, "DELETE", &path, "").status, 200);
        }
        assert_eq!(self.model.faults(), Vec::<String>::new());
        self.model.stop();
        self.town.close(self.leader);
    }
}

#[test]
fn what_a_client_of_servers_that_are_killed_pieces_together_is_the_log() {
    let mut place = Place::new(&[]);
    let session = place.session("mock", &json!({}));
    let mut pieces: Vec<Value> = Vec::new();
    // Numbers that look random and are the same in every run.
    let mut state = 7_u64;
    let mut roll = move |sides: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) % sides
    };
    for cut in 1..=CUTS {
        let port = if roll(2) == 0 { place.leader } else { place.follower };
        let last = pieces.last().map_or(0, |event| event["sequence"].as_u64().unwrap());
        let mut talk = place.come_back(port, &session, last);
        talk.try_say(["echo one", "markdown", "tool", "demo"][usize::try_from(roll(4)).unwrap()]);
        // In the middle of what that brings.
        for _ in 0..=roll(6) {
            talk.try_read();
        }
        if cut % LEADER_EVERY == 0 {
            place.replace_leader(cut / LEADER_EVERY % 2 == 1);
            while talk.try_read().is_some() {}
        }
        pieces.extend_from_slice(talk.seen());
    }
    let log = place.log(&session);
    assert!(log.len() > 100, "there was something to lose: {}", log.len());
    let last = pieces.last().map_or(0, |event| event["sequence"].as_u64().unwrap());
    let mut talk = place.come_back(place.follower, &session, last);
    while talk.last() < log.last().unwrap()["sequence"].as_u64().unwrap() {
        talk.try_read().expect("it is in the log");
    }
    pieces.extend_from_slice(talk.seen());
    assert!(pieces[..log.len()] == log, "what was pieced together is not the log");
    drop(talk);
    place.end(&[session]);
}

#[test]
fn real_agents_go_on_when_the_leader_is_killed_between_two_turns() {
    let mut place = Place::new(&["agent-claude"]);
    let bundle = json!({ "name": "keys", "values": { "LLM_API_KEY": KEY } });
    place.post("/v1/tenants/me/secrets", &bundle, 201);
    let with = json!({ "secrets": ["keys"] });
    let sessions = ["deictic", "claude"].map(|agent| place.session(agent, &with));
    let talks = sessions.each_ref().map(|session| {
        let mut talk = place.come_back(place.follower, session, 0);
        talk.say("remember:walnut play:text");
        assert_eq!(talk.end_of_turn(), "completed", "{:#?}", talk.seen());
        talk
    });
    place.replace_leader(true);
    for (session, mut talk) in sessions.iter().zip(talks) {
        // It was told, or broke.
        while talk.try_read().is_some() {}
        let mut talk = place.come_back(place.follower, session, talk.last());
        talk.say("play:recall");
        assert_eq!(talk.end_of_turn(), "completed", "{:#?}", talk.seen());
        assert_eq!(talk.said(), ["The word is walnut."]);
    }
    // And in the middle of a turn, with which the agent goes on.
    let session = &sessions[0];
    let mut talk = place.come_back(place.leader, session, 0);
    talk.say("play:slow");
    talk.until_delta("slow");
    place.replace_leader(true);
    while talk.try_read().is_some() {}
    let mut talk = place.come_back(place.follower, session, talk.last());
    talk.until_delta("slow");
    talk.send(&json!({ "type": "interrupt" }));
    assert_eq!(talk.end_of_turn(), "interrupted");
    drop(talk);
    place.end(&sessions);
}
