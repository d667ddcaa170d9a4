//! A connection of the host becomes one to a TCP port inside, or to the guest's own services.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use guest_proto::{GUEST_PORT, TUNNEL_UPGRADE};
use http::{HeaderValue, StatusCode, header};
use hyper_util::rt::TokioIo;
use tokio::io::copy_bidirectional_with_sizes;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::files::Query;
use crate::http::{self as front, Body, Request, Response};
use crate::refusal::{Code, Refusal, Result};
use crate::state::State;

/// Loopback answers at once, or its backlog is full.
const CONNECT_MAX: Duration = Duration::from_secs(5);

/// Each way.
const BUFFER_BYTES: usize = 32 << 10;

pub(super) async fn open(state: Arc<State>, mut request: Request) -> Result<Response> {
    let port = Query::of(&request).number("port")?.and_then(|port| u16::try_from(port).ok());
    let port = port.filter(|port| *port > 0).ok_or_else(|| Refusal::invalid("port: not a port"))?;
    let asked = request.headers().get(header::UPGRADE).and_then(|value| value.to_str().ok());
    if !asked.is_some_and(|asked| asked.eq_ignore_ascii_case(TUNNEL_UPGRADE)) {
        return Err(Refusal::invalid(format!("Upgrade: {TUNNEL_UPGRADE} is missing")));
    }
    let target = if port == GUEST_PORT { None } else { Some(connect(port).await?) };
    let upgrade = hyper::upgrade::on(&mut request);
    let tasks = state.tasks.clone();
    tasks.spawn(async move {
        let Ok(upgraded) = upgrade.await else { return };
        let mut ours = TokioIo::new(upgraded);
        match target {
            None => front::serve_inner(state, ours).await,
            Some(mut target) => {
                let copied = copy_bidirectional_with_sizes(
                    &mut ours,
                    &mut target,
                    BUFFER_BYTES,
                    BUFFER_BYTES,
                );
                // Either side going away is how a tunnel ends.
                let _ = copied.await;
            }
        }
    });
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static(TUNNEL_UPGRADE));
    Ok(response)
}

async fn connect(port: u16) -> Result<TcpStream> {
    let addresses: [SocketAddr; 2] =
        [(Ipv4Addr::LOCALHOST, port).into(), (Ipv6Addr::LOCALHOST, port).into()];
    for address in addresses {
        if let Ok(Ok(stream)) = timeout(CONNECT_MAX, TcpStream::connect(address)).await {
            let _ = stream.set_nodelay(true);
            return Ok(stream);
        }
    }
    Err(Refusal::new(Code::PortClosed, format!("nothing listens on port {port}")))
}
