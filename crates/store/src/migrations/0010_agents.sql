-- What the agent of a sandbox is to do, and with which key; sealed, and gone with the sandbox.
CREATE TABLE agent_orders (
    sandbox TEXT NOT NULL PRIMARY KEY,
    owner TEXT NOT NULL,
    sealed BLOB NOT NULL
);
