//! Connections to `PostgreSQL`. Calls block: they come from the writer's thread and from threads for
//! reading; the sockets are served by a small runtime of their own.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use model::{Error, Result};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::time::timeout;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Config, Row, Statement};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::db::{Value, tls};

/// For a connection, and for an answer; the server gives up on a statement before we do.
const CONNECT_MAX: Duration = Duration::from_secs(10);
const ANSWER_MAX: Duration = Duration::from_secs(40);
const SESSION: &str = "SET statement_timeout = '30s'; SET idle_in_transaction_session_timeout = '10s'; \
                       SET client_min_messages = warning";
/// Whoever writes holds it until the end of the transaction, so that writes follow each other as in
/// `SQLite`: numbers of events are given in the order in which they can be read.
const WRITING: &str = "BEGIN; SELECT pg_advisory_xact_lock(6220738861)";
const WRITING_BESIDE: &str = "BEGIN";

/// Whether one transaction waits for the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// As everything that writes to the tables of the store.
    InTurn,
    /// Beside whatever else is written: of tables whose keys are order enough.
    Beside,
}

/// A database, and the runtime that serves connections to it.
pub(crate) struct Postgres {
    config: Config,
    tls: MakeRustlsConnect,
    runtime: Option<Runtime>,
}

/// One connection; what it prepared is kept with it.
pub(crate) struct Session {
    client: Client,
    runtime: Handle,
    prepared: RefCell<HashMap<String, Statement>>,
    writing: Cell<bool>,
    /// It was not waited for long enough to know what its answers belong to.
    lost: Cell<bool>,
}

impl Postgres {
    pub(crate) fn new(url: &str) -> anyhow::Result<Arc<Self>> {
        let (mut config, tls) = tls::of_url(url)?;
        config.connect_timeout(CONNECT_MAX).tcp_user_timeout(ANSWER_MAX);
        config.application_name("bastide");
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("store-postgres")
            .enable_all()
            .build()
            .context("start the database's runtime")?;
        Ok(Arc::new(Self { config, tls, runtime: Some(runtime) }))
    }

    pub(crate) fn connect(&self) -> Result<Session> {
        let runtime = self.runtime.as_ref().context("the database is closed")?.handle().clone();
        let connected = async {
            let connected = timeout(CONNECT_MAX, self.config.connect(self.tls.clone())).await;
            let (client, connection) = connected.context("it took too long")??;
            runtime.spawn(async move {
                if let Err(error) = connection.await {
                    tracing::debug!(error = error.to_string(), "a database connection ended");
                }
            });
            anyhow::Ok(client)
        };
        let client = runtime.block_on(connected).map_err(|error| {
            tracing::warn!(error = format!("{error:#}"), "could not connect to the database");
            super::gone()
        })?;
        let (prepared, writing, lost) = Default::default();
        let session = Session { client, runtime, prepared, writing, lost };
        session.run(SESSION)?;
        Ok(session)
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // May be on a thread that must not wait.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Session {
    pub(crate) fn is_alive(&self) -> bool {
        !self.client.is_closed() && !self.lost.get()
    }

    pub(super) fn in_transaction(&self) -> bool {
        self.writing.get()
    }

    pub(crate) fn begin(&self, order: Order) -> Result<()> {
        self.run(match order {
            Order::InTurn => WRITING,
            Order::Beside => WRITING_BESIDE,
        })?;
        self.writing.set(true);
        Ok(())
    }

    pub(crate) fn commit(&self) -> Result<()> {
        self.writing.set(false);
        self.run("COMMIT")
    }

    pub(crate) fn roll_back(&self) -> Result<()> {
        self.writing.set(false);
        self.run("ROLLBACK")
    }

    pub(super) fn execute(&self, sql: &str, values: &[&dyn Value]) -> Result<usize> {
        let statement = self.prepare(sql)?;
        let changed = self.wait(self.client.execute(&statement, &of_postgres(values)))?;
        Ok(usize::try_from(changed).context("count rows")?)
    }

    pub(super) fn query(&self, sql: &str, values: &[&dyn Value]) -> Result<Vec<Row>> {
        let statement = self.prepare(sql)?;
        self.wait(self.client.query(&statement, &of_postgres(values)))
    }

    pub(crate) fn run(&self, sql: &str) -> Result<()> {
        self.wait(self.client.batch_execute(sql))
    }

    fn prepare(&self, sql: &str) -> Result<Statement> {
        if let Some(statement) = self.prepared.borrow().get(sql) {
            return Ok(statement.clone());
        }
        let statement = self.wait(self.client.prepare(sql))?;
        self.prepared.borrow_mut().insert(sql.to_owned(), statement.clone());
        Ok(statement)
    }

    fn wait<T>(
        &self,
        answer: impl Future<Output = std::result::Result<T, tokio_postgres::Error>>,
    ) -> Result<T> {
        let answer = self.runtime.block_on(async { timeout(ANSWER_MAX, answer).await });
        let Ok(answer) = answer else {
            self.lost.set(true);
            return Err(super::gone());
        };
        answer.map_err(|error| match error.as_db_error() {
            // What the server says about a statement is a bug of ours, unless it ends or is busy.
            Some(told) if !is_passing(told.code().code()) => {
                let why = anyhow!("{told}").context("ask the database");
                Error::Internal(why)
            }
            Some(_) | None => {
                tracing::warn!(error = format!("{error}"), "the database did not answer");
                super::gone()
            }
        })
    }
}

/// Classes of trouble that pass: connections, resources, an operator's intervention, time-outs.
fn is_passing(code: &str) -> bool {
    ["08", "53", "57"].iter().any(|class| code.starts_with(class))
}

fn of_postgres<'a>(values: &[&'a dyn Value]) -> Vec<&'a (dyn ToSql + Sync)> {
    values.iter().map(|value| *value as &(dyn ToSql + Sync)).collect()
}
