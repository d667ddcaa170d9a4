//! The engine of code mode: runs one piece of JavaScript (`QuickJS`) for the host, inside a sandbox.
//!
//! It gives the code what [`guest_proto::code::PRELUDE`] says, and relays `api.request` to the host. It
//! decides nothing that matters: the host checks every call again, and the sandbox bounds what the code
//! can use. The limits here only make for better words than a kill.

mod channel;
mod engine;
mod output;

use std::net::TcpStream;
use std::rc::Rc;

use anyhow::{Context, Result};
use guest_proto::code::{Job, Said, Scope};

use crate::channel::Channel;

/// Does the one job that comes over a connection.
pub fn serve(connection: TcpStream) -> Result<()> {
    let channel = Rc::new(Channel::new(connection)?);
    let job: Job = serde_json::from_slice(&channel.line()?).context("read the job")?;
    let spec = match job.scope {
        Scope::Spec => Some(channel.line()?),
        Scope::ApiRead | Scope::ApiWrite => None,
    };
    let done = engine::run(&job, spec, &channel);
    channel.send(&serde_json::to_string(&Said::Done(done))?)
}
