//! The public contract: every HTTP body, its checks, and the way from and to `model`.
//!
//! A body that comes in refuses unknown fields and is checked here as far as that is possible
//! without the deployment's settings; what goes out has one shape for both documents. There is no
//! HTTP in this crate: status codes and headers belong to `server`.

pub mod access;
pub mod account;
pub mod admin;
pub mod agent;
pub mod billing;
pub mod cancel;
pub mod catalogue;
pub mod create;
pub mod event;
pub mod exec;
pub mod files;
pub mod frame;
pub mod json;
pub mod key;
pub mod logs;
pub mod metering;
pub mod port;
pub mod problem;
pub mod query;
pub mod sandbox;
pub mod secrets;
pub mod session;
pub mod template;
pub mod usage;
pub mod workspace;

pub use access::{EgressEntry, EgressLog, EgressQuery};
pub use account::{
    CodeSent, SignIn, SignedIn, Tenant, TenantCreated, TenantKeyCreated, TenantKeys, VerifyCode,
};
pub use cancel::{CancelRequest, CancelResponse};
pub use create::{Checked, CreateSandbox};
pub use event::StreamedEvent;
pub use exec::{ExecRequest, ExecResponse};
pub use files::Uploaded;
pub use frame::{ClientFrame, ControlFrame};
pub use key::{ApiKey, ApiKeys, CreateKey, CreatedKey, Revoked};
pub use logs::{LogAmount, LogStream, Logs, LogsQuery};
pub use port::{PortLink, PortLinkRequest};
pub use problem::{Code, Problem};
pub use sandbox::{PatchSandbox, Sandbox, SandboxFacts, SandboxList};
pub use template::{Template, Templates};
pub use usage::Usage;
