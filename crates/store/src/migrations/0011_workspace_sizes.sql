-- What stored workspaces take, as last counted and changed since; storage itself is right.
CREATE TABLE workspace_sizes (
    owner TEXT NOT NULL,
    app_id TEXT NOT NULL,
    capset_id TEXT NOT NULL,
    bytes BIGINT NOT NULL,
    files BIGINT NOT NULL,
    counted_at BIGINT NOT NULL,
    PRIMARY KEY (owner, app_id, capset_id)
);
ALTER TABLE quotas ADD COLUMN workspace_gib_max BIGINT;
