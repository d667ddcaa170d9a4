//! `GET /debug/endpoints`: what this server answers, for whoever sets up a client. Holds no secret.

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

use super::tools::KINDS;
use crate::app::App;

pub(super) const PATH: &str = "/debug/endpoints";

pub(super) async fn list(State(app): State<App>) -> Json<Value> {
    let code = &app.code;
    let endpoint = |method: &str, path: &str, auth: &str, about: &str| json!({ "method": method, "path": path, "auth": auth, "description": about });
    Json(json!({
        "endpoints": [
            endpoint("POST", "/mcp", "bearer", "The Model Context Protocol: JSON, without sessions"),
            endpoint("GET", "/mcp", "bearer", "405: there is nothing to stream"),
            endpoint("DELETE", "/mcp", "bearer", "405: there are no sessions"),
            endpoint("GET", "/healthz", "none", "Whether the server answers"),
            endpoint("GET", PATH, "none", "This list"),
            endpoint("GET", "/openapi.json", "none", "Every route of the API"),
        ],
        "tools": KINDS.map(|kind| kind.name()),
        "status": {
            "version": env!("CARGO_PKG_VERSION"),
            "pid": std::process::id(),
            "uptime_seconds": code.began.elapsed().as_secs(),
            "log_level": app.log_level,
        },
    }))
}
