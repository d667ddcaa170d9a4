-- What of a leg is counted already: until when, how much processor time, and what it cost.
ALTER TABLE legs ADD COLUMN metered_at BIGINT;
ALTER TABLE legs ADD COLUMN metered_cpu_usec BIGINT NOT NULL DEFAULT 0;
ALTER TABLE legs ADD COLUMN charged_microcents BIGINT NOT NULL DEFAULT 0;
ALTER TABLE legs ADD COLUMN memory_mib BIGINT NOT NULL DEFAULT 0;
ALTER TABLE legs ADD COLUMN disk_gb BIGINT NOT NULL DEFAULT 0;
CREATE INDEX legs_by_owner ON legs (owner, started_at);

-- Sums of an owner's day (UTC, as days since 1970), kept for good.
CREATE TABLE usage_days (
    owner TEXT NOT NULL,
    day BIGINT NOT NULL,
    cpu_usec BIGINT NOT NULL DEFAULT 0,
    running_usec BIGINT NOT NULL DEFAULT 0,
    sandboxes BIGINT NOT NULL DEFAULT 0,
    charged_microcents BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (owner, day)
);

-- What agents used of models; counted, never charged.
CREATE TABLE token_days (
    owner TEXT NOT NULL,
    day BIGINT NOT NULL,
    sessions BIGINT NOT NULL DEFAULT 0,
    input_tokens BIGINT NOT NULL DEFAULT 0,
    output_tokens BIGINT NOT NULL DEFAULT 0,
    tool_calls BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (owner, day)
);
