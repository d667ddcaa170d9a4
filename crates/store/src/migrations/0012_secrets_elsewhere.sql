-- What is about to be written to another keeper of secrets, or may be deleted there: no bundle refers to it.
CREATE TABLE secrets_elsewhere (
    found_at BLOB NOT NULL PRIMARY KEY,
    at BIGINT NOT NULL
);
