//! The money of an organisation, for who looks after it.

use api::billing::{OrganisationBalance, OrganisationTransactions, OrganisationUsage};
use http::Method;

use super::ALL;
use crate::client::Client;
use crate::failure::Failure;
use crate::out;

pub(super) async fn balance(client: &Client, id: &str, json: bool) -> Result<(), Failure> {
    let path = format!("{ALL}/{id}/balance");
    let all: OrganisationBalance = client.json(Method::GET, &path, None).await?;
    if json {
        return out::json(&all);
    }
    let rows = all.members.into_iter().map(|one| vec![one.owner, one.credit_balance.to_string()]);
    let sum = vec!["all".to_owned(), all.credit_balance.to_string()];
    out::table(&["OWNER", "CENTS"], rows.chain([sum]).collect());
    Ok(())
}

pub(super) async fn transactions(
    client: &Client,
    id: &str,
    (limit, offset): (u32, u32),
    json: bool,
) -> Result<(), Failure> {
    let path = format!("{ALL}/{id}/transactions?limit={limit}&offset={offset}");
    let all: OrganisationTransactions = client.json(Method::GET, &path, None).await?;
    if json {
        return out::json(&all);
    }
    let rows = all.transactions.into_iter().map(|one| {
        vec![one.timestamp.to_string(), one.owner, one.amount.to_string(), one.description]
    });
    out::table(&["AT", "OWNER", "CENTS", "WHAT"], rows.collect());
    Ok(())
}

pub(super) async fn usage(client: &Client, id: &str, json: bool) -> Result<(), Failure> {
    let path = format!("{ALL}/{id}/usage");
    let all: OrganisationUsage = client.json(Method::GET, &path, None).await?;
    if json {
        return out::json(&all);
    }
    let rows = all.members.into_iter().map(|one| {
        let numbers = [one.sandbox_count, one.running_seconds, one.cpu_seconds, one.cents];
        let numbers = numbers.into_iter().map(|number| number.to_string());
        [one.owner].into_iter().chain(numbers).collect()
    });
    out::table(&["OWNER", "SANDBOXES", "RUNNING S", "CPU S", "CENTS"], rows.collect());
    Ok(())
}
