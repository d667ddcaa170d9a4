//! A pool that never answers: for drills (what do clients do when a part of the service is gone?), and
//! in the place of a pool that another server's lease is for.

use async_trait::async_trait;
use guest_proto::Guest;
use model::{EndReason, Error, Policy, Result, SandboxId};
use tokio::sync::mpsc;

use crate::{
    Capabilities, Collected, Driver, Exit, Launch, Maintenance, Observed, Template, Update, Usage,
};

/// Refuses everything as a driver does whose host is gone.
pub struct Unreachable;

fn gone<T>() -> Result<T> {
    Err(Error::unavailable("this pool cannot be reached from here"))
}

#[async_trait]
impl Driver for Unreachable {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            pause: false,
            limits: false,
            disk_limit: false,
            egress: false,
            warm_pool: false,
        }
    }

    async fn create(&self, _launch: Launch) -> Result<Observed> {
        gone()
    }

    async fn start(&self, _id: SandboxId, _policy: Policy) -> Result<Observed> {
        gone()
    }

    async fn stop(&self, _id: SandboxId, _reason: EndReason) -> Result<()> {
        gone()
    }

    async fn pause(&self, _id: SandboxId) -> Result<()> {
        gone()
    }

    async fn resume(&self, _id: SandboxId) -> Result<()> {
        gone()
    }

    async fn remove(&self, _id: SandboxId, _reason: EndReason) -> Result<()> {
        gone()
    }

    async fn update(&self, _id: SandboxId, _update: Update) -> Result<()> {
        gone()
    }

    async fn observe(&self, _id: SandboxId) -> Result<Option<Observed>> {
        gone()
    }

    async fn list(&self) -> Result<Vec<Observed>> {
        gone()
    }

    fn guest(&self, _id: SandboxId) -> Result<Guest> {
        gone()
    }

    async fn usage(&self, _id: SandboxId) -> Result<Usage> {
        gone()
    }

    async fn maintenance(&self, _id: SandboxId) -> Result<Maintenance> {
        gone()
    }

    fn take_exits(&self) -> Option<mpsc::Receiver<Exit>> {
        None
    }

    async fn templates(&self) -> Result<Vec<Template>> {
        gone()
    }

    async fn collect(&self) -> Result<Collected> {
        gone()
    }
}
