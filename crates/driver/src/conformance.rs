//! What every driver promises, as assertions on the real thing. Panics at the first promise that is
//! broken; removes what it made in any case.
//!
//! The same assertions for every driver: they branch on [`Capabilities`](crate::Capabilities) and
//! on what the caller can do from outside ([`Options`]), never on names.

mod bench;
mod ends;
mod life;
mod use_guest;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use model::{EndReason, SandboxId, TemplateName};

use crate::Driver;
use bench::Bench;

/// What the suite cannot know by itself.
pub struct Options {
    /// A template with `sh`, `cat`, `sleep`, `kill` and `tail`.
    pub template: TemplateName,
    /// Ends the compute of a running sandbox from outside, as the kernel would.
    pub kill: Box<dyn Fn(SandboxId) + Send + Sync>,
    /// Memory limits are enforced by the kernel.
    pub memory_limit: bool,
}

/// Runs all of it on a driver that nobody else uses.
pub async fn check(driver: Arc<dyn Driver>, options: Options) {
    let bench = Bench::new(driver, options);
    let outcome = AssertUnwindSafe(all(&bench)).catch_unwind().await;
    bench.clear().await;
    if let Err(panic) = outcome {
        std::panic::resume_unwind(panic);
    }
}

async fn all(bench: &Bench) {
    life::a_template_is_listed_and_found_by_name(bench).await;
    life::what_does_not_exist_is_not_observed_and_can_be_removed(bench).await;
    life::a_created_sandbox_runs_and_is_listed(bench).await;
    life::an_id_is_created_once(bench).await;
    life::a_stopped_sandbox_keeps_its_workspace_and_starts_again(bench).await;
    life::two_sandboxes_are_made_at_once_and_do_not_share_a_workspace(bench).await;
    life::a_name_and_a_policy_can_be_changed(bench).await;
    life::a_collection_does_no_harm(bench).await;
    use_guest::a_command_has_output_status_environment_and_input(bench).await;
    use_guest::a_command_ends_with_its_client(bench).await;
    use_guest::a_detached_command_can_be_read_again(bench).await;
    use_guest::a_command_is_ended_by_its_timeout(bench).await;
    use_guest::files_go_in_and_out_unchanged(bench).await;
    use_guest::the_workspace_of_a_stopped_sandbox_can_be_exported_and_imported(bench).await;
    ends::a_removed_sandbox_leaves_a_tombstone(bench).await;
    ends::a_sandbox_can_be_removed_from_any_state(bench).await;
    ends::removed_is_removed_for_every_call(bench).await;
    ends::an_unasked_end_is_told_and_the_workspace_kept(bench).await;
    if bench.driver.capabilities().pause {
        life::a_paused_sandbox_does_nothing_until_it_is_resumed(bench).await;
        ends::a_paused_sandbox_can_be_stopped_and_removed(bench).await;
    }
    if bench.options.memory_limit {
        ends::eating_memory_ends_and_is_counted(bench).await;
    }
}

/// The reason that the suite gives where it needs one.
const ASKED: EndReason = EndReason::UserRequest;
