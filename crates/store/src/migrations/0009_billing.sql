-- Every movement of money, in cents. Rows are never changed or removed; their sum is the balance.
CREATE TABLE ledger (
    id TEXT NOT NULL PRIMARY KEY,
    owner TEXT NOT NULL,
    cents BIGINT NOT NULL,
    kind TEXT NOT NULL,
    description TEXT NOT NULL,
    -- What it is for, where that may be told more than once; then it counts once.
    reference TEXT UNIQUE,
    at BIGINT NOT NULL
);
CREATE INDEX ledger_by_owner ON ledger (owner, at, id);

-- The sum of an owner's rows, and what was used and is less than a cent, or not yet a row.
CREATE TABLE balances (
    owner TEXT NOT NULL PRIMARY KEY,
    cents BIGINT NOT NULL DEFAULT 0,
    unbilled_microcents BIGINT NOT NULL DEFAULT 0,
    posted_at BIGINT NOT NULL DEFAULT 0
);

CREATE TABLE auto_topups (
    owner TEXT NOT NULL PRIMARY KEY,
    enabled BIGINT NOT NULL,
    threshold_cents BIGINT NOT NULL,
    topup_cents BIGINT NOT NULL
);

-- Who pays, as Stripe calls them.
CREATE TABLE payers (
    owner TEXT NOT NULL PRIMARY KEY,
    customer TEXT NOT NULL
);

-- Automatic payments: one at a time for an owner, each tried until its end is known.
CREATE TABLE topups (
    id TEXT NOT NULL PRIMARY KEY,
    owner TEXT NOT NULL,
    cents BIGINT NOT NULL,
    state TEXT NOT NULL,
    at BIGINT NOT NULL
);
CREATE UNIQUE INDEX topups_pending ON topups (owner) WHERE state = 'pending';
CREATE INDEX topups_by_owner ON topups (owner, at);
