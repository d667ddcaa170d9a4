//! `POST /files/compose`: several files become one, in order. What was there stays until all of it
//! is written.

use std::fs::{self, File};
use std::io;
use std::sync::Arc;

use serde::Deserialize;

use super::metadata::Metadata;
use super::target::{full, make_directories, own};
use super::upload::written;
use crate::accounts::Account;
use crate::http::{Request, Response, json, json_body};
use crate::paths;
use crate::refusal::{Refusal, Result};
use crate::state::State;

/// In one request.
const SOURCES_MAX: usize = 10_000;

#[derive(Debug, Deserialize)]
struct Compose {
    source_paths: Vec<String>,
    destination: String,
    username: Option<String>,
}

pub(crate) async fn compose(state: Arc<State>, request: Request) -> Result<Response> {
    let user = crate::rpc::user_of(&request)?;
    let compose: Compose = json_body(request).await?;
    if compose.source_paths.is_empty() || compose.source_paths.len() > SOURCES_MAX {
        return Err(Refusal::invalid(format!("source_paths: not 1 to {SOURCES_MAX} of them")));
    }
    let account = state.account(compose.username.as_deref().or(user.as_deref()))?;
    let resolve = |path: &String| state.resolve(path, &account);
    let sources: Vec<String> = compose.source_paths.iter().map(resolve).collect();
    let destination = resolve(&compose.destination);
    let is_root = state.is_root;
    let join = {
        let (account, destination) = (account.clone(), destination.clone());
        state.tasks.spawn_blocking(move || join(&sources, &destination, &account, is_root))
    };
    let joined = join.await.unwrap_or_else(|error| Err(Refusal::internal(error.to_string())));
    joined.map_err(full)?;
    Ok(json(&written(destination, Metadata::new())))
}

fn join(sources: &[String], destination: &str, account: &Account, is_root: bool) -> Result<()> {
    for source in sources {
        let meta = fs::metadata(source);
        let meta =
            meta.map_err(|_| Refusal::not_found(format!("path '{source}' does not exist")))?;
        if !meta.is_file() {
            return Err(Refusal::invalid(format!("path '{source}' is not a regular file")));
        }
    }
    if fs::metadata(destination).is_ok_and(|meta| meta.is_dir()) {
        return Err(Refusal::invalid(format!("path is a directory: {destination}")));
    }
    let (parent, name) = paths::split(destination);
    make_directories(parent, account, is_root)?;
    let temporary = format!("{parent}/.{name}.compose-{}", std::process::id());
    let done = fill(sources, &temporary, account, is_root).and_then(|()| {
        fs::rename(&temporary, destination).map_err(|error| Refusal::io(destination, &error))
    });
    if done.is_err() {
        let _ = fs::remove_file(&temporary);
        return done;
    }
    // Their bytes live on in the destination.
    for source in sources.iter().filter(|source| *source != destination) {
        let _ = fs::remove_file(source);
    }
    done
}

fn fill(sources: &[String], temporary: &str, account: &Account, is_root: bool) -> Result<()> {
    let failed = |error: io::Error| Refusal::io(temporary, &error);
    let mut file = File::create(temporary).map_err(failed)?;
    if is_root {
        own(&file, account)?;
    }
    for source in sources {
        let mut source = File::open(source).map_err(|error| Refusal::io(source, &error))?;
        io::copy(&mut source, &mut file).map_err(failed)?;
    }
    Ok(())
}
