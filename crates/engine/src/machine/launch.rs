//! From nothing, or from stopped, to running. Whatever fails, nothing is left of it.

use driver::{Launch, Observed};
use model::lifecycle::Transition;
use model::{EndReason, Error, EventKind, Phase, Quota, Result};
use store::{Change, Leg};
use tracing::{info, warn};

use super::{LaunchOrder, LaunchReply, Machine};
use crate::Sandbox;
use crate::create::{RequestClaim, remember};
use crate::resolve;

impl Machine {
    /// Launches while the claims become durable, so that both cost what the slower one costs.
    pub(super) async fn launch(&mut self, order: LaunchOrder) {
        let LaunchOrder { spec, policy, agent, request, reply } = order;
        let name = Change::ClaimName(spec.name.clone());
        let created = self.core.tell_once(&self.cell, EventKind::Created, None, None);
        let (requested, request) = match self.request_claim(request) {
            Ok(claim) => claim,
            Err(failure) => return self.fail_launch(reply, (failure, None), Made::Nothing).await,
        };
        let agent = agent.map(Change::KeepOrder);
        let changes = [Some(name), requested, agent, Some(created)].into_iter().flatten().collect();
        let work = self.cell.pool.driver.create(Launch { spec, policy });
        let launched = self.core.bounded(work);
        let claimed = async { self.core.apply(&self.cell, changes).await };
        // What takes longer begins first.
        let (launched, claimed) = tokio::join!(launched, claimed);
        if let Err(failure) = claimed {
            let unused = request.filter(|_| matches!(failure, Error::Conflict { .. }));
            return self.fail_launch(reply, (failure, unused), Made::Compute).await;
        }
        let restored = match launched {
            Ok(observed) => self.restore().await.map(|saved| (observed, saved)),
            Err(failure) => Err(failure),
        };
        let running = restored.and_then(|(observed, saved)| {
            self.publish_running(&observed)?;
            self.core.keep_workspace(&self.cell, saved);
            Ok(observed)
        });
        match running {
            Err(failure) => self.fail_launch(reply, (failure, None), Made::Claims(request)).await,
            Ok(observed) => {
                let sandbox = self.view();
                let answer = request.is_some().then(|| remember(&sandbox).ok()).flatten();
                info!(sandbox.id = %self.cell.id, "created sandbox {}", self.cell.id);
                // Whoever asked may have gone; the sandbox is there all the same.
                let _ = reply.send(Ok(sandbox));
                self.settle(&observed, Some(Change::Settle { answer }), request);
            }
        }
    }

    /// Starts a stopped sandbox again.
    pub(super) async fn start(&mut self, quota: &Quota) -> Result<Sandbox> {
        match self.phase() {
            Phase::Running => return Ok(self.view()),
            Phase::Stopped => {}
            Phase::Creating
            | Phase::Configuring
            | Phase::Booting
            | Phase::Paused
            | Phase::Stopping
            | Phase::Deleting
            | Phase::Destroyed => return Err(self.wrong_state()),
        }
        self.require_no_maintenance()?;
        self.core.registry.admit(&self.cell, quota, self.core.now())?;
        if let Err(failure) = self.publish(Transition::StartAsked, |_| {}) {
            self.core.registry.uncount(&self.cell);
            return Err(failure);
        }
        self.start_compute().await
    }

    /// What a crash left between `stopped` and `running`.
    pub(super) async fn finish_start(&mut self) {
        if let Err(failure) = self.start_compute().await {
            let error = format!("{:#}", anyhow::Error::from(failure));
            warn!(sandbox.id = %self.cell.id, error, "could not finish starting {}", self.cell.id);
        }
    }

    async fn start_compute(&mut self) -> Result<Sandbox> {
        let policy = resolve::policy(&self.core.config, &self.state.borrow().spec.policy);
        let started = match policy {
            Ok(policy) => {
                let work = self.cell.pool.driver.start(self.cell.id, policy);
                self.core.bounded(work).await
            }
            Err(failure) => Err(failure),
        };
        let running =
            started.and_then(|observed| self.publish_running(&observed).map(|()| observed));
        match running {
            Ok(observed) => {
                self.warned = false;
                self.core.keep_workspace(&self.cell, None);
                self.settle(&observed, None, None);
                Ok(self.view())
            }
            Err(failure) => {
                self.compute_gone(EndReason::Unknown).await;
                Err(failure)
            }
        }
    }

    /// Remembers that it runs: the claims are final, the leg has begun.
    fn settle(&self, observed: &Observed, settled: Option<Change>, request: Option<RequestClaim>) {
        let incarnation = self.incarnation();
        let running =
            self.core.tell_once(&self.cell, EventKind::Running, incarnation.as_deref(), None);
        let leg = incarnation.map(|incarnation| {
            let started_at = observed.started_at.unwrap_or_else(|| self.core.now());
            let (limits, payer) = {
                let spec = &self.state.borrow().spec;
                (spec.limits, spec.payer.clone())
            };
            Change::BeginLeg(Leg {
                incarnation: incarnation.to_string(),
                started_at,
                payer,
                memory_mib: limits.memory_mib,
                disk_gb: limits.disk_gb,
            })
        });
        let changes = [settled, leg, Some(running)].into_iter().flatten().collect();
        // Others with the same idempotency key wait until it is written.
        self.core.record_and_keep(&self.cell, changes, request);
    }

    /// The change that claims an idempotency key. The claim itself is held until the launch ends.
    fn request_claim(
        &self,
        request: Option<RequestClaim>,
    ) -> Result<(Option<Change>, Option<RequestClaim>)> {
        let Some(request) = request else { return Ok((None, None)) };
        let change = Change::ClaimRequest {
            key: request.key.clone(),
            body_sha256: request.body_sha256,
            answer: remember(&self.view())?,
            times: request.times,
        };
        Ok((Some(change), Some(request)))
    }

    /// Undoes a launch as far as it came, then says so. What cannot be removed now is removed by
    /// the sweep, and shown as `deleting` until then.
    async fn fail_launch(
        &mut self,
        reply: LaunchReply,
        failure: (Error, Option<RequestClaim>),
        made: Made,
    ) {
        let undone = self.destroy_silently(EndReason::CreateFailed).await;
        match made {
            Made::Nothing | Made::Compute => {}
            Made::Claims(request) => {
                let reason = Some(EndReason::CreateFailed);
                let told = self.core.tell_once(&self.cell, EventKind::CreateFailed, None, reason);
                // Whoever tries again with the same key must not find the claim of this one.
                self.core.record_and_keep(&self.cell, vec![Change::Unclaim, told], request);
            }
        }
        if undone {
            self.core.registry.remove(self.cell.id);
        } else {
            // What is left is in nobody's way.
            let name = self.state.borrow().spec.name.clone();
            self.core.registry.free_name(&self.cell, &name);
        }
        let _ = reply.send(Err(failure));
    }
}

/// How far a launch came.
enum Made {
    Nothing,
    /// Perhaps compute, but no claims.
    Compute,
    /// Claims, and perhaps compute.
    Claims(Option<RequestClaim>),
}
