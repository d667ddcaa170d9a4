//! `bastide sandbox forward`: a local listener whose connections end at a port inside a sandbox.

use std::net::SocketAddr;
use std::sync::Arc;

use clap::Args;
use model::SandboxRef;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;

use crate::client::Client;
use crate::failure::Failure;
use crate::out;

/// At once; more wait to be accepted.
const CONNECTIONS_MAX: usize = 256;

#[derive(Debug, Args)]
pub(crate) struct ForwardArgs {
    #[arg(value_name = "SANDBOX")]
    id: SandboxRef,
    /// The port inside; 49983 is the guest's own API
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
    /// Where to listen on this machine; default: 127.0.0.1 and the same port
    #[arg(long, value_name = "ADDR:PORT")]
    local: Option<SocketAddr>,
}

/// Runs until it is interrupted.
pub(super) async fn forward(client: &Client, args: ForwardArgs) -> Result<(), Failure> {
    let local = args.local.unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], args.port)));
    let listener = TcpListener::bind(local).await.map_err(|error| {
        Failure::new(format!("cannot listen on {local}: {error}").to_lowercase())
            .hint("choose another address with --local 127.0.0.1:PORT")
    })?;
    // Proves that the sandbox is there and that we may, before anybody connects.
    let path = format!("/v1/sandboxes/{}", args.id);
    let _: serde_json::Value = client.json(http::Method::GET, &path, None).await?;
    let bound = listener.local_addr()?;
    out::line(format!("forwarding {bound} to port {} of {}", args.port, args.id));
    let tasks = TaskTracker::new();
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let permit = Arc::clone(&room).acquire_owned().await.expect("it is never closed");
        let stream = tokio::select! {
            accepted = listener.accept() => accepted?.0,
            signal = tokio::signal::ctrl_c() => return Ok(signal?),
        };
        let (client, id, port) = (client.clone(), args.id.clone(), args.port);
        tasks.spawn(async move {
            if let Err(failure) = carry(&client, &id, port, stream).await {
                out::failure(&failure);
            }
            drop(permit);
        });
    }
}

async fn carry(
    client: &Client,
    id: &SandboxRef,
    port: u16,
    mut local: TcpStream,
) -> Result<(), Failure> {
    local.set_nodelay(true)?;
    let mut remote = client.tunnel(id, port).await?;
    // A reset by either end is how many programs say goodbye.
    let _ = tokio::io::copy_bidirectional(&mut local, &mut remote).await;
    Ok(())
}
