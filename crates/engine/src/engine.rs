//! The handle that the front doors hold.

use driver::Template;
use model::{Change, Error, NewSandbox, Result, SandboxRef};
use store::Store;

use crate::{
    Attachment, Caller, CancelReason, Cancelled, Created, EngineConfig, Idempotency, Listing, Pool,
    Sandbox, Snapshot,
};

/// Clones share one engine.
#[derive(Clone)]
pub struct Engine {}

impl Engine {
    /// Re-adopts every sandbox that exists in the pools, and finishes what a crash left half done.
    pub async fn start(_config: EngineConfig, _pools: Vec<Pool>, _store: Store) -> Result<Self> {
        Ok(Self {})
    }

    /// Stops taking calls and waits for what is in flight. Sandboxes go on.
    pub async fn shutdown(&self) {}

    pub async fn create(
        &self,
        _caller: &Caller,
        _wanted: NewSandbox,
        _idempotency: Option<Idempotency>,
    ) -> Result<Created> {
        Err(Error::unavailable("not wired yet"))
    }

    pub async fn list(&self, _caller: &Caller) -> Result<Listing> {
        Err(Error::unavailable("not wired yet"))
    }

    pub async fn get(&self, _caller: &Caller, _sandbox: &SandboxRef) -> Result<Sandbox> {
        Err(Error::unavailable("not wired yet"))
    }

    /// Changes name and policy of a live sandbox (ruling 10).
    pub async fn update(
        &self,
        _caller: &Caller,
        _sandbox: &SandboxRef,
        _change: Change,
    ) -> Result<Sandbox> {
        Err(Error::unavailable("not wired yet"))
    }

    pub async fn start_sandbox(&self, _caller: &Caller, _sandbox: &SandboxRef) -> Result<Sandbox> {
        Err(Error::unavailable("not wired yet"))
    }

    pub async fn stop(&self, _caller: &Caller, _sandbox: &SandboxRef) -> Result<Sandbox> {
        Err(Error::unavailable("not wired yet"))
    }

    pub async fn pause(&self, _caller: &Caller, _sandbox: &SandboxRef) -> Result<Sandbox> {
        Err(Error::unavailable("not wired yet"))
    }

    pub async fn resume(&self, _caller: &Caller, _sandbox: &SandboxRef) -> Result<Sandbox> {
        Err(Error::unavailable("not wired yet"))
    }

    /// Ends everything of it before it answers (ruling 7).
    pub async fn delete(&self, _caller: &Caller, _sandbox: &SandboxRef) -> Result<Sandbox> {
        Err(Error::unavailable("not wired yet"))
    }

    /// Tells attached clients to wrap up; does not end the sandbox.
    pub async fn cancel(
        &self,
        _caller: &Caller,
        _sandbox: &SandboxRef,
        _reason: CancelReason,
    ) -> Result<Cancelled> {
        Err(Error::unavailable("not wired yet"))
    }

    /// Counts the caller as an attached client until the value is dropped.
    pub async fn attach(&self, _caller: &Caller, _sandbox: &SandboxRef) -> Result<Attachment> {
        Err(Error::unavailable("not wired yet"))
    }

    /// What sandboxes can be made from now, over all pools.
    pub async fn templates(&self) -> Result<Vec<Template>> {
        Err(Error::unavailable("not wired yet"))
    }

    pub fn snapshot(&self) -> Snapshot {
        Snapshot::default()
    }
}
