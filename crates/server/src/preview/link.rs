//! Makes a signed link to a port.

use std::time::Duration;

use api::PortLink;
use engine::Caller;
use jiff::Timestamp;
use model::{Error, Phase, SandboxRef};

use super::request::LINK;
use crate::app::App;
use crate::refusal::Refusal;

/// The guest's own service and the agent daemon: they are for those who have a key.
const GUEST_PORTS: [u16; 2] = [49983, 2468];

pub(crate) async fn link(
    app: &App,
    caller: &Caller,
    sandbox: &SandboxRef,
    port: u16,
    seconds: u32,
) -> Result<PortLink, Refusal> {
    let found = app.engine.get(caller, sandbox).await?;
    if found.phase == Phase::Destroyed {
        return Err(Error::no_sandbox(sandbox).into());
    }
    if GUEST_PORTS.contains(&port) {
        let detail = format!("the sandbox's own service takes a key, not a link: {port}");
        return Err(Error::invalid("port", detail).into());
    }
    let id = found.spec.id;
    let expires = Timestamp::now() + Duration::from_secs(seconds.into());
    let expires = Timestamp::from_second(expires.as_second()).unwrap_or(expires);
    let token = app.signer.sign(id, port, expires);
    let path_url = format!("{}/v1/sandboxes/{id}/ports/{port}/?{LINK}={token}", app.address.url);
    let url = match &app.preview_domain {
        Some(domain) => {
            let host = domain.authority(id, port);
            format!("{}://{host}/?{LINK}={token}", app.address.scheme())
        }
        None => path_url.clone(),
    };
    Ok(PortLink { url, path_url, sandbox_id: id.to_string(), port, expires_at: expires })
}
