//! The same tools in front of another API: a small server with a description as E2B's is written.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use axum::Router;
use axum::extract::{Path, Request, State};
use axum::http::header::{ETAG, IF_NONE_MATCH};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::json;
use tokio::net::TcpListener;
use tokio_util::task::TaskTracker;

use super::{call, refused};
use crate::client::Client;
use crate::harness::Setup;

const SPEC: &str = r#"
openapi: 3.0.0
info: { version: 0.1.0, title: E2B API }
components:
  securitySchemes:
    AdminTokenAuth: { type: apiKey, in: header, name: X-Admin-Token }
    ApiKeyAuth: { type: apiKey, in: header, name: X-API-Key }
    AccessTokenAuth: { type: http, scheme: bearer }
  parameters:
    sandboxID: { name: sandboxID, in: path, required: true, schema: { type: string } }
  schemas:
    Template:
      properties:
        parent: { $ref: '#/components/schemas/Template' }
    NewSandbox:
      required: [templateID]
      properties:
        templateID: { type: string }
        template: { $ref: '#/components/schemas/Template' }
paths:
  /sandboxes:
    get: { summary: List, security: [{ ApiKeyAuth: [] }], responses: { '200': { description: ok } } }
    post:
      summary: Create
      security: [{ ApiKeyAuth: [] }]
      requestBody:
        content: { application/json: { schema: { $ref: '#/components/schemas/NewSandbox' } } }
      responses: { '201': { description: ok } }
  /sandboxes/{sandboxID}:
    delete:
      summary: Kill
      parameters: [{ $ref: '#/components/parameters/sandboxID' }]
      security: [{ ApiKeyAuth: [] }]
      responses: { '204': { description: gone } }
  /teams:
    get: { summary: Teams, security: [{ AccessTokenAuth: [] }], responses: { '200': { description: ok } } }
"#;

/// How often the description was sent.
type Sent = Arc<AtomicU32>;

async fn spec(State(sent): State<Sent>, headers: HeaderMap) -> Response {
    if headers.get(IF_NONE_MATCH).is_some_and(|etag| etag == "\"v1\"") {
        return StatusCode::NOT_MODIFIED.into_response();
    }
    sent.fetch_add(1, Ordering::Relaxed);
    ([(ETAG, "\"v1\"")], SPEC).into_response()
}

/// What came, for whoever asked with the right key in the right place.
async fn echo(request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let key = parts.headers.get("x-api-key").and_then(|key| key.to_str().ok());
    if key != Some("e2b_0123456789") || parts.headers.contains_key("authorization") {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    let body = axum::body::to_bytes(body, 1 << 20).await.unwrap();
    axum::Json(json!({
        "method": parts.method.as_str(),
        "path": parts.uri.path(),
        "query": parts.uri.query(),
        "kind": parts.headers.get("content-type").and_then(|kind| kind.to_str().ok()),
        "body": String::from_utf8_lossy(&body),
    }))
    .into_response()
}

async fn kill(Path(id): Path<String>) -> StatusCode {
    if id == "s1" { StatusCode::NO_CONTENT } else { StatusCode::NOT_FOUND }
}

#[tokio::test]
async fn another_api_is_called_by_its_own_description_and_with_its_own_key() {
    let sent = Sent::default();
    let api = Router::new()
        .route("/spec.yml", get(spec))
        .route("/api/sandboxes", post(echo).get(echo))
        .route("/api/sandboxes/{id}", axum::routing::delete(kill))
        .route("/secret", get(async || "outside of the API"))
        .with_state(Arc::clone(&sent));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = format!("http://{}", listener.local_addr().unwrap());
    TaskTracker::new().spawn(async move { axum::serve(listener, api).await });
    let settings = format!(
        "[code]\nruntime = 'node'\ntemplate = 'host'\nallowed_hosts = ['test']\n\
         spec = '{at}/spec.yml'\napi_base = '{at}/api'\n"
    );
    let server = Setup::with(&settings).start().await;
    // A key of that API; nobody here knows it.
    let client = Client { key: Some("e2b_0123456789".into()), ..server.nobody() };
    let look = "async () => [Object.keys(spec.paths), spec.paths['/sandboxes'].post.requestBody
        .content['application/json'].schema.properties.template.properties.parent,
        spec.paths['/sandboxes/{sandboxID}'].delete.parameters[0].name]";
    let (found, _) = call(&client, "search", look).await;
    let cycle = json!({ "$circular": "#/components/schemas/Template" });
    assert_eq!(
        found["result"],
        json!([["/sandboxes", "/sandboxes/{sandboxID}"], cycle, "sandboxID"])
    );
    let job = "async () => {
        const made = await api.request({ method: 'POST', path: '/sandboxes', query: { a: ['1', 2], b: true, c: null }, body: { templateID: 'base' } });
        const text = await api.request({ method: 'POST', path: '/sandboxes?x=1', rawBody: 'raw', contentType: 'text/csv' });
        const gone = await api.request({ method: 'DELETE', path: '/sandboxes/s1' });
        return [made.data, text.data.query, text.data.kind, text.data.body, gone];
    }";
    let (done, _) = call(&client, "execute_write", job).await;
    let made = json!({ "method": "POST", "path": "/api/sandboxes", "query": "a=1&a=2&b=true",
        "kind": "application/json", "body": "{\"templateID\":\"base\"}" });
    let gone = json!({ "status": 204, "ok": true, "data": null });
    assert_eq!(done["result"], json!([made, "x=1", "text/csv", "raw", gone]));
    for path in ["/../secret", "/%2e%2e/secret", "/x/../../secret", "/..\\\\secret"] {
        let code = format!("async () => api.request({{ path: '{path}' }})");
        assert!(refused(&client, "execute_read", &code).await.contains("leaves the API"), "{path}");
    }
    let teams =
        refused(&client, "execute_read", "async () => api.request({ path: '/TEAMS' })").await;
    assert!(teams.contains("teams"), "{teams}");
    // Ours is not called by mistake, and not open to a stranger's key.
    assert_eq!(client.get("/v1/sandboxes").await.status, 401);
    assert_eq!(sent.load(Ordering::Relaxed), 1);
    server.stop().await;
}
