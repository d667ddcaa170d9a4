//! Nothing is lost and nothing comes twice, whatever breaks: the client's connection thousands of times, the
//! server and the daemon again and again. What the client pieced together is the log.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::parts::{Came, Daemon, Made, another, log, sequence, server, wanted};
use crate::client::Client;

/// Connections that are cut.
const CUTS: u32 = 2000;
/// After so many the server is another one, or the daemon.
const SERVER_EVERY: u32 = 250;
const DAEMON_EVERY: u32 = 190;

/// Numbers that look random and are the same in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % sides
    }
}

/// What a client has so far.
#[derive(Default)]
struct Pieces(Vec<Value>);

impl Pieces {
    fn last(&self) -> u64 {
        self.0.last().map_or(0, sequence)
    }

    #[track_caller]
    fn take(&mut self, event: Value) {
        assert_eq!(sequence(&event), self.last() + 1, "after {} events", self.0.len());
        self.0.push(event);
    }
}

/// One connection: says something, reads some of what comes, and is cut.
async fn once(made: &Made, client: &Client, pieces: &mut Pieces, dice: &mut Dice) {
    let Ok(mut socket) = made.try_attach(client.address, pieces.last()).await else {
        return sleep(Duration::from_millis(5)).await;
    };
    if dice.roll(4) == 0 {
        let words = ["echo one", "markdown", "tool", "demo", "permission"];
        let word = words[usize::try_from(dice.roll(5)).unwrap()];
        socket.try_say(&json!({ "type": "message", "message": word })).await;
    }
    let until = Instant::now() + Duration::from_millis(dice.roll(12));
    for _ in 0..dice.roll(30) {
        let Ok(came) = tokio::time::timeout_at(until, socket.next()).await else { return };
        match came {
            Came::Event(event) => pieces.take(event),
            Came::Control(_) => {}
            Came::Close(..) | Came::Gone => return,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_and_nothing_comes_twice() {
    let mut daemon = Daemon::start().await;
    let mut server = server(&daemon).await;
    let mut ann = server.tenant("ann").await;
    let made = Made::new(&ann, &wanted("usr_ann")).await;
    let (mut pieces, mut dice) = (Pieces::default(), Dice(7));
    for cut in 1..=CUTS {
        once(&made, &ann, &mut pieces, &mut dice).await;
        if cut % SERVER_EVERY == 0 {
            server = another(server).await;
            ann = Client { key: ann.key.clone(), ..server.operator.clone() };
        }
        if cut % DAEMON_EVERY == 0 {
            daemon = daemon.restart().await;
        }
    }
    // Until it is quiet, then what is left.
    let mut before = u64::MAX;
    while before != pieces.last() {
        before = pieces.last();
        sleep(Duration::from_secs(1)).await;
        let mut socket = made.attach(ann.address, pieces.last()).await;
        while let Ok(Came::Event(event)) =
            tokio::time::timeout(Duration::from_secs(2), socket.next()).await
        {
            pieces.take(event);
        }
    }
    let log = log(&ann, &made).await;
    assert!(log.len() > 500, "there was something to lose: {}", log.len());
    assert_eq!(pieces.0.len(), log.len());
    assert!(pieces.0 == log, "what was pieced together is not the log");
    server.stop().await;
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_read_holds_nobody_up() {
    let daemon = Daemon::start().await;
    let server = server(&daemon).await;
    let ann = server.tenant("ann").await;
    let made = Made::new(&ann, &wanted("usr_ann")).await;
    let mut socket = made.attach(ann.address, 0).await;
    for _ in 0..40 {
        socket.say(&json!({ "type": "message", "message": "demo" })).await;
    }
    // It reads nothing; the log grows all the same, and has everything for whoever reads later.
    let mut seen = 0;
    for _ in 0..600 {
        let path = format!("{}/events?from=0&limit=1", made.path());
        let now = ann.get(&path).await.json(200)["last_sequence"].as_u64().unwrap();
        if now > 300 && now == seen {
            break;
        }
        seen = now;
        sleep(Duration::from_millis(100)).await;
    }
    assert!(seen > 300, "the log stopped growing at {seen}");
    let mut pieces = Pieces::default();
    let mut other = made.attach(ann.address, 0).await;
    while pieces.last() < seen {
        match other.next().await {
            Came::Event(event) => pieces.take(event),
            Came::Control(_) => {}
            over => panic!("{over:?} at {}", pieces.last()),
        }
    }
    server.stop().await;
    daemon.stop().await;
}
