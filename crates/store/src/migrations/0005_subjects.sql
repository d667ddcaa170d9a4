-- Whom an issuer of tokens means.
CREATE TABLE subjects (
    issuer TEXT NOT NULL,
    subject TEXT NOT NULL,
    owner TEXT NOT NULL REFERENCES owners (id),
    PRIMARY KEY (issuer, subject)
);
