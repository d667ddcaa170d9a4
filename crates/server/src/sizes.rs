//! What stored workspaces take: counted in storage when it is asked for exactly, else as last counted and changed
//! since; and whether more may come in.

use blobs::Used;
use engine::Caller;
use jiff::{SignedDuration, Timestamp};
use model::{OwnerId, Result, WorkspaceId};

use crate::app::App;

/// What was counted so lately is not counted again for a list. Whoever writes past us, by a bucket's own links, is
/// seen after it.
const FRESH_FOR: SignedDuration = SignedDuration::from_mins(5);

/// Counts; `None` when there is no such workspace.
pub(crate) async fn count(
    app: &App,
    owner: &OwnerId,
    workspace: &WorkspaceId,
) -> Result<Option<Used>> {
    let used = app.blobs.used(owner, workspace).await?;
    match used {
        Some(Used { bytes, files }) => {
            let now = Timestamp::now();
            app.store.set_workspace_size(owner, workspace, (bytes, files), now).await?;
        }
        None => app.store.forget_workspace_size(owner, workspace).await?,
    }
    Ok(used)
}

/// In bytes, at most a few minutes old.
pub(crate) async fn size(app: &App, owner: &OwnerId, workspace: &WorkspaceId) -> Result<u64> {
    if let Some(known) = app.store.workspace_size(owner, workspace).await?
        && Timestamp::now().duration_since(known.counted_at) < FRESH_FOR
    {
        return Ok(known.bytes);
    }
    Ok(count(app, owner, workspace).await?.unwrap_or_default().bytes)
}

/// Whether the caller may keep so much more.
pub(crate) async fn admit(app: &App, caller: &Caller, workspace: &WorkspaceId) -> Result<()> {
    size(app, &caller.owner, workspace).await?;
    app.engine.admit_workspace(caller).await
}
