//! What it costs to know who calls: a `GET` with a key beside `/healthz`, which asks for none.

use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::json;

use super::clock::Stopwatch;
use super::http::Http;
use super::ours::Server;
use super::report::{Finding, Report};
use super::samples::Samples;

/// Of one kind in a row, so that the stopwatch itself costs nothing.
const BATCH: u32 = 50;
const ROUNDS: usize = 40;

pub(super) fn run(server: &Server, report: &mut Report) -> anyhow::Result<()> {
    let body = json!({ "owner": "usr_bench", "plan": "free" });
    let made = server.client()?.call("POST", "/v1/api-keys", &body)?;
    let key = made["key"].as_str().context("no key in the answer")?;
    let mut with = server.client_with(Some(key))?;
    let mut without = server.client_with(None)?;
    let (mut known, mut open) = (Samples::default(), Samples::default());
    for round in 0..=ROUNDS {
        let pair = (batch(&mut with, "/v1/sandboxes")?, batch(&mut without, "/healthz")?);
        known.push((round > 0).then_some(pair.0));
        open.push((round > 0).then_some(pair.1));
    }
    let per_second = |times: &Samples| f64::from(BATCH) / times.median().as_secs_f64().max(1e-9);
    let ratio = per_second(&known) / per_second(&open);
    report.find(Finding {
        what: "GET with an API key, one connection".into(),
        measured: format!("{:.0}/s", per_second(&known)),
        compared: format!("{ratio:.2}× /healthz ({:.0}/s)", per_second(&open)),
        promise: "≥ 0.5× an unauthenticated GET /healthz",
        met: ratio >= 0.5,
    });
    Ok(())
}

fn batch(http: &mut Http, path: &str) -> anyhow::Result<Duration> {
    let watch = Stopwatch::start();
    for _ in 0..BATCH {
        if !http.is_good(path)? {
            bail!("GET {path} is refused");
        }
    }
    Ok(watch.time())
}
