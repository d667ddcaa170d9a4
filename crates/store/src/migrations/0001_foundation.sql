-- Times are microseconds since 1970 (UTC). Ids and digests are as the API shows them.

CREATE TABLE owners (
    id TEXT NOT NULL PRIMARY KEY,
    created_at BIGINT NOT NULL
);

CREATE TABLE api_keys (
    id TEXT NOT NULL PRIMARY KEY,
    owner TEXT NOT NULL REFERENCES owners (id),
    plan TEXT NOT NULL,
    name TEXT NOT NULL,
    prefix TEXT NOT NULL,
    sha256 BLOB NOT NULL UNIQUE,
    bcrypt TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    revoked_at BIGINT
);
CREATE INDEX api_keys_by_owner ON api_keys (owner, created_at);

-- Who holds a name. `ready` is 0 until the create that made the claim was finished.
CREATE TABLE names (
    owner TEXT NOT NULL,
    name TEXT NOT NULL,
    sandbox TEXT NOT NULL UNIQUE,
    ready INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (owner, name)
);

-- Idempotency keys. `done` is 0 until the create that made the claim was finished.
CREATE TABLE requests (
    owner TEXT NOT NULL,
    idempotency_key TEXT NOT NULL,
    body_sha256 BLOB NOT NULL,
    sandbox TEXT NOT NULL,
    answer TEXT NOT NULL,
    done INTEGER NOT NULL DEFAULT 0,
    expires_at BIGINT NOT NULL,
    PRIMARY KEY (owner, idempotency_key)
);
CREATE INDEX requests_by_sandbox ON requests (sandbox);
CREATE INDEX requests_by_expiry ON requests (expires_at);

-- One billing leg per start. The key is what keeps anything from being billed twice.
CREATE TABLE legs (
    sandbox TEXT NOT NULL,
    incarnation TEXT NOT NULL,
    owner TEXT NOT NULL,
    started_at BIGINT NOT NULL,
    ended_at BIGINT,
    cpu_usec BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (sandbox, incarnation)
);
CREATE INDEX legs_open ON legs (sandbox) WHERE ended_at IS NULL;

-- The audit log and the source of GET /v1/events, kept for 24 hours. `transition` names what
-- happened once and only once to a sandbox.
CREATE TABLE events (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    owner TEXT NOT NULL,
    sandbox TEXT NOT NULL,
    transition TEXT NOT NULL,
    body TEXT NOT NULL,
    at BIGINT NOT NULL,
    UNIQUE (sandbox, transition)
);
CREATE INDEX events_by_owner ON events (owner, id);
CREATE INDEX events_by_age ON events (at);
