-- The last entry of the audit log that was removed for its age, if any was: what the first one left follows.
CREATE TABLE audit_begins (
    one INTEGER NOT NULL PRIMARY KEY,
    number INTEGER NOT NULL,
    digest BLOB NOT NULL
);
