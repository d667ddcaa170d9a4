//! What agents of sandboxes are to do, as whoever seals it hands it in, and the tokens that they used.

use jiff::Timestamp;
use model::{OwnerId, Result, SandboxId};

use crate::change::execute;
use crate::db::{Db, Row, bounded};
use crate::meter::DAY_USEC;
use crate::read::micros;
use crate::{Pending, Store};

/// Read at a time, to be sealed anew.
const PAGE: &str = "20";

/// See [`crate::Change::KeepOrder`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentOrder {
    pub owner: OwnerId,
    pub sealed: Vec<u8>,
}

/// Of one call to a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tokens {
    pub input: u64,
    pub output: u64,
    /// That the model asked for.
    pub tool_calls: u64,
}

impl Store {
    pub async fn agent_order(&self, sandbox: SandboxId) -> Result<Option<AgentOrder>> {
        let sandbox = sandbox.to_string();
        self.read(move |db| {
            let sql = "SELECT owner, sealed FROM agent_orders WHERE sandbox = $1";
            db.first(sql, &[&sandbox], |row| order(row, 0))
        })
        .await
    }

    /// Replaces what a sandbox has, unless it has something else by now, or nothing. Whether it did.
    pub async fn replace_agent_order(
        &self,
        sandbox: SandboxId,
        before: AgentOrder,
        sealed: Vec<u8>,
    ) -> Result<bool> {
        let sandbox = sandbox.to_string();
        let replaced = self.0.writer.submit(move |batch| {
            let sql = "UPDATE agent_orders SET sealed = $1
                       WHERE sandbox = $2 AND owner = $3 AND sealed = $4";
            let of: [&dyn crate::db::Value; 4] =
                [&sealed, &sandbox, &before.owner.as_str(), &before.sealed];
            execute(&batch.db, sql, &of)
        });
        Ok(replaced.await? == 1)
    }

    /// Everybody's after one of them, a page at a time: to seal them anew.
    pub async fn agent_orders(
        &self,
        after: Option<SandboxId>,
    ) -> Result<Vec<(SandboxId, AgentOrder)>> {
        let after = after.map(|id| id.to_string()).unwrap_or_default();
        self.read(move |db| {
            let sql = format!(
                "SELECT sandbox, owner, sealed FROM agent_orders WHERE sandbox > $1
                 ORDER BY sandbox LIMIT {PAGE}"
            );
            db.all(&sql, &[&after], |row| Ok((row.parsed(0)?, order(row, 1)?)))
        })
        .await
    }

    /// Adds to the sums of an owner's day. Counted, never charged.
    pub fn count_tokens(&self, owner: OwnerId, at: Timestamp, tokens: Tokens) -> Pending<()> {
        self.0.writer.submit(move |batch| {
            execute(
                &batch.db,
                "INSERT INTO token_days (owner, day, input_tokens, output_tokens, tool_calls)
                 VALUES ($1, $2, $3, $4, $5)
                 ON CONFLICT (owner, day) DO UPDATE SET
                   input_tokens = token_days.input_tokens + excluded.input_tokens,
                   output_tokens = token_days.output_tokens + excluded.output_tokens,
                   tool_calls = token_days.tool_calls + excluded.tool_calls",
                &[
                    &owner.as_str(),
                    &micros(at).div_euclid(DAY_USEC),
                    &bounded(tokens.input),
                    &bounded(tokens.output),
                    &bounded(tokens.tool_calls),
                ],
            )
            .map(drop)
        })
    }
}

fn order(row: &Row<'_>, from: usize) -> Result<AgentOrder> {
    Ok(AgentOrder { owner: row.parsed(from)?, sealed: row.get(from + 1)? })
}

pub(crate) fn keep(db: &Db<'_>, sandbox: &str, owner: &OwnerId, sealed: &[u8]) -> Result<()> {
    let sql = "INSERT INTO agent_orders (sandbox, owner, sealed) VALUES ($1, $2, $3)
               ON CONFLICT (sandbox) DO UPDATE SET sealed = excluded.sealed";
    execute(db, sql, &[&sandbox, &owner.as_str(), &sealed]).map(drop)
}

pub(crate) fn forget(db: &Db<'_>, sandbox: &str) -> Result<()> {
    execute(db, "DELETE FROM agent_orders WHERE sandbox = $1", &[&sandbox]).map(drop)
}
