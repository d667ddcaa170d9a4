//! A guest on a TCP port of this machine, without a sandbox around it, for trying clients against.
//! Whoever can reach the port can run commands as the named user: loopback only.
//!
//! `cargo run -p guestd --example on_tcp -- 127.0.0.1:49983 user [/path/to/passwd /path/to/group]`

#![expect(clippy::print_stderr, reason = "a program that is run by hand")]

use std::collections::BTreeMap;
use std::net::SocketAddr;

use guestd::{Accounts, Config, Listener, Orphans};
use tokio::net::TcpListener;

#[tokio::main(flavor = "current_thread")]
async fn main() -> std::io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let (Some(address), Some(user)) = (arguments.next(), arguments.next()) else {
        eprintln!("usage: on_tcp ADDRESS USER [PASSWD GROUP]");
        return Err(std::io::ErrorKind::InvalidInput.into());
    };
    let address: SocketAddr = address.parse().map_err(std::io::Error::other)?;
    if !address.ip().is_loopback() {
        eprintln!("only loopback addresses: anybody who reaches the port runs commands");
        return Err(std::io::ErrorKind::InvalidInput.into());
    }
    let accounts = match (arguments.next(), arguments.next()) {
        (Some(passwd), Some(group)) => Accounts::at(&passwd, &group),
        _ => Accounts::default(),
    };
    let config = Config {
        nonce: "on-tcp".into(),
        user,
        workdir: String::new(),
        env: BTreeMap::from([("E2B_SANDBOX".into(), "true".into())]),
        cgroup: None,
        oom_score_adj: None,
        agents: None,
        orphans: Orphans::Leave,
        accounts,
    };
    let listener = TcpListener::bind(address).await?;
    let stop = async {
        // Without the signal there is only the other way to stop: being killed.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    guestd::serve(Listener::Tcp(listener), config, stop).await
}
