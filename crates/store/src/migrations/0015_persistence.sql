-- Conversations that a backend of their owner's keeps too: where it is (sealed), how many events there are,
-- how many it has, and which batch is on its way. `base` is what it had of the conversation before.
CREATE TABLE persisted (
    conversation TEXT NOT NULL PRIMARY KEY,
    owner TEXT NOT NULL,
    sealed BLOB NOT NULL,
    base INTEGER,
    appended INTEGER NOT NULL,
    delivered INTEGER NOT NULL,
    sending INTEGER NOT NULL,
    waiting_bytes INTEGER NOT NULL
);

CREATE INDEX persisted_by_waiting ON persisted (waiting_bytes, conversation);
CREATE INDEX persisted_by_owner ON persisted (owner, waiting_bytes);

-- How far each source of a conversation was read; sources number their events from 1.
CREATE TABLE persisted_origins (
    conversation TEXT NOT NULL,
    origin TEXT NOT NULL,
    sequence INTEGER NOT NULL,
    PRIMARY KEY (conversation, origin)
);

-- What the backend does not have yet.
CREATE TABLE persisted_events (
    conversation TEXT NOT NULL,
    sequence INTEGER NOT NULL,
    at INTEGER NOT NULL,
    event TEXT NOT NULL,
    PRIMARY KEY (conversation, sequence)
);
