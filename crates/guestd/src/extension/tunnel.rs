//! A connection of the host becomes one to a TCP port inside, or to the guest's own services.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use guest_proto::{GUEST_PORT, HEADER_AGENTS_TOKEN, TUNNEL_UPGRADE};
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
    require_upgrade(&request)?;
    let target = if port == GUEST_PORT { None } else { Some(connect(port).await?) };
    let tasks = state.tasks.clone();
    let upgrade = hyper::upgrade::on(&mut request);
    tasks.spawn(async move {
        match target {
            None => {
                let Ok(upgraded) = upgrade.await else { return };
                front::serve_inner(state, TokioIo::new(upgraded)).await;
            }
            Some(target) => carry(upgrade, target).await,
        }
    });
    Ok(switched())
}

/// The same to the agent daemon, which is started if it does not run. The answer tells its token.
pub(super) async fn to_agents(state: Arc<State>, mut request: Request) -> Result<Response> {
    require_upgrade(&request)?;
    let (target, token) = state.agents.connect(&state).await?;
    let upgrade = hyper::upgrade::on(&mut request);
    state.tasks.spawn(carry(upgrade, target));
    let mut response = switched();
    let token = HeaderValue::from_str(&token).map_err(|e| Refusal::internal(e.to_string()))?;
    response.headers_mut().insert(HEADER_AGENTS_TOKEN, token);
    Ok(response)
}

async fn carry(upgrade: hyper::upgrade::OnUpgrade, mut target: TcpStream) {
    let Ok(upgraded) = upgrade.await else { return };
    let mut ours = TokioIo::new(upgraded);
    let size = BUFFER_BYTES;
    // Either side going away is how a tunnel ends.
    let _ = copy_bidirectional_with_sizes(&mut ours, &mut target, size, size).await;
}

fn require_upgrade(request: &Request) -> Result<()> {
    let asked = request.headers().get(header::UPGRADE).and_then(|value| value.to_str().ok());
    if !asked.is_some_and(|asked| asked.eq_ignore_ascii_case(TUNNEL_UPGRADE)) {
        return Err(Refusal::invalid(format!("Upgrade: {TUNNEL_UPGRADE} is missing")));
    }
    Ok(())
}

fn switched() -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static(TUNNEL_UPGRADE));
    response
}

pub(crate) async fn connect(port: u16) -> Result<TcpStream> {
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
