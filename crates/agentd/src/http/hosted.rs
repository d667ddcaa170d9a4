//! The routes of sessions that a server hosts; see [`crate::daemon::hosted`]. They are below a path that its
//! clients cannot ask for, and no part of the contract.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};

use super::extract::Body;
use crate::daemon::Daemon;
use crate::daemon::hosted::{Changed, NewSecrets, Told, Wanted};
use crate::error::Result;

pub(super) async fn put(
    State(daemon): State<Arc<Daemon>>,
    Path(id): Path<String>,
    Body(wanted): Body<Wanted>,
) -> Result<Json<Told>> {
    daemon.put(&id, wanted).await.map(Json)
}

pub(super) async fn change_env(
    State(daemon): State<Arc<Daemon>>,
    Path(id): Path<String>,
    Body(new): Body<NewSecrets>,
) -> Result<Json<Changed>> {
    daemon.change_secrets(&id, new).map(Json)
}
