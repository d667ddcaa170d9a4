//! The nouns and rules of Bastide: ids, specs, limits, policies, the life of a sandbox and the
//! decision when it ends. Pure: no I/O, no tokio, no SQL, no HTTP.

pub mod access;
pub mod agent;
pub mod catalogue;
pub mod email;
pub mod error;
pub mod event;
pub mod ids;
pub mod lifecycle;
pub mod name;
pub mod policy;
pub mod pricing;
pub mod quota;
pub mod reaper;
pub mod request;
pub mod reserved;
pub mod secret;
pub mod session;
pub mod spec;
pub mod tenancy;
pub mod workspace;

pub use access::{Access, Outcome, Verdict};
pub use agent::{AgentKind, AgentSpec, NewAgent, Vendor};
pub use email::Email;
pub use error::{Conflict, Error, Result};
pub use event::{EndReason, Event, EventKind};
pub use ids::{ExecId, OwnerId, SandboxId, SandboxRef, SessionId};
pub use lifecycle::Phase;
pub use name::Name;
pub use policy::{Policy, PolicyName, Rule, Target, host_name, is_public};
pub use quota::{Plan, Quota, QuotaRow};
pub use request::{Change, Cidr, NewSandbox, Source};
pub use secret::{BundleName, SecretText, SecretValues};
pub use session::{Fork, SessionSpec, SessionStatus};
pub use spec::{Clocks, Limits, SandboxSpec, Shape, TemplateName, Tier};
pub use tenancy::{OrganisationId, Role};
pub use workspace::WorkspaceId;
