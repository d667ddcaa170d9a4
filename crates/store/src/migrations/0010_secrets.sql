-- Bundles of secrets. `value` is sealed, or (when `place` is not 'sealed') says where the values are.
CREATE TABLE secret_bundles (
    owner TEXT NOT NULL,
    name TEXT NOT NULL,
    key_names TEXT NOT NULL,
    place TEXT NOT NULL,
    value BLOB NOT NULL,
    created_at BIGINT NOT NULL,
    rotated_at BIGINT,
    PRIMARY KEY (owner, name)
);
