-- Who launches, stops and reaps. The epoch grows whenever the lease changes hands; what a holder of an
-- older epoch still wants to write about a sandbox is refused.
CREATE TABLE leases (
    name TEXT NOT NULL PRIMARY KEY,
    epoch BIGINT NOT NULL
);
