//! A call to a daemon: what it answers is printed, its problems go to standard error.

use std::process::ExitCode;
use std::time::Duration;

use http::{Method, Response, header};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use serde_json::Value;

use crate::client::{Client, empty, full, read_whole};
use crate::failure::Failure;
use crate::out;

/// An agent may have to be installed first.
const ANSWER_WAIT: Duration = Duration::from_secs(1800);

pub(super) struct Caller(Client);

impl Caller {
    pub(super) fn new(endpoint: &str, token: Option<String>) -> Result<Self, Failure> {
        Ok(Self(Client::to(endpoint, token)?))
    }

    pub(super) async fn get(&self, path: &str) -> Result<ExitCode, Failure> {
        let response = self.send(Method::GET, path, None).await?;
        print(response).await
    }

    pub(super) async fn post(&self, path: &str, body: Option<Value>) -> Result<ExitCode, Failure> {
        let response = self.send(Method::POST, path, body).await?;
        print(response).await
    }

    /// As it comes, until the daemon or the reader ends it.
    pub(super) async fn stream(
        &self,
        path: &str,
        body: Option<Value>,
    ) -> Result<ExitCode, Failure> {
        let method = if body.is_some() { Method::POST } else { Method::GET };
        let response = self.send(method, path, body).await?;
        if !response.status().is_success() {
            return print(response).await;
        }
        let mut body = response.into_body();
        while let Some(frame) = body.frame().await {
            let frame =
                frame.map_err(|error| Failure::new(format!("the stream broke: {error}")))?;
            let Ok(bytes) = frame.into_data() else { continue };
            if out::stdout(&bytes).is_err() {
                break;
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> Result<Response<Incoming>, Failure> {
        let request = self.0.request(method, path);
        let request = match body {
            Some(body) => request
                .header(header::CONTENT_TYPE, "application/json")
                .body(full(body.to_string().into_bytes())),
            None => request.body(empty()),
        };
        let request =
            request.map_err(|error| Failure::new(format!("cannot make that request: {error}")))?;
        self.0
            .exchange(request, ANSWER_WAIT)
            .await
            .map_err(|failure| failure.hint("start one with: bastide agents server --token TOKEN"))
    }
}

async fn print(response: Response<Incoming>) -> Result<ExitCode, Failure> {
    let status = response.status();
    let text = read_whole(response).await?;
    let shown = match serde_json::from_slice::<Value>(&text) {
        Ok(value) => serde_json::to_string_pretty(&value).unwrap_or_default(),
        Err(_) => String::from_utf8_lossy(&text).into_owned(),
    };
    if status.is_success() {
        if !shown.is_empty() {
            out::line(shown);
        }
        return Ok(ExitCode::SUCCESS);
    }
    if !shown.is_empty() {
        out::note(shown);
    }
    Err(Failure::new(format!("the daemon answered {status}")))
}
