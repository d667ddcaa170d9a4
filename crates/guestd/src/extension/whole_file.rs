//! Whole files for the control plane. Reading and writing refuse nothing but what the kernel
//! refuses; the directory of a written file must exist (ruling 19).

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::sync::Arc;

use guest_proto::pieces::{FileStream, FileWriter};

use super::placing::Placing;
use super::{handover, path_of};
use crate::files::{drain, unwritten};
use crate::http::{Body, BodyReader, Request, Response, no_content};
use crate::refusal::{Refusal, Result};
use crate::state::State;

pub(super) async fn read(state: Arc<State>, mut request: Request) -> Result<Response> {
    let path = path_of(&request)?;
    let open = state.tasks.spawn_blocking(move || open_to_read(&path));
    let (file, meta) =
        open.await.unwrap_or_else(|error| Err(Refusal::internal(error.to_string())))?;
    let size = meta.len();
    if size >= guest_proto::handover::BYTES_MIN && handover::is_asked(&request) {
        return Ok(handover::to_read(&state, &mut request, file));
    }
    Ok(Response::new(Body::sized(FileStream::new(file, 0, size), size)))
}

pub(super) async fn write(state: Arc<State>, request: Request) -> Result<Response> {
    let path = path_of(&request)?;
    let mut body = BodyReader::new(request.into_body());
    let owner = owner_of_new(&state);
    let open = state.tasks.spawn_blocking(move || Placing::open(&path, owner));
    let opened = open.await.unwrap_or_else(|error| Err(Refusal::internal(error.to_string())));
    let written = match opened {
        Ok(placing) => fill(&state, placing, &mut body).await,
        Err(refusal) => Err(refusal),
    };
    if let Err(refusal) = written {
        drain(&mut body).await;
        return Err(refusal);
    }
    Ok(no_content())
}

async fn fill(state: &State, placing: Placing, body: &mut BodyReader) -> Result<()> {
    let file = placing.file.try_clone().map_err(|error| unwritten(&error))?;
    let mut writer = FileWriter::new(file);
    while let Some(piece) = body.next().await? {
        writer.write(piece).await.map_err(|error| unwritten(&error))?;
    }
    writer.finish().await.map_err(|error| unwritten(&error))?;
    let put = state.tasks.spawn_blocking(move || placing.put_in_place());
    put.await.unwrap_or_else(|error| Err(Refusal::internal(error.to_string())))
}

/// What is made for the control plane belongs to the sandbox's user.
pub(super) fn owner_of_new(state: &State) -> Option<(u32, u32)> {
    let owner = state.account(None).ok().filter(|_| state.is_root);
    owner.map(|account| (account.uid, account.gid))
}

fn open_to_read(path: &str) -> Result<(File, Metadata)> {
    let failed = |error: io::Error| Refusal::io(path, &error);
    // Without NONBLOCK, opening a pipe would wait for its writer.
    let file =
        File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(failed)?;
    let meta = file.metadata().map_err(failed)?;
    if meta.is_dir() {
        return Err(Refusal::invalid(format!("{path}: is a directory")));
    }
    if !meta.is_file() {
        return Err(Refusal::invalid(format!("{path}: is not a regular file")));
    }
    Ok((file, meta))
}
