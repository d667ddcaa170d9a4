//! What a command costs through client and guest, beside the bare start of the same program.
//!
//! `cargo run --release -p guestd --example latency -- SOCKET [ROUNDS [PROGRAM]]`, against a guest
//! that listens on the Unix socket.

#![expect(clippy::print_stdout, reason = "a program that is run by hand")]

use std::io;
use std::time::Duration;

use guest_proto::{Address, ExecFrame, ExecStart, Guest};
use tokio::time::Instant;

#[tokio::main]
async fn main() -> io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let socket = arguments.next().ok_or(io::ErrorKind::InvalidInput)?;
    let rounds = arguments.next().and_then(|rounds| rounds.parse().ok()).unwrap_or(1000);
    let program = arguments.next().unwrap_or("/bin/true".into());
    let guest = Guest::new(Address::Unix(socket.into()));
    let mut through_guest = Vec::new();
    let mut health = Vec::new();
    let mut bare = Vec::new();
    for round in 0..rounds {
        let start = Instant::now();
        let id = format!("latency-{round}");
        let argv = vec![program.clone()];
        let exec = ExecStart { id, argv, ..ExecStart::default() };
        let mut frames = guest.exec(&exec).await.map_err(io::Error::other)?;
        while let Some(frame) = frames.next().await {
            if let ExecFrame::End(_) = frame.map_err(io::Error::other)? {
                break;
            }
        }
        through_guest.push(start.elapsed());

        let start = Instant::now();
        guest.health().await.map_err(io::Error::other)?;
        health.push(start.elapsed());

        let start = Instant::now();
        std::process::Command::new(&program).env_clear().status()?;
        bare.push(start.elapsed());
    }
    print("through the guest", through_guest);
    print("health", health);
    print("bare start", bare);
    Ok(())
}

fn print(what: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |percent: usize| times[(times.len() - 1) * percent / 100].as_micros();
    println!("{what:20} p50 {:6} us   p90 {:6} us   p99 {:6} us", at(50), at(90), at(99));
}
