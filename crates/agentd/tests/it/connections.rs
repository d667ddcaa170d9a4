//! Connections, as the daemon sets them up.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rustix::net::{getpeername, sockopt};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use serde_json::json;
use tokio::io::AsyncReadExt as _;

use crate::daemon::{Daemon, Setup};

/// The daemon's end of a connection of this process's, which has both of them.
fn other_end(ours: SocketAddr) -> OwnedFd {
    let this = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
    let names = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let numbers = names.filter_map(|name| name.file_name().to_str()?.parse().ok());
    let mut all =
        numbers.filter_map(|number| pidfd_getfd(&this, number, PidfdGetfdFlags::empty()).ok());
    let is_it = |fd: &OwnedFd| {
        let peer = getpeername(fd).ok().flatten();
        peer.and_then(|peer| SocketAddr::try_from(peer).ok()) == Some(ours)
    };
    all.find(is_it).expect("the daemon has the other end")
}

#[tokio::test]
async fn an_event_does_not_wait_until_the_one_before_was_acknowledged() {
    let directory = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(directory.path(), Setup::default()).await;
    let made = daemon.post("/v1/sessions/s", &json!({ "agent": "mock" })).await;
    assert_eq!(made.status, 200, "{}", made.body);
    let mut stream = daemon.open("GET /v1/sessions/s/events/sse", &[], None).await;
    // It was accepted, and set up, before it was answered.
    stream.read_u8().await.unwrap();
    let theirs = other_end(stream.local_addr().unwrap());
    assert!(sockopt::tcp_nodelay(&theirs).unwrap(), "TCP_NODELAY is not set");
    drop(stream);
    daemon.stop().await;
}
