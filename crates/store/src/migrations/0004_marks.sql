-- What has to outlive the rows that it is about: the highest number of an event.
CREATE TABLE marks (
    name TEXT NOT NULL PRIMARY KEY,
    value BIGINT NOT NULL
);
