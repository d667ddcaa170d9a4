-- Sessions, and how each is; what they said is in session_events. No secret is in it.
CREATE TABLE sessions (
    id TEXT NOT NULL PRIMARY KEY,
    owner TEXT NOT NULL,
    spec TEXT NOT NULL,
    status TEXT NOT NULL,
    reason TEXT,
    sandbox TEXT,
    life BIGINT NOT NULL,
    native_session_id TEXT,
    created_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    input_tokens BIGINT NOT NULL DEFAULT 0,
    output_tokens BIGINT NOT NULL DEFAULT 0,
    tool_calls BIGINT NOT NULL DEFAULT 0,
    -- Who resumes it just now, and until when that is believed.
    claim TEXT,
    claim_until BIGINT,
    resumed_at BIGINT,
    previous_status TEXT
);
CREATE INDEX sessions_by_owner ON sessions (owner, id);
CREATE INDEX sessions_by_status ON sessions (status);
CREATE INDEX sessions_by_claim ON sessions (claim_until);
