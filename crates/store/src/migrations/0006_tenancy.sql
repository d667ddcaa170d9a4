CREATE TABLE organisations (
    id TEXT NOT NULL PRIMARY KEY,
    name TEXT NOT NULL,
    plan TEXT,
    created_at BIGINT NOT NULL
);

-- An owner is in one organisation at most.
CREATE TABLE members (
    owner TEXT NOT NULL PRIMARY KEY REFERENCES owners (id),
    organisation TEXT NOT NULL REFERENCES organisations (id),
    role TEXT NOT NULL,
    since BIGINT NOT NULL
);
CREATE INDEX members_by_organisation ON members (organisation, owner);

-- Of an owner or an organisation. What is absent is as the next one has it: owner, organisation, plan.
CREATE TABLE quotas (
    subject TEXT NOT NULL PRIMARY KEY,
    persistent_max BIGINT,
    ephemeral_max BIGINT,
    disk_gb_per_tier_max BIGINT
);

-- Written at its end alone. Each digest is of the one before and of what the row says.
CREATE TABLE audit (
    number BIGINT NOT NULL PRIMARY KEY,
    at BIGINT NOT NULL,
    actor TEXT NOT NULL,
    action TEXT NOT NULL,
    target TEXT NOT NULL,
    outcome TEXT NOT NULL,
    address TEXT NOT NULL,
    digest BLOB NOT NULL
);
