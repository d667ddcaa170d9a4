//! The routes of the one-shot task. They are for the server that made the sandbox, below a path that its
//! clients cannot ask for, and no part of the contract.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Query, State};
use serde::Deserialize;

use super::extract::Body;
use crate::daemon::Daemon;
use crate::error::Result;
use crate::task::{Task, TaskState};

/// Whoever waits asks again.
const WAIT_SECONDS_MAX: u64 = 60;

#[derive(Deserialize)]
pub(super) struct Wait {
    #[serde(default)]
    seconds: u64,
}

#[derive(Deserialize)]
pub(super) struct Cancel {
    #[serde(default)]
    reason: String,
}

pub(super) async fn put(
    State(daemon): State<Arc<Daemon>>,
    Body(task): Body<Task>,
) -> Result<Json<TaskState>> {
    daemon.tasks().put(task).map(Json)
}

pub(super) async fn wait(
    State(daemon): State<Arc<Daemon>>,
    Query(wait): Query<Wait>,
) -> Json<TaskState> {
    let most = Duration::from_secs(wait.seconds.min(WAIT_SECONDS_MAX));
    Json(daemon.tasks().wait(most).await)
}

pub(super) async fn cancel(
    State(daemon): State<Arc<Daemon>>,
    Body(cancel): Body<Cancel>,
) -> Json<bool> {
    Json(daemon.tasks().cancel(&cancel.reason))
}
