-- What of a leg is in `usage_days` already. Memory is what the leg may use, in MiB.
ALTER TABLE legs ADD COLUMN memory_mib BIGINT NOT NULL DEFAULT 0;
ALTER TABLE legs ADD COLUMN metered_cpu_usec BIGINT NOT NULL DEFAULT 0;
ALTER TABLE legs ADD COLUMN metered_at BIGINT;

-- What an owner used in a day (UTC, 2026-01-31), and what of it was charged.
CREATE TABLE usage_days (
    owner TEXT NOT NULL,
    day TEXT NOT NULL,
    cpu_usec BIGINT NOT NULL DEFAULT 0,
    mib_ms BIGINT NOT NULL DEFAULT 0,
    sandboxes BIGINT NOT NULL DEFAULT 0,
    sessions BIGINT NOT NULL DEFAULT 0,
    input_tokens BIGINT NOT NULL DEFAULT 0,
    output_tokens BIGINT NOT NULL DEFAULT 0,
    tool_calls BIGINT NOT NULL DEFAULT 0,
    charged_cpu_usec BIGINT NOT NULL DEFAULT 0,
    charged_mib_ms BIGINT NOT NULL DEFAULT 0,
    charged_micro_cents BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (owner, day)
);
CREATE INDEX usage_uncharged ON usage_days (owner)
    WHERE cpu_usec > charged_cpu_usec OR mib_ms > charged_mib_ms;

-- Sandboxes that ran, for as long as their legs are kept.
CREATE TABLE history (
    sandbox TEXT NOT NULL PRIMARY KEY,
    owner TEXT NOT NULL,
    name TEXT NOT NULL,
    started_at BIGINT NOT NULL,
    ended_at BIGINT,
    runs BIGINT NOT NULL DEFAULT 1,
    run_usec BIGINT NOT NULL DEFAULT 0,
    cpu_usec BIGINT NOT NULL DEFAULT 0
);
CREATE INDEX history_by_owner ON history (owner, started_at);
CREATE INDEX history_by_end ON history (ended_at);

-- An owner's money. The balance is the sum of the ledger's amounts.
CREATE TABLE purses (
    owner TEXT NOT NULL PRIMARY KEY,
    balance_cents BIGINT NOT NULL DEFAULT 0,
    entries BIGINT NOT NULL DEFAULT 0,
    uncharged_micro_cents BIGINT NOT NULL DEFAULT 0,
    topup_enabled BIGINT NOT NULL DEFAULT 0,
    topup_threshold_cents BIGINT NOT NULL DEFAULT 0,
    topup_amount_cents BIGINT NOT NULL DEFAULT 0,
    -- When a payment was asked for that has not arrived.
    topup_asked_at BIGINT,
    customer TEXT,
    payment_method TEXT
);
CREATE INDEX purses_low ON purses (owner)
    WHERE topup_enabled = 1 AND balance_cents < topup_threshold_cents;
CREATE INDEX purses_empty ON purses (owner) WHERE balance_cents <= 0;

-- Only ever added to. A reference is what makes one payment one entry.
CREATE TABLE ledger (
    owner TEXT NOT NULL,
    number BIGINT NOT NULL,
    id TEXT NOT NULL UNIQUE,
    amount_cents BIGINT NOT NULL,
    balance_cents BIGINT NOT NULL,
    description TEXT NOT NULL,
    reference TEXT UNIQUE,
    at BIGINT NOT NULL,
    PRIMARY KEY (owner, number)
);
