//! `bastide catalogue`: the agents that a session may ask for.

use std::process::ExitCode;

use api::catalogue::Catalogue;
use http::Method;

use crate::client::Client;
use crate::failure::Failure;
use crate::out;

pub(crate) async fn execute(client: &Client, json: bool) -> Result<ExitCode, Failure> {
    let catalogue: Catalogue = client.json(Method::GET, "/v1/templates", None).await?;
    if json {
        out::json(&catalogue)?;
        return Ok(ExitCode::SUCCESS);
    }
    let rows = catalogue.templates.iter().flat_map(|entry| {
        entry.capability_sets.iter().map(|set| {
            vec![entry.app_id.clone(), set.set_id.clone(), set.tools.join(" "), entry.name.clone()]
        })
    });
    out::table(&["AGENT", "SET", "TOOLS", "NAME"], rows.collect());
    Ok(ExitCode::SUCCESS)
}
