//! Nothing is lost and nothing comes twice, whatever breaks: the client's connection thousands of times, the
//! server and the daemon again and again. What the client pieced together is the log.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::parts::{Came, Daemon, Dice, Made, Pieces, another, log, message, server, wanted};
use super::town::Town;
use crate::client::Client;

/// Connections that are cut.
const CUTS: u32 = 2000;
/// After so many the server is another one, or the daemon.
const SERVER_EVERY: u32 = 250;
const DAEMON_EVERY: u32 = 190;
/// With two servers, and after how many of them the one that leads ends.
const CUTS_OF_TWO: u32 = 800;
const LEADER_EVERY: u32 = 80;

/// One connection: says something, reads some of what comes, and is cut.
async fn once(made: &Made, client: &Client, pieces: &mut Pieces, dice: &mut Dice) {
    let Ok(mut socket) = made.try_attach(client.address, pieces.last()).await else {
        return sleep(Duration::from_millis(5)).await;
    };
    if dice.roll(4) == 0 {
        let words = ["echo one", "markdown", "tool", "demo", "permission"];
        let word = words[usize::try_from(dice.roll(5)).unwrap()];
        socket.try_say(&message(word)).await;
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

/// Reads until it is quiet: then it is all of the log.
async fn finished(made: &Made, ann: &Client, mut pieces: Pieces) {
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
    let log = log(ann, made).await;
    assert!(log.len() > 500, "there was something to lose: {}", log.len());
    assert_eq!(pieces.0.len(), log.len());
    assert!(pieces.0 == log, "what was pieced together is not the log");
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
    finished(&made, &ann, pieces).await;
    server.stop().await;
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_with_two_servers_whose_leaders_end_and_are_killed() {
    let (mut town, mut leader, mut follower) = Town::of_two().await;
    let ann = leader.tenant("ann").await;
    let made = Made::new(&ann, &wanted("usr_ann")).await;
    let (mut pieces, mut dice) = (Pieces::default(), Dice(11));
    for cut in 1..=CUTS_OF_TWO {
        let at = if dice.roll(2) == 0 { &leader } else { &follower };
        once(&made, &at.asked_by(&ann), &mut pieces, &mut dice).await;
        if cut % LEADER_EVERY == 0 {
            match (cut / LEADER_EVERY) % 2 {
                0 => leader.stop().await,
                _ => leader.kill(),
            }
            for _ in 0..5 {
                once(&made, &follower.asked_by(&ann), &mut pieces, &mut dice).await;
            }
            (leader, follower) = town.succession(follower).await;
        }
        if cut % DAEMON_EVERY == 0 {
            town.daemon = town.daemon.restart().await;
        }
    }
    leader.until_leads().await;
    finished(&made, &follower.asked_by(&ann), pieces).await;
    town.end([follower, leader]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_read_holds_nobody_up() {
    let daemon = Daemon::start().await;
    let server = server(&daemon).await;
    let ann = server.tenant("ann").await;
    let made = Made::new(&ann, &wanted("usr_ann")).await;
    let mut socket = made.attach(ann.address, 0).await;
    for _ in 0..40 {
        socket.say(&message("demo")).await;
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
