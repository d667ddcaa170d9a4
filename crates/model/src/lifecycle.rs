//! The life of a sandbox, as one pure table (000 *Sandbox Lifecycle*, 003 *Sandboxes*).
//!
//! ```text
//!  creating ─► configuring ─► booting ─► running ◄─► paused
//!     ▲                                   │            │
//!     │                                   ▼            │
//!     └────────── stopped ◄──────────  stopping ◄──────┘
//!        start       │                    
//!                    ▼                    
//!   any state ─► deleting ─► destroyed    
//! ```
//!
//! A phase is derived from what exists and only ever changed by [`next`].

use std::fmt;

/// Where a sandbox is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    Creating,
    Configuring,
    Booting,
    Running,
    Paused,
    Stopping,
    Stopped,
    Deleting,
    Destroyed,
}

/// What can happen to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transition {
    /// Its disk exists; namespaces and limits are being made.
    DiskMade,
    /// PID 1 was started.
    Launched,
    /// The guest answered.
    GuestReady,
    PauseAsked,
    ResumeAsked,
    StopAsked,
    StartAsked,
    /// Its compute is gone (asked for or not) and its workspace is kept.
    ComputeGone,
    DeleteAsked,
    /// Nothing of it is left.
    Gone,
}

/// That transition makes no sense in that phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused {
    pub phase: Phase,
    pub transition: Transition,
}

/// The phase that `transition` leads to.
pub fn next(phase: Phase, transition: Transition) -> Result<Phase, Refused> {
    use Phase::{
        Booting, Configuring, Creating, Deleting, Destroyed, Paused, Running, Stopped, Stopping,
    };
    match (phase, transition) {
        (Creating, Transition::DiskMade) => Ok(Configuring),
        (Configuring, Transition::Launched) => Ok(Booting),
        (Booting, Transition::GuestReady) | (Paused, Transition::ResumeAsked) => Ok(Running),
        (Running, Transition::PauseAsked) => Ok(Paused),
        (Running | Paused, Transition::StopAsked) => Ok(Stopping),
        (
            Creating | Configuring | Booting | Running | Paused | Stopping,
            Transition::ComputeGone,
        ) => Ok(Stopped),
        (Stopped, Transition::StartAsked) => Ok(Creating),
        (Destroyed, _) => Err(Refused { phase, transition }),
        (_, Transition::DeleteAsked) => Ok(Deleting),
        (Deleting, Transition::Gone) => Ok(Destroyed),
        _ => Err(Refused { phase, transition }),
    }
}

impl Phase {
    /// The word of the documents.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Creating => "creating",
            Self::Configuring => "configuring",
            Self::Booting => "booting",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Stopping => "stopping",
            Self::Stopped => "stopped",
            Self::Deleting => "deleting",
            Self::Destroyed => "destroyed",
        }
    }

    /// Whether processes may exist.
    pub fn has_compute(self) -> bool {
        match self {
            Self::Configuring | Self::Booting | Self::Running | Self::Paused | Self::Stopping => {
                true
            }
            Self::Creating | Self::Stopped | Self::Deleting | Self::Destroyed => false,
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests;
