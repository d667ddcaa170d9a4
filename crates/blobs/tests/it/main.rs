//! The same assertions on a directory and on a real server that speaks S3 (moto, installed into
//! `tests-aws/venv`).

#![expect(clippy::unwrap_used, reason = "a test that cannot unwrap fails")]

mod keys;
mod places;
mod s3;
