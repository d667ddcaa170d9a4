//! The guest's end of handing open files to the host; the talk is described in `guest_proto`.

use std::fs::File;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::Duration;

use guest_proto::handover::{ASK, DONE, HERE, UPGRADE};
use http::{HeaderValue, StatusCode, header};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, Interest};
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::path_of;
use super::placing::Placing;
use crate::http::{Body, Request, Response};
use crate::refusal::{Refusal, Result};
use crate::state::State;

/// The host asks at once.
const ASK_MAX: Duration = Duration::from_secs(30);

/// Whether a request would take the open file.
pub(super) fn is_asked(request: &Request) -> bool {
    request.headers().get(header::UPGRADE).is_some_and(|value| value == UPGRADE)
}

/// Hands a file over to be read.
pub(super) fn to_read(state: &State, request: &mut Request, file: File) -> Response {
    let upgrade = hyper::upgrade::on(request);
    state.tasks.spawn(async move {
        // Without a file the host says that it got none.
        let _ = give(upgrade, &file).await;
    });
    switching()
}

/// Hands a file over to be written, and puts it in its place when the host says that it is whole.
pub(super) async fn to_write(state: Arc<State>, mut request: Request) -> Result<Response> {
    let path = path_of(&request)?;
    if !is_asked(&request) {
        return Err(Refusal::invalid(format!("Upgrade: {UPGRADE} is missing")));
    }
    let owner = super::whole_file::owner_of_new(&state);
    let open = state.tasks.spawn_blocking(move || Placing::open(&path, owner));
    let placing = open.await.unwrap_or_else(|error| Err(Refusal::internal(error.to_string())))?;
    let upgrade = hyper::upgrade::on(&mut request);
    let tasks = state.tasks.clone();
    tasks.spawn(async move {
        // A connection that ends early is a file that was never there.
        let _ = receive(&state, upgrade, placing).await;
    });
    Ok(switching())
}

async fn receive(state: &State, upgrade: OnUpgrade, placing: Placing) -> io::Result<()> {
    let mut socket = give(upgrade, &placing.file).await?;
    // As long as the host's caller sends; the host closes when that has its end.
    if socket.read_u8().await? != DONE {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let put = state.tasks.spawn_blocking(move || placing.put_in_place());
    let put = put.await.unwrap_or_else(|error| Err(Refusal::internal(error.to_string())));
    let answer = match put {
        Ok(()) => serde_json::json!({ "code": StatusCode::NO_CONTENT.as_u16() }),
        Err(refusal) => serde_json::json!({
            "code": refusal.code.status().as_u16(), "message": refusal.message,
        }),
    };
    socket.write_all(answer.to_string().as_bytes()).await
}

async fn give(upgrade: OnUpgrade, file: &File) -> io::Result<UnixStream> {
    let upgraded: Upgraded = upgrade.await.map_err(io::Error::other)?;
    let parts = upgraded.downcast::<TokioIo<UnixStream>>();
    let parts = parts.map_err(|_| io::Error::other("not a socket of this machine"))?;
    let mut socket = parts.io.into_inner();
    let asked = match parts.read_buf.first() {
        Some(&early) => early,
        None => timeout(ASK_MAX, socket.read_u8()).await??,
    };
    if asked != ASK {
        return Err(io::ErrorKind::InvalidData.into());
    }
    socket.async_io(Interest::WRITABLE, || send(&socket, file)).await?;
    Ok(socket)
}

fn send(socket: &UnixStream, file: &File) -> io::Result<()> {
    let files = [file.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&files));
    sendmsg(socket, &[IoSlice::new(&[HERE])], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

fn switching() -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static(UPGRADE));
    response
}
