//! The one door to the database: `SQLite` in the data directory, or `PostgreSQL` by its URL. What is
//! said through it is SQL that both understand, so that there is one text for every query.
//!
//! The dialect: parameters are `$1`, `$2`, … in the order in which they first occur; integers are
//! BIGINT (also truth values), bytes BLOB, everything else TEXT, which compares byte by byte; a sum is
//! cast back to BIGINT; a conflict is answered by `ON CONFLICT`; what was written is asked for with
//! `RETURNING`. Migrations are rewritten where the two name types differently.

pub(crate) mod postgres;
mod tls;

use std::str::FromStr;

use anyhow::Context;
use model::{Error, Result};

use crate::db::postgres::Session;

/// A database as one thread sees it.
pub(crate) enum Db<'a> {
    Sqlite(&'a rusqlite::Connection),
    Postgres(&'a Session),
    /// It does not answer.
    Gone,
}

/// What a parameter can be: `i64`, text, `&[u8]`, and an `Option` of them.
pub(crate) trait Value: rusqlite::ToSql + tokio_postgres::types::ToSql + Sync {}

impl<T: rusqlite::ToSql + tokio_postgres::types::ToSql + Sync> Value for T {}

/// What a column can be read as.
pub(crate) trait Column:
    rusqlite::types::FromSql + for<'a> tokio_postgres::types::FromSql<'a>
{
}

impl<T> Column for T where T: rusqlite::types::FromSql + for<'a> tokio_postgres::types::FromSql<'a> {}

/// One row of an answer.
pub(crate) enum Row<'a> {
    Sqlite(&'a rusqlite::Row<'a>),
    Postgres(&'a tokio_postgres::Row),
}

impl Db<'_> {
    /// How many rows it changed.
    pub(crate) fn execute(&self, sql: &str, values: &[&dyn Value]) -> Result<usize> {
        match self {
            Self::Sqlite(db) => {
                in_order(sql);
                let changed = db
                    .prepare_cached(sql)
                    .and_then(|mut statement| statement.execute(&of_sqlite(values)[..]));
                Ok(changed.context("write to the store")?)
            }
            Self::Postgres(session) => session.execute(sql, values),
            Self::Gone => Err(gone()),
        }
    }

    pub(crate) fn all<T>(
        &self,
        sql: &str,
        values: &[&dyn Value],
        mut read: impl FnMut(&Row<'_>) -> Result<T>,
    ) -> Result<Vec<T>> {
        match self {
            Self::Sqlite(db) => {
                in_order(sql);
                let mut statement = db.prepare_cached(sql).context("ask the store")?;
                let mut rows = statement.query(&of_sqlite(values)[..]).context("ask the store")?;
                let mut all = Vec::new();
                while let Some(row) = rows.next().context("read from the store")? {
                    all.push(read(&Row::Sqlite(row))?);
                }
                Ok(all)
            }
            Self::Postgres(session) => {
                let rows = session.query(sql, values)?;
                rows.iter().map(|row| read(&Row::Postgres(row))).collect()
            }
            Self::Gone => Err(gone()),
        }
    }

    /// The first row, if there is one. A statement that writes has done all of it.
    pub(crate) fn first<T>(
        &self,
        sql: &str,
        values: &[&dyn Value],
        read: impl FnMut(&Row<'_>) -> Result<T>,
    ) -> Result<Option<T>> {
        Ok(self.all(sql, values, read)?.into_iter().next())
    }

    /// Statements without parameters and without an answer.
    pub(crate) fn run(&self, sql: &str) -> Result<()> {
        match self {
            Self::Sqlite(db) => Ok(db.execute_batch(sql).context("write to the store")?),
            Self::Postgres(session) => session.run(sql),
            Self::Gone => Err(gone()),
        }
    }

    /// Runs reads that see one and the same moment.
    pub(crate) fn at_one_moment<T>(&self, reads: impl FnOnce() -> Result<T>) -> Result<T> {
        match self {
            Self::Sqlite(db) => {
                let _until_dropped = db.unchecked_transaction().context("begin to read")?;
                reads()
            }
            Self::Postgres(session) => {
                session.run("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")?;
                let answer = reads();
                session.run("ROLLBACK")?;
                answer
            }
            Self::Gone => Err(gone()),
        }
    }

    /// Whether what is written now can still be undone.
    pub(crate) fn in_transaction(&self) -> bool {
        match self {
            Self::Sqlite(db) => !db.is_autocommit(),
            Self::Postgres(session) => session.in_transaction(),
            Self::Gone => false,
        }
    }
}

impl Row<'_> {
    pub(crate) fn get<T: Column>(&self, column: usize) -> Result<T> {
        let unread = || format!("read column {column}");
        Ok(match self {
            Self::Sqlite(row) => row.get(column).with_context(unread)?,
            Self::Postgres(row) => row.try_get(column).with_context(unread)?,
        })
    }

    /// Text that one of our own types was written as.
    pub(crate) fn parsed<T: FromStr<Err = Error>>(&self, column: usize) -> Result<T> {
        understood(column, &self.get::<String>(column)?)
    }

    pub(crate) fn parsed_if_any<T>(&self, column: usize) -> Result<Option<T>>
    where
        T: FromStr<Err = Error>,
    {
        let text: Option<String> = self.get(column)?;
        text.map(|text| understood(column, &text)).transpose()
    }

    /// A number that is never below zero.
    pub(crate) fn unsigned(&self, column: usize) -> Result<u64> {
        let number = u64::try_from(self.get::<i64>(column)?);
        Ok(number.with_context(|| format!("understand column {column}"))?)
    }

    pub(crate) fn flag(&self, column: usize) -> Result<bool> {
        Ok(self.get::<i64>(column)? != 0)
    }

    pub(crate) fn digest(&self, column: usize) -> Result<[u8; 32]> {
        let bytes: Vec<u8> = self.get(column)?;
        let digest = <[u8; 32]>::try_from(bytes);
        Ok(digest.map_err(|_| anyhow::anyhow!("read column {column}: not a digest"))?)
    }
}

/// A number as a column can have it.
pub(crate) fn bounded(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// What is in the database and wrong is our own mistake, whatever it would be in a request.
fn understood<T: FromStr<Err = Error>>(column: usize, text: &str) -> Result<T> {
    let wrong = |error| anyhow::anyhow!("understand column {column}: {error}");
    Ok(text.parse::<T>().map_err(wrong)?)
}

fn gone() -> Error {
    Error::unavailable("the database does not answer")
}

fn of_sqlite<'a>(values: &[&'a dyn Value]) -> Vec<&'a dyn rusqlite::ToSql> {
    values.iter().map(|value| *value as &dyn rusqlite::ToSql).collect()
}

/// `SQLite` numbers parameters as they occur, whatever they are called.
fn in_order(sql: &str) {
    if cfg!(debug_assertions) {
        let mut highest = 0;
        for name in sql.split('$').skip(1) {
            let digits: String = name.chars().take_while(char::is_ascii_digit).collect();
            let number: usize = digits.parse().unwrap_or_default();
            assert!(number <= highest + 1, "parameters out of order: {sql}");
            highest = highest.max(number);
        }
    }
}
