-- Events of sessions as clients see them, in their order. In SQLite a file of its own. `cursor` is how far the
-- stream of the daemon (of that life) was read when the event was written: log and cursor cannot disagree.
CREATE TABLE session_events (
    session TEXT NOT NULL,
    sequence BIGINT NOT NULL,
    life BIGINT NOT NULL,
    cursor BIGINT NOT NULL,
    event TEXT NOT NULL,
    PRIMARY KEY (session, sequence)
);
