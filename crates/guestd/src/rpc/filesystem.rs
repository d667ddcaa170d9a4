//! `filesystem.Filesystem`: everything about files but their contents.

use std::fs;
use std::io;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Entry, Nothing, caller, no_such, of_path, watch_calls};
use crate::accounts::Account;
use crate::connect;
use crate::files::make_directories;
use crate::http::{Request, Response};
use crate::paths;
use crate::refusal::{Code, Refusal, Result};
use crate::state::State;

/// In one answer.
const ENTRIES_MAX: usize = 100_000;

#[derive(Debug, Default, Deserialize)]
struct PathRequest {
    #[serde(default)]
    path: String,
    #[serde(default)]
    depth: u32,
    #[serde(default)]
    source: String,
    #[serde(default)]
    destination: String,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Answer {
    Entry { entry: Box<Entry> },
    Entries { entries: Vec<Entry> },
    Nothing(Nothing),
}

/// A call with its paths resolved, to be carried out where blocking is allowed.
struct Work {
    state: Arc<State>,
    account: Account,
    request: PathRequest,
}

pub(crate) async fn filesystem(state: Arc<State>, request: Request, procedure: &str) -> Response {
    let work: fn(&Work) -> Result<Answer> = match procedure {
        "Stat" => Work::stat,
        "MakeDir" => Work::make_dir,
        "Move" => Work::rename,
        "ListDir" => Work::list_dir,
        "Remove" => Work::remove,
        "WatchDir" => return watch_calls::watch_dir(&state, request).await,
        "CreateWatcher" => return watch_calls::create(&state, request).await,
        "GetWatcherEvents" => return watch_calls::events(&state, request).await,
        "RemoveWatcher" => return watch_calls::remove(&state, request).await,
        other => return connect::unary::<Nothing>(Err(no_such(other))),
    };
    connect::unary(carry_out(state, request, work).await)
}

async fn carry_out(
    state: Arc<State>,
    request: Request,
    work: fn(&Work) -> Result<Answer>,
) -> Result<Answer> {
    let account = caller(&state, &request)?;
    let mut request: PathRequest = connect::unary_request(request).await?;
    for path in [&mut request.path, &mut request.source, &mut request.destination] {
        *path = state.resolve(path, &account);
    }
    let tasks = state.tasks.clone();
    let done = tasks.spawn_blocking(move || work(&Work { state, account, request }));
    done.await.unwrap_or_else(|error| Err(Refusal::internal(error.to_string())))
}

impl Work {
    fn entry(&self, path: &str) -> Result<Answer> {
        let entry = of_path(path, &self.state.accounts).map_err(|error| missing(path, &error))?;
        Ok(Answer::Entry { entry: Box::new(entry) })
    }

    fn stat(&self) -> Result<Answer> {
        self.entry(&self.request.path)
    }

    fn make_dir(&self) -> Result<Answer> {
        let path = &self.request.path;
        match fs::metadata(path) {
            Ok(meta) if meta.is_dir() => {
                let message = format!("directory already exists: {path}");
                return Err(Refusal::new(Code::AlreadyExists, message));
            }
            Ok(_) => {
                let message = format!("path already exists but it is not a directory: {path}");
                return Err(Refusal::invalid(message));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(Refusal::io(path, &error)),
        }
        make_directories(path, &self.account, self.state.is_root)?;
        self.entry(path)
    }

    fn rename(&self) -> Result<Answer> {
        let (source, destination) = (&self.request.source, &self.request.destination);
        fs::symlink_metadata(source).map_err(|error| missing(source, &error))?;
        make_directories(paths::split(destination).0, &self.account, self.state.is_root)?;
        match fs::rename(source, destination) {
            Err(error) if error.kind() == io::ErrorKind::CrossesDevices => {
                move_across(source, destination)?;
            }
            other => other.map_err(|error| Refusal::io("move", &error))?,
        }
        self.entry(destination)
    }

    /// Depth first, by name. A link as the root is followed; below, links are entries.
    fn list_dir(&self) -> Result<Answer> {
        let path = &self.request.path;
        let meta = fs::metadata(path).map_err(|error| missing(path, &error))?;
        if !meta.is_dir() {
            return Err(Refusal::invalid(format!("path is not a directory: {path}")));
        }
        let depth = self.request.depth.max(1);
        let mut entries = Vec::new();
        let mut waiting = vec![(path.clone(), 0)];
        while let Some((path, level)) = waiting.pop() {
            if level > 0 {
                // What vanished meanwhile is not listed.
                let Ok(entry) = of_path(&path, &self.state.accounts) else { continue };
                entries.push(entry);
                if entries.len() > ENTRIES_MAX {
                    let message = format!("the directory has more than {ENTRIES_MAX} entries");
                    return Err(Refusal::new(Code::ResourceExhausted, message));
                }
            }
            let is_directory =
                level == 0 || fs::symlink_metadata(&path).is_ok_and(|meta| meta.is_dir());
            if level < depth && is_directory {
                waiting
                    .extend(names(&path).into_iter().map(|name| (below(&path, &name), level + 1)));
            }
        }
        Ok(Answer::Entries { entries })
    }

    fn remove(&self) -> Result<Answer> {
        let path = &self.request.path;
        let removed = match fs::symlink_metadata(path) {
            Ok(meta) if meta.is_dir() => fs::remove_dir_all(path),
            Ok(_) => fs::remove_file(path),
            Err(error) => Err(error),
        };
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Refusal::io(path, &error)),
            _ => Ok(Answer::Nothing(Nothing {})),
        }
    }
}

/// The names in a directory, last one first. What cannot be read is empty.
fn names(path: &str) -> Vec<String> {
    let Ok(entries) = fs::read_dir(path) else { return Vec::new() };
    let mut names: Vec<String> = entries
        .flatten()
        .take(ENTRIES_MAX + 1)
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort_unstable_by(|a, b| b.cmp(a));
    names
}

fn below(path: &str, name: &str) -> String {
    if path == "/" { format!("/{name}") } else { format!("{path}/{name}") }
}

/// The home and the workspace are different file systems. A file is copied with its mode and owner
/// and then removed; for a directory the client is told.
fn move_across(source: &str, destination: &str) -> Result<()> {
    use std::os::unix::fs::MetadataExt as _;
    let failed = |error: io::Error| Refusal::io("move", &error);
    let meta = fs::symlink_metadata(source).map_err(failed)?;
    if !meta.is_file() {
        return Err(Refusal::invalid("only files can be moved to another file system"));
    }
    fs::copy(source, destination).map_err(failed)?;
    // Without the right to give files away, the copy is ours.
    let _ = std::os::unix::fs::chown(destination, Some(meta.uid()), Some(meta.gid()));
    fs::remove_file(source).map_err(failed)
}

pub(super) fn missing(path: &str, error: &io::Error) -> Refusal {
    match error.kind() {
        io::ErrorKind::NotFound => Refusal::not_found(format!("path not found: {path}")),
        _ => Refusal::io(path, error),
    }
}
