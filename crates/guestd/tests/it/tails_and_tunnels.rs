//! Ends of logs, and connections to ports.

use guest_proto::{GuestError, TAIL_BYTES_MAX, Tail};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::guest::TestGuest;
use crate::wire::send;

#[tokio::test]
async fn the_end_of_a_log_begins_with_a_line() {
    let guest = TestGuest::start();
    let path = guest.path("log");
    std::fs::write(&path, "one\ntwo\nthree\n").unwrap();
    let check = async |by: Tail, content: &str, truncated: bool| {
        let tailed = guest.guest.tail(&path, by).await.unwrap();
        assert_eq!((tailed.content.as_str(), tailed.truncated), (content, truncated), "{by:?}");
        assert_eq!(tailed.total_bytes, 14);
    };
    check(Tail::Lines(100), "one\ntwo\nthree\n", false).await;
    check(Tail::Lines(2), "two\nthree\n", true).await;
    check(Tail::Lines(u32::MAX), "one\ntwo\nthree\n", false).await;
    check(Tail::Bytes(8), "three\n", true).await;
    check(Tail::Bytes(6), "three\n", true).await;
    check(Tail::Bytes(u64::MAX), "one\ntwo\nthree\n", false).await;
}

#[tokio::test]
async fn a_long_log_is_trimmed_to_a_mebibyte_at_a_line() {
    let guest = TestGuest::start();
    let path = guest.path("log");
    let line = "x".repeat(999) + "\n";
    std::fs::write(&path, line.repeat(3000)).unwrap();
    for by in [Tail::Lines(10_000), Tail::Bytes(u64::MAX)] {
        let tailed = guest.guest.tail(&path, by).await.unwrap();
        assert_eq!(tailed.content.len(), TAIL_BYTES_MAX / 1000 * 1000);
        assert!(tailed.truncated);
        assert_eq!(tailed.total_bytes, 3_000_000);
    }
}

#[tokio::test]
async fn a_log_that_is_not_there_is_empty_and_a_directory_is_no_log() {
    let guest = TestGuest::start();
    let tailed = guest.guest.tail(&guest.path("missing"), Tail::Lines(1)).await.unwrap();
    assert_eq!((tailed.content.as_str(), tailed.truncated, tailed.total_bytes), ("", false, 0));
    let directory = guest.guest.tail(guest.home().to_str().unwrap(), Tail::Lines(1)).await;
    assert!(matches!(directory, Err(GuestError::Invalid(_))), "{directory:?}");
}

#[tokio::test]
async fn nonsensical_amounts_are_refused() {
    let guest = TestGuest::start();
    for query in ["lines=0", "bytes=0", "lines=x", "bytes=-1", "lines=1&bytes=1"] {
        let answer = send(&guest, &format!("GET /bastide/v1/tail?path=/x&{query}"), &[], b"").await;
        assert_eq!(answer.status, 400, "{query}");
    }
}

#[tokio::test]
async fn a_tunnel_carries_both_ways_and_its_ends() {
    let guest = TestGuest::start();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let inside = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(b"welcome ").await.unwrap();
        let mut all = Vec::new();
        stream.read_to_end(&mut all).await.unwrap();
        all.reverse();
        stream.write_all(&all).await.unwrap();
    };
    let outside = async {
        let mut tunnel = guest.guest.tunnel(port).await.unwrap();
        tunnel.write_all(b"abc").await.unwrap();
        tunnel.shutdown().await.unwrap();
        let mut all = String::new();
        tunnel.read_to_string(&mut all).await.unwrap();
        assert_eq!(all, "welcome cba");
    };
    tokio::join!(inside, outside);
}

#[tokio::test]
async fn much_goes_through_a_tunnel() {
    let guest = TestGuest::start();
    let listener = TcpListener::bind("[::1]:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let inside = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(&vec![b'm'; 5 << 20]).await.unwrap();
    };
    let outside = async {
        let mut tunnel = guest.guest.tunnel(port).await.unwrap();
        let mut all = Vec::new();
        tunnel.read_to_end(&mut all).await.unwrap();
        assert!(all.len() == 5 << 20 && all.iter().all(|byte| *byte == b'm'));
    };
    tokio::join!(inside, outside);
}

#[tokio::test]
async fn a_closed_port_says_so() {
    let guest = TestGuest::start();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let tunnel = guest.guest.tunnel(port).await;
    assert!(matches!(tunnel, Err(GuestError::PortClosed)), "{tunnel:?}");
    let tunnel = guest.guest.tunnel(0).await;
    assert!(matches!(tunnel, Err(GuestError::Invalid(_))), "{tunnel:?}");
}
