//! Whole files for the control plane. Reading and writing refuse nothing but what the kernel
//! refuses; the directory of a written file must exist (ruling 19).

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::sync::Arc;

use super::path_of;
use crate::files::{FileStream, FileWriter, drain};
use crate::http::{Body, BodyReader, Request, Response, no_content};
use crate::paths;
use crate::refusal::{Code, Refusal, Result};
use crate::state::State;

pub(super) async fn read(state: Arc<State>, request: &Request) -> Result<Response> {
    let path = path_of(request)?;
    let open = state.tasks.spawn_blocking(move || open_to_read(&path));
    let (file, meta) =
        open.await.unwrap_or_else(|error| Err(Refusal::internal(error.to_string())))?;
    let size = meta.len();
    Ok(Response::new(Body::sized(FileStream::new(state.tasks.clone(), file, 0, size), size)))
}

pub(super) async fn write(state: Arc<State>, request: Request) -> Result<Response> {
    let path = path_of(&request)?;
    let mut body = BodyReader::new(request.into_body());
    let owner = state.account(None).ok().filter(|_| state.is_root);
    let owner = owner.map(|account| (account.uid, account.gid));
    let open = state.tasks.spawn_blocking(move || open_to_write(&path, owner));
    let opened = open.await.unwrap_or_else(|error| Err(Refusal::internal(error.to_string())));
    let written = match opened {
        Ok(file) => copy(&state, file, &mut body).await,
        Err(refusal) => Err(refusal),
    };
    if let Err(refusal) = written {
        drain(&mut body).await;
        return Err(refusal);
    }
    Ok(no_content())
}

async fn copy(state: &State, file: File, body: &mut BodyReader) -> Result<()> {
    let mut writer = FileWriter::new(state.tasks.clone(), file);
    while let Some(piece) = body.next().await? {
        writer.write(piece).await?;
    }
    writer.finish().await.map(drop)
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

/// A new file belongs to the sandbox's user; an old one keeps its owner and mode.
fn open_to_write(path: &str, owner: Option<(u32, u32)>) -> Result<File> {
    let mut options = File::options();
    options.write(true).mode(0o644).custom_flags(libc::O_NONBLOCK);
    let created = options.clone().create_new(true).open(path);
    let file = match created {
        Ok(file) => {
            if let Some((uid, gid)) = owner {
                std::os::unix::fs::fchown(&file, Some(uid), Some(gid))
                    .map_err(|error| Refusal::io(path, &error))?;
            }
            return Ok(file);
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            // `create` too, for a link whose target is missing.
            options.create(true).truncate(true).open(path)
        }
        Err(error) => Err(error),
    };
    file.map_err(|error| no_parent(path, &error))
}

/// A missing directory is the caller's mistake, not a missing file.
fn no_parent(path: &str, error: &io::Error) -> Refusal {
    match error.kind() {
        io::ErrorKind::NotFound => {
            let (parent, _) = paths::split(path);
            Refusal::new(Code::InvalidArgument, format!("no such directory: {parent}"))
        }
        _ => Refusal::io(path, error),
    }
}
