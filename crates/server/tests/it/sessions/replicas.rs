//! Sessions on two servers of one data directory: a client does not see which of them it reached, and misses
//! nothing when one of them ends.

use http_body_util::BodyExt;
use serde_json::json;
use tokio::time::{Duration, sleep, timeout};

use super::parts::{Came, Made, Pieces, Socket, is_prompt, log, message, sequence, wanted};
use super::town::Town;
use crate::client::{Client, Open, PATIENCE};

const SHUTTING_DOWN: (u16, &str) = (1001, "server shutting down");
const DISPLACED: (u16, &str) = (1011, "another connection took over");

fn close((code, reason): (u16, &str)) -> Came {
    Came::Close(code, reason.to_owned())
}

/// Connects until a server that leads takes what it says, as a client does whose server was replaced.
async fn come_back(made: &Made, client: &Client, pieces: &mut Pieces) -> Socket {
    for _ in 0..2000 {
        sleep(Duration::from_millis(10)).await;
        let Ok(mut socket) = made.try_attach(client.address, pieces.last()).await else { continue };
        socket.try_say(&json!({ "type": "dance" })).await;
        loop {
            match socket.next().await {
                Came::Event(event) => pieces.take(event),
                Came::Control(_) => return socket,
                // Never that nothing runs.
                over @ Came::Close(..) => {
                    assert_eq!(over, close(SHUTTING_DOWN));
                    break;
                }
                Came::Gone => break,
            }
        }
    }
    panic!("nobody takes it back");
}

/// It comes back, nothing was missed, and the session goes on.
async fn goes_on(made: &Made, client: &Client, mut pieces: Pieces) {
    let mut socket = come_back(made, client, &mut pieces).await;
    pieces.take_all(socket.echo("on and on").await);
    assert!(pieces.0 == log(client, made).await[..pieces.0.len()]);
}

/// The next frame beside the log.
async fn control(socket: &mut Socket, pieces: &mut Pieces) -> serde_json::Value {
    loop {
        match socket.next().await {
            Came::Event(event) => pieces.take(event),
            Came::Control(frame) => return frame,
            over => panic!("{over:?}"),
        }
    }
}

/// A session whose client is at this server, and has said a few things.
async fn begun(at: &Client, user: &str) -> (Made, Socket, Pieces) {
    let made = Made::new(at, &wanted(user)).await;
    let (mut socket, mut pieces) = (made.attach(at.address, 0).await, Pieces::default());
    pieces.take_all(socket.echo("begun").await);
    (made, socket, pieces)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_socket_at_a_follower_is_as_one_at_the_leader() {
    let (town, leader, follower) = Town::of_two().await;
    let ann = follower.tenant("ann").await;
    let (made, mut socket, mut pieces) = begun(&ann, "usr_ann").await;
    let other = Made::new(&ann, &wanted("usr_ann")).await;
    for (jwt, status) in [("junk", 401), (&*other.jwt, 403)] {
        let stranger = Made { jwt: jwt.into(), ..made.clone() };
        assert_eq!(stranger.try_attach(ann.address, 0).await.err(), Some(status));
    }
    socket.say(&json!({ "type": "dance" })).await;
    assert_eq!(control(&mut socket, &mut pieces).await["code"], "invalid_frame");
    socket.say(&json!({ "type": "exec", "command": "echo out", "id": "one" })).await;
    let printed = control(&mut socket, &mut pieces).await;
    assert_eq!(printed, json!({ "type": "stdout", "id": "one", "data": "out\n" }));
    assert_eq!(control(&mut socket, &mut pieces).await["exit_code"], 0);
    // Frames of every length, both ways.
    for length in [10, 1000, 300_000] {
        let word = "x".repeat(length);
        pieces.take_all(socket.echo(&word).await);
    }
    drop(socket);
    let mut socket = made.attach(ann.address, pieces.last()).await;
    pieces.take_all(socket.echo("again").await);
    let mut ahead = made.attach(ann.address, pieces.last() + 1000).await;
    assert_eq!(ahead.control().await["code"], "from_beyond_log");
    assert_eq!(ahead.next().await, Came::Close(1008, "from beyond the log".into()));
    let logged = log(&leader.asked_by(&ann), &made).await;
    assert!(pieces.0 == logged[..pieces.0.len()]);
    town.end([follower, leader]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_client_at_another_server_displaces_the_first() {
    let (town, leader, follower) = Town::of_two().await;
    let ann = leader.tenant("ann").await;
    let there = follower.asked_by(&ann);
    let (made, mut first, pieces) = begun(&there, "usr_ann").await;
    for at in [&ann, &there, &there, &ann] {
        let mut second = made.attach(at.address, pieces.last()).await;
        second.echo("mine").await;
        assert_eq!(first.rest().await.1, close(DISPLACED));
        first = second;
    }
    town.end([follower, leader]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_of_both_are_told_when_the_leader_ends_and_miss_nothing() {
    let (town, leader, follower) = Town::of_two().await;
    let ann = follower.tenant("ann").await;
    let here = leader.asked_by(&ann);
    let (made, mut socket, mut pieces) = begun(&ann, "usr_ann").await;
    let (other, mut at_leader, mut others) = begun(&here, "usr_ann").await;
    // It ends in the middle of what the agents say.
    for socket in [&mut socket, &mut at_leader] {
        socket.say(&message("demo")).await;
    }
    let rest = async {
        for (socket, pieces) in [(&mut socket, &mut pieces), (&mut at_leader, &mut others)] {
            let (events, over) = socket.rest().await;
            pieces.take_all(events);
            assert_eq!(over, close(SHUTTING_DOWN));
        }
    };
    tokio::join!(leader.stop(), rest);
    for (made, pieces) in [(made, pieces), (other, others)] {
        goes_on(&made, &ann, pieces).await;
    }
    town.end([follower]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_of_a_follower_are_told_when_it_ends_and_miss_nothing() {
    let (town, leader, follower) = Town::of_two().await;
    let ann = leader.tenant("ann").await;
    let (made, mut socket, mut pieces) = begun(&follower.asked_by(&ann), "usr_ann").await;
    socket.say(&message("demo")).await;
    let (_, (events, over)) = tokio::join!(follower.stop(), socket.rest());
    pieces.take_all(events);
    assert_eq!(over, close(SHUTTING_DOWN));
    goes_on(&made, &ann, pieces).await;
    town.end([leader]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_killed_is_followed_by_another_and_clients_miss_nothing() {
    let (town, leader, follower) = Town::of_two().await;
    let ann = follower.tenant("ann").await;
    let (made, mut socket, mut pieces) = begun(&ann, "usr_ann").await;
    socket.say(&message("demo")).await;
    leader.kill();
    let (events, over) = socket.rest().await;
    pieces.take_all(events);
    assert!(over == close(SHUTTING_DOWN) || over == Came::Gone, "{over:?}");
    let mut socket = come_back(&made, &ann, &mut pieces).await;
    // The next one is killed as well, with a client of its own.
    let (follower, third) = town.succession(follower).await;
    follower.kill();
    let (events, _) = socket.rest().await;
    pieces.take_all(events);
    let ann = third.asked_by(&ann);
    goes_on(&made, &ann, pieces).await;
    town.end([third]).await;
}

/// More of a stream, until it has this event; or all of it, and whether it ended as streams do.
async fn more(stream: &mut Open, text: &mut String, until: Option<u64>) -> bool {
    loop {
        if until.is_some_and(|until| text.contains(&format!("id: {until}\n"))) {
            return true;
        }
        match timeout(PATIENCE, stream.body.frame()).await.unwrap() {
            None => return true,
            Some(Err(_)) => return false,
            Some(Ok(frame)) => {
                text.push_str(std::str::from_utf8(&frame.into_data().unwrap()).unwrap());
            }
        }
    }
}

async fn stream(at: &Client, made: &Made, from: u64) -> Open {
    let request = at.request("GET", &format!("{}/events", made.path()));
    let request = request.header("accept", "text/event-stream").header("last-event-id", from);
    at.open(request.body(axum::body::Body::empty()).unwrap()).await
}

fn ids(text: &str) -> impl Iterator<Item = u64> {
    text.lines().filter_map(|line| line.strip_prefix("id: ")?.parse().ok())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_is_read_through_a_follower_by_range_and_as_it_grows() {
    let (town, leader, follower) = Town::of_two().await;
    let ann = follower.tenant("ann").await;
    let (made, mut socket, mut pieces) = begun(&ann, "usr_ann").await;
    let (mut live, mut text) = (stream(&ann, &made, 2).await, String::new());
    pieces.take_all(socket.echo("more").await);
    // The end of the turn: what is compared does not grow meanwhile.
    pieces.take_all(socket.events_until(is_prompt).await);
    assert!(more(&mut live, &mut text, Some(pieces.last())).await);
    let (here, path) = (leader.asked_by(&ann), made.path());
    for query in ["from=0", "from=3&to=6", "from=2&limit=2", "from=100000", "from=2&limit=0"] {
        let path = format!("{path}/events?{query}");
        let (one, other) = (ann.get(&path).await, here.get(&path).await);
        assert_eq!((one.status, &one.bytes), (other.status, &other.bytes), "{query}");
    }
    let transcript = ann.get(&format!("{path}/transcript")).await;
    assert!(String::from_utf8_lossy(&transcript.bytes).contains("more"));
    // It ends with the server that passes it on, and goes on where it was at another one.
    follower.stop().await;
    assert!(more(&mut live, &mut text, None).await, "the stream broke");
    let third = town.join().await;
    let mut live = stream(&third.asked_by(&ann), &made, ids(&text).last().unwrap()).await;
    let mut socket = made.attach(here.address, pieces.last()).await;
    pieces.take_all(socket.echo("last").await);
    more(&mut live, &mut text, Some(pieces.last())).await;
    // And with the leader.
    leader.stop().await;
    assert!(more(&mut live, &mut text, None).await, "the stream broke");
    assert!(ids(&text).zip(3..).all(|(id, expected)| id == expected), "{text}");
    assert!(pieces.0.iter().map(sequence).eq(1..=pieces.last()));
    town.end([third]).await;
}
