//! The way to the server that holds the lease: its socket in the data directory, one connection a call.

use std::path::PathBuf;

use axum::body::Body;
use axum::http::header::HOST;
use axum::http::{HeaderValue, Request};
use bytes::Bytes;
use hyper::Response;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::time::{Duration, Instant, sleep, timeout};

use super::again;
use crate::app::App;
use crate::lease;
use crate::limits::{LEADER_PROBE, LEADER_WAIT};
use crate::listen::leader_socket;
use crate::refusal::Refusal;

/// Between two looks for a leader.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Whoever holds the lease of a data directory.
pub(crate) struct Leader {
    data_dir: PathBuf,
    socket: PathBuf,
}

pub(super) enum Passed {
    Answered(Response<Incoming>),
    Refused(Refusal),
}

/// One try.
enum Tried {
    Answered(Response<Incoming>),
    /// Nothing was sent.
    Absent,
    /// It may have been done.
    Lost,
    /// It may be done later.
    Silent,
}

impl Leader {
    pub(crate) fn of(data_dir: &std::path::Path) -> Self {
        Self { data_dir: data_dir.to_owned(), socket: leader_socket(data_dir) }
    }

    pub(crate) fn epoch(&self) -> Option<u64> {
        lease::holder(&self.data_dir).map(|holder| holder.epoch)
    }

    /// Passes a call on; to the next leader too, when the one that had it ends.
    pub(super) async fn pass(&self, app: &App, call: Request<Bytes>, repeatable: bool) -> Passed {
        let mut until = Instant::now() + LEADER_WAIT;
        loop {
            let request = Request::from_parts(call.clone().into_parts().0, again(call.body()));
            match self.try_pass(app, request).await {
                Tried::Answered(response) => return Passed::Answered(response),
                Tried::Silent => return Passed::Refused(self.is_silent()),
                Tried::Lost if !repeatable => return Passed::Refused(lost()),
                Tried::Lost => until = Instant::now() + LEADER_WAIT,
                Tried::Absent if Instant::now() >= until => return Passed::Refused(absent()),
                Tried::Absent => {}
            }
            sleep(LOOK_EVERY).await;
        }
    }

    /// The same for a body that cannot be sent again: once there is a leader, it gets it.
    pub(super) async fn pass_once(&self, app: &App, call: Request<Body>) -> Passed {
        let until = Instant::now() + LEADER_WAIT;
        let stream = loop {
            match UnixStream::connect(&self.socket).await {
                Ok(stream) => break stream,
                Err(_) if Instant::now() < until => sleep(LOOK_EVERY).await,
                Err(_) => return Passed::Refused(absent()),
            }
        };
        match self.exchange(app, stream, call).await {
            Tried::Answered(response) => Passed::Answered(response),
            Tried::Silent => Passed::Refused(self.is_silent()),
            Tried::Absent | Tried::Lost => Passed::Refused(lost()),
        }
    }

    async fn try_pass(&self, app: &App, call: Request<Body>) -> Tried {
        match UnixStream::connect(&self.socket).await {
            Ok(stream) => self.exchange(app, stream, call).await,
            Err(error) => {
                tracing::debug!(error = error.to_string(), "no leader");
                Tried::Absent
            }
        }
    }

    async fn exchange(&self, app: &App, stream: UnixStream, call: Request<Body>) -> Tried {
        let Ok((mut sender, connection)) = http1::handshake(TokioIo::new(stream)).await else {
            return Tried::Absent;
        };
        app.tasks.spawn(async move {
            // Who waits for the answer, or reads it, sees that it broke.
            let _ = connection.with_upgrades().await;
        });
        let mut answer = std::pin::pin!(sender.send_request(call));
        loop {
            match timeout(LEADER_PROBE, answer.as_mut()).await {
                Ok(Ok(response)) => return Tried::Answered(response),
                Ok(Err(error)) => {
                    tracing::debug!(error = error.to_string(), "the leader went away");
                    return Tried::Lost;
                }
                // A create may take long; a leader that lives says so meanwhile.
                Err(_) if self.lives(app).await => {}
                Err(_) => return Tried::Silent,
            }
        }
    }

    /// Whether it answers anything. One that is gone has broken the connection of the call.
    async fn lives(&self, app: &App) -> bool {
        let asked = async {
            let Ok(stream) = UnixStream::connect(&self.socket).await else { return };
            let Ok((mut sender, connection)) = http1::handshake(TokioIo::new(stream)).await else {
                return;
            };
            app.tasks.spawn(async move { drop(connection.await) });
            let mut request = Request::new(Body::empty());
            *request.uri_mut() = axum::http::Uri::from_static("/healthz");
            request.headers_mut().insert(HOST, HeaderValue::from_static("leader"));
            let _ = sender.send_request(request).await;
        };
        timeout(LEADER_PROBE, asked).await.is_ok()
    }

    fn is_silent(&self) -> Refusal {
        let who = match lease::holder(&self.data_dir) {
            Some(holder) => format!("the process {}", holder.pid),
            None => "the server that holds the lease".into(),
        };
        let detail = format!(
            "{who}, which launches and stops sandboxes here, does not answer; what was asked may \
             still be done; once that process has ended, another server takes over"
        );
        Refusal::NoLeader { detail, retry_after_seconds: 5 }
    }
}

fn absent() -> Refusal {
    let detail = "no server launches and stops sandboxes here now; one will soon";
    Refusal::NoLeader { detail: detail.into(), retry_after_seconds: 1 }
}

fn lost() -> Refusal {
    let detail = "the server that did this ended before it answered: look whether it was done";
    Refusal::NoLeader { detail: detail.into(), retry_after_seconds: 1 }
}
