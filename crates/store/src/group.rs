//! Money and use of an organisation's members, side by side. Nobody's is anybody else's: these are sums for who
//! looks after it.

use model::{OrganisationId, OwnerId, Result};

use crate::billing::transaction_from;
use crate::{DayUsage, Store, Transaction};

impl Store {
    /// In cents, of each member; 0 for one whose account was never opened.
    pub async fn organisation_balances(&self, id: &OrganisationId) -> Result<Vec<(OwnerId, i64)>> {
        let id = id.clone();
        self.read(move |db| {
            let sql = "SELECT members.owner, coalesce(balances.cents, 0) FROM members
                       LEFT JOIN balances ON balances.owner = members.owner
                       WHERE members.organisation = $1 ORDER BY members.owner";
            db.all(sql, &[&id.as_str()], |row| Ok((row.parsed(0)?, row.get(1)?)))
        })
        .await
    }

    /// Of all members, newest first.
    pub async fn organisation_transactions(
        &self,
        id: &OrganisationId,
        limit: u32,
        offset: u32,
    ) -> Result<Vec<(OwnerId, Transaction)>> {
        let id = id.clone();
        self.read(move |db| {
            let sql = "SELECT ledger.owner, ledger.id, ledger.cents, ledger.kind,
                         ledger.description, ledger.at
                       FROM members JOIN ledger ON ledger.owner = members.owner
                       WHERE members.organisation = $1
                       ORDER BY ledger.at DESC, ledger.id DESC LIMIT $2 OFFSET $3";
            let (limit, offset) = (i64::from(limit), i64::from(offset));
            db.all(sql, &[&id.as_str(), &limit, &offset], |row| {
                Ok((row.parsed(0)?, transaction_from(row, 1)?))
            })
        })
        .await
    }

    /// Of each member, from one day to another (days since 1970), both included.
    pub async fn organisation_usage(
        &self,
        id: &OrganisationId,
        from: i64,
        to: i64,
    ) -> Result<Vec<(OwnerId, DayUsage)>> {
        let id = id.clone();
        self.read(move |db| {
            let sql = "SELECT members.owner, CAST(coalesce(sum(cpu_usec), 0) AS BIGINT),
                         CAST(coalesce(sum(running_usec), 0) AS BIGINT),
                         CAST(coalesce(sum(sandboxes), 0) AS BIGINT),
                         CAST(coalesce(sum(charged_microcents), 0) AS BIGINT)
                       FROM members LEFT JOIN usage_days ON usage_days.owner = members.owner
                         AND usage_days.day >= $1 AND usage_days.day <= $2
                       WHERE members.organisation = $3
                       GROUP BY members.owner ORDER BY members.owner";
            db.all(sql, &[&from, &to, &id.as_str()], |row| {
                let used = DayUsage {
                    day: from,
                    cpu_usec: row.get(1)?,
                    running_usec: row.get(2)?,
                    sandboxes: row.get(3)?,
                    charged_microcents: row.get(4)?,
                    ..DayUsage::default()
                };
                Ok((row.parsed(0)?, used))
            })
        })
        .await
    }
}
