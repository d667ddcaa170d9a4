-- An owner with an e-mail is an account. A plan here wins over that of a key.
ALTER TABLE owners ADD COLUMN email TEXT;
ALTER TABLE owners ADD COLUMN plan TEXT;
CREATE UNIQUE INDEX owners_by_email ON owners (email);

-- One-time codes, one per e-mail. The digest is keyed with something that is not in the database.
CREATE TABLE codes (
    email TEXT NOT NULL PRIMARY KEY,
    digest BLOB NOT NULL,
    tries BIGINT NOT NULL DEFAULT 0,
    expires_at BIGINT NOT NULL
);
CREATE INDEX codes_by_expiry ON codes (expires_at);

-- What was let through lately, for rates that hold over all servers.
CREATE TABLE hits (
    bucket TEXT NOT NULL,
    at BIGINT NOT NULL
);
CREATE INDEX hits_by_bucket ON hits (bucket, at);
CREATE INDEX hits_by_age ON hits (at);
