//! Connections and migrations.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use model::Result;
use rusqlite::Connection;

use crate::db::Db;
use crate::db::postgres::{Order, Session};

/// In order; the database's `user_version` is how many of them it has. Never edit one that was
/// released, add another.
const MIGRATIONS: [&str; 15] = [
    include_str!("migrations/0001_foundation.sql"),
    include_str!("migrations/0002_lease.sql"),
    include_str!("migrations/0003_accounts.sql"),
    include_str!("migrations/0004_marks.sql"),
    include_str!("migrations/0005_subjects.sql"),
    include_str!("migrations/0006_tenancy.sql"),
    include_str!("migrations/0007_secrets.sql"),
    include_str!("migrations/0008_usage.sql"),
    include_str!("migrations/0009_billing.sql"),
    include_str!("migrations/0010_agents.sql"),
    include_str!("migrations/0011_workspace_sizes.sql"),
    include_str!("migrations/0012_secrets_elsewhere.sql"),
    include_str!("migrations/0013_sessions.sql"),
    include_str!("migrations/0015_persistence.sql"),
    include_str!("migrations/0016_audit_begins.sql"),
];

/// Of the log of sessions, which is a file of its own: see [`connect_log`].
const LOG_MIGRATIONS: [&str; 1] = [include_str!("session_log/0001_events.sql")];
/// On `PostgreSQL` the same tables are made with this one of the others.
const WITH_LOG: usize = 13;

const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

/// Makes the file, for its owner alone, unless it is there. Its journals get the same mode.
pub(crate) fn make(path: &Path) -> Result<()> {
    let made = OpenOptions::new().append(true).create(true).mode(0o600).open(path);
    made.context("make the database").map(drop)?;
    Ok(())
}

/// A connection with our durability: what is committed survives a loss of power.
pub(crate) fn connect(path: &Path) -> Result<Connection> {
    let connection = Connection::open(path).context("open the database")?;
    connection.busy_timeout(BUSY_TIMEOUT).context("set the busy timeout")?;
    connection.pragma_update(None, "journal_mode", "WAL").context("switch to WAL")?;
    connection.pragma_update(None, "synchronous", "FULL").context("set synchronous")?;
    connection.pragma_update(None, "foreign_keys", true).context("check foreign keys")?;
    // What a statement may have to undo is kept in memory, not in a file made for it each time.
    connection.pragma_update(None, "temp_store", "MEMORY").context("keep journals in memory")?;
    connection.set_prepared_statement_cache_capacity(64);
    Ok(connection)
}

/// The same for the log of sessions: what is committed survives the process, and after a loss of power
/// the file is whole but may lack the last moments. A commit costs no flush for that.
pub(crate) fn connect_log(path: &Path) -> Result<Connection> {
    let connection = connect(path)?;
    connection.pragma_update(None, "synchronous", "NORMAL").context("set synchronous")?;
    Ok(connection)
}

pub(crate) fn migrate(connection: &mut Connection) -> Result<()> {
    migrate_to(connection, &MIGRATIONS)
}

pub(crate) fn migrate_log(connection: &mut Connection) -> Result<()> {
    migrate_to(connection, &LOG_MIGRATIONS)
}

fn migrate_to(connection: &mut Connection, migrations: &[&str]) -> Result<()> {
    let read = |connection: &Connection| -> anyhow::Result<usize> {
        let version: u32 = connection
            .pragma_query_value(None, "user_version", |row| row.get(0))
            .context("read the schema version")?;
        usize::try_from(version).context("read the schema version")
    };
    // Another server that is writing need not be waited for.
    if read(connection)? == migrations.len() {
        return Ok(());
    }
    let transaction = connection
        .transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)
        .context("begin the migration")?;
    apply(&Db::Sqlite(&transaction), (migrations, read(&transaction)?), str::to_owned)?;
    let version = u32::try_from(migrations.len()).context("count the migrations")?;
    transaction.pragma_update(None, "user_version", version).context("store the version")?;
    transaction.commit().context("commit the migration")?;
    Ok(())
}

/// The same for `PostgreSQL`, which has no place of its own for the version.
pub(crate) fn migrate_postgres(session: &Session) -> Result<()> {
    session.begin(Order::InTurn)?;
    let db = Db::Postgres(session);
    db.run("CREATE TABLE IF NOT EXISTS schema_version (version BIGINT NOT NULL)")?;
    let done = db.first("SELECT version FROM schema_version", &[], |row| row.get::<i64>(0))?;
    let applied = usize::try_from(done.unwrap_or(0)).context("read the schema version")?;
    if applied == MIGRATIONS.len() {
        return session.roll_back();
    }
    apply(&db, (&MIGRATIONS, applied), in_postgres)?;
    if applied < WITH_LOG {
        apply(&db, (&LOG_MIGRATIONS, 0), in_postgres)?;
    }
    let version = i64::try_from(MIGRATIONS.len()).context("count the migrations")?;
    let sql = match done {
        None => "INSERT INTO schema_version (version) VALUES ($1)",
        Some(_) => "UPDATE schema_version SET version = $1",
    };
    db.execute(sql, &[&version])?;
    session.commit()
}

fn apply(
    db: &Db<'_>,
    (migrations, done): (&[&str], usize),
    rewrite: impl Fn(&str) -> String,
) -> Result<()> {
    if done > migrations.len() {
        return Err(anyhow::anyhow!("the database was written by a newer version").into());
    }
    for (index, migration) in migrations.iter().enumerate().skip(done) {
        let number = index + 1;
        db.run(&rewrite(migration)).with_context(|| format!("apply migration {number}"))?;
    }
    Ok(())
}

/// Types have other names there, and text compares by the database's language unless told otherwise.
fn in_postgres(migration: &str) -> String {
    migration
        .replace(
            "INTEGER PRIMARY KEY AUTOINCREMENT",
            "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
        )
        .replace(" INTEGER", " BIGINT")
        .replace(" BLOB", " BYTEA")
        .replace(" TEXT", " TEXT COLLATE \"C\"")
}
