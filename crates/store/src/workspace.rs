//! What stored workspaces take: as last counted, and changed since by what is known to have moved. Storage is right;
//! this answers at once, and is the sum that a quota is held against.

use jiff::Timestamp;
use model::{OwnerId, Result, WorkspaceId};

use crate::Store;
use crate::change::execute;
use crate::db::bounded;
use crate::read::{micros, timestamp};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkspaceSize {
    pub bytes: u64,
    pub files: u64,
    /// 1970 for one that was never counted.
    pub counted_at: Timestamp,
}

impl Store {
    /// What was counted: bytes and files.
    pub async fn set_workspace_size(
        &self,
        owner: &OwnerId,
        workspace: &WorkspaceId,
        (bytes, files): (u64, u64),
        now: Timestamp,
    ) -> Result<()> {
        let (owner, workspace, at) = (owner.clone(), workspace.clone(), micros(now));
        let (bytes, files) = (bounded(bytes), bounded(files));
        let set = self.0.writer.submit(move |batch| {
            execute(
                &batch.db,
                "INSERT INTO workspace_sizes (owner, app_id, capset_id, bytes, files, counted_at)
                 VALUES ($1, $2, $3, $4, $5, $6)
                 ON CONFLICT (owner, app_id, capset_id) DO UPDATE SET bytes = excluded.bytes,
                   files = excluded.files, counted_at = excluded.counted_at",
                &[
                    &owner.as_str(),
                    &workspace.app_id(),
                    &workspace.capset_id(),
                    &bytes,
                    &files,
                    &at,
                ],
            )
        });
        set.await.map(drop)
    }

    /// What has moved since it was counted.
    pub async fn change_workspace_size(
        &self,
        owner: &OwnerId,
        workspace: &WorkspaceId,
        (bytes, files): (i64, i64),
    ) -> Result<()> {
        let (owner, workspace) = (owner.clone(), workspace.clone());
        let changed = self.0.writer.submit(move |batch| {
            execute(
                &batch.db,
                "INSERT INTO workspace_sizes (owner, app_id, capset_id, bytes, files, counted_at)
                 VALUES ($1, $2, $3, $4, $5, 0)
                 ON CONFLICT (owner, app_id, capset_id) DO UPDATE SET
                   bytes = CASE WHEN workspace_sizes.bytes + $6 < 0 THEN 0
                     ELSE workspace_sizes.bytes + $6 END,
                   files = CASE WHEN workspace_sizes.files + $7 < 0 THEN 0
                     ELSE workspace_sizes.files + $7 END",
                &[
                    &owner.as_str(),
                    &workspace.app_id(),
                    &workspace.capset_id(),
                    &bytes.max(0),
                    &files.max(0),
                    &bytes,
                    &files,
                ],
            )
        });
        changed.await.map(drop)
    }

    /// There is no such workspace any more.
    pub async fn forget_workspace_size(
        &self,
        owner: &OwnerId,
        workspace: &WorkspaceId,
    ) -> Result<()> {
        let (owner, workspace) = (owner.clone(), workspace.clone());
        let forgotten = self.0.writer.submit(move |batch| {
            execute(
                &batch.db,
                "DELETE FROM workspace_sizes WHERE owner = $1 AND app_id = $2 AND capset_id = $3",
                &[&owner.as_str(), &workspace.app_id(), &workspace.capset_id()],
            )
        });
        forgotten.await.map(drop)
    }

    pub async fn workspace_size(
        &self,
        owner: &OwnerId,
        workspace: &WorkspaceId,
    ) -> Result<Option<WorkspaceSize>> {
        let (owner, workspace) = (owner.clone(), workspace.clone());
        self.read(move |db| {
            let sql = "SELECT bytes, files, counted_at FROM workspace_sizes
                       WHERE owner = $1 AND app_id = $2 AND capset_id = $3";
            let of: [&dyn crate::db::Value; 3] =
                [&owner.as_str(), &workspace.app_id(), &workspace.capset_id()];
            db.first(sql, &of, |row| {
                let (bytes, files) = (row.unsigned(0)?, row.unsigned(1)?);
                Ok(WorkspaceSize { bytes, files, counted_at: timestamp(row.get(2)?)? })
            })
        })
        .await
    }

    /// Of all of an owner's workspaces.
    pub async fn workspace_bytes(&self, owner: &OwnerId) -> Result<u64> {
        let owner = owner.clone();
        let sum = self.read(move |db| {
            let sql = "SELECT CAST(coalesce(sum(bytes), 0) AS BIGINT) FROM workspace_sizes
                       WHERE owner = $1";
            db.first(sql, &[&owner.as_str()], |row| row.unsigned(0))
        });
        Ok(sum.await?.unwrap_or_default())
    }
}
