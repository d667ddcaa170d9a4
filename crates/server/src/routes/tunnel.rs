//! A raw connection to a port inside a sandbox, over an upgraded HTTP connection.

use api::query::Query;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{CONNECTION, UPGRADE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::Response;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use model::Error;
use tokio::io::{AsyncRead, AsyncWrite, copy_bidirectional_with_sizes};
use tokio_util::sync::CancellationToken;

use crate::app::App;
use crate::auth::Who;
use crate::limits::TUNNEL_BUFFER_BYTES;
use crate::listen::MayStall;
use crate::refusal::Refusal;
use crate::target::{RawQuery, Target};

const PROTOCOL: &str = "bastide-tunnel";

/// Connect to a port inside
///
/// Send `Connection: Upgrade` and `Upgrade: bastide-tunnel`; after 101 the connection carries the
/// raw bytes of a TCP connection to `127.0.0.1:port` in the sandbox. Port 49983 is the guest's own
/// service. `GET` does the same.
#[utoipa::path(
    post, path = "/v1/sandboxes/{id}/tunnel", tag = "Tunnels", operation_id = "open_tunnel",
    params(
        ("id" = String, Path, description = "Its id or its name"),
        ("port" = u16, Query, description = "1 to 65535"),
    ),
    responses(
        (status = 101, description = "Connected"),
        (status = 400, description = "No port, or not one"),
        (status = 404, description = "No such sandbox, or another owner's"),
        (status = 409, description = "`wrong_state`: the sandbox does not run"),
        (status = 426, description = "The request does not ask for the upgrade"),
        (status = 503, description = "Nothing listens on that port"),
    )
)]
pub(crate) async fn open(
    State(app): State<App>,
    Who(caller): Who,
    Target(sandbox): Target,
    RawQuery(query): RawQuery,
    mut request: Request,
) -> Result<Response, Refusal> {
    let port = Query::parse(query.as_deref(), &["port"])?.required("port")?;
    let port = port.parse::<u16>().ok().filter(|port| *port > 0);
    let port = port.ok_or_else(|| Error::invalid("port", "must be 1 to 65535"))?;
    if !asks_for_upgrade(request.headers(), PROTOCOL) {
        return Err(Refusal::UpgradeRequired);
    }
    let upgrade = request.extensions_mut().remove::<OnUpgrade>().ok_or(Refusal::UpgradeRequired)?;
    if let Some(connection) = request.extensions().get::<MayStall>() {
        connection.allow();
    }
    let tunnel = app.engine.tunnel(&caller, &sandbox, port).await?;
    app.tasks.spawn(carry(upgrade, tunnel, app.draining.clone()));
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static(PROTOCOL));
    Ok(response)
}

/// The same as `POST`; for clients that can only upgrade a GET.
#[utoipa::path(
    get, path = "/v1/sandboxes/{id}/tunnel", tag = "Tunnels", operation_id = "open_tunnel_by_get",
    params(
        ("id" = String, Path, description = "Its id or its name"),
        ("port" = u16, Query, description = "1 to 65535"),
    ),
    responses(
        (status = 101, description = "Connected"),
        (status = 400, description = "No port, or not one"),
        (status = 404, description = "No such sandbox, or another owner's"),
        (status = 409, description = "`wrong_state`: the sandbox does not run"),
        (status = 426, description = "The request does not ask for the upgrade"),
        (status = 503, description = "Nothing listens on that port"),
    )
)]
pub(crate) async fn open_get(
    app: State<App>,
    who: Who,
    target: Target,
    query: RawQuery,
    request: Request,
) -> Result<Response, Refusal> {
    open(app, who, target, query, request).await
}

/// Both ways until one end closes for good, or the server drains.
pub(crate) async fn carry(
    upgrade: OnUpgrade,
    mut tunnel: impl AsyncRead + AsyncWrite + Unpin,
    draining: CancellationToken,
) {
    let both = async {
        let Ok(upgraded) = upgrade.await else { return };
        let mut client = TokioIo::new(upgraded);
        let size = TUNNEL_BUFFER_BYTES;
        // Either end breaking is how tunnels end; there is nobody left to tell.
        let _ = copy_bidirectional_with_sizes(&mut client, &mut tunnel, size, size).await;
    };
    tokio::select! {
        () = both => {}
        () = draining.cancelled() => {}
    }
}

/// Whether a request asks for this protocol.
pub(crate) fn asks_for_upgrade(headers: &HeaderMap, protocol: &str) -> bool {
    let has = |name, word: &str| {
        headers.get_all(name).iter().any(|value| {
            let words = value.to_str().unwrap_or_default().split(',');
            words.map(str::trim).any(|one| one.eq_ignore_ascii_case(word))
        })
    };
    has(CONNECTION, "upgrade") && has(UPGRADE, protocol)
}
