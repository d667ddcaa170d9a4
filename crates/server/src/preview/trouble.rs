//! What can be wrong with a request for a port, besides what the engine refuses.

use std::time::Duration;

/// `refusal` knows what HTTP calls them.
#[derive(Debug)]
pub(crate) enum Trouble {
    PortClosed {
        port: u16,
    },
    /// What answers there broke off, or speaks no HTTP.
    NoHttp {
        port: u16,
        detail: String,
    },
    Silent {
        port: u16,
        limit: Duration,
    },
    /// Expired, changed, or for something else.
    LinkInvalid,
    /// Another site's page made the browser send the cookie of this one.
    OtherSite,
    /// Below the domain of the sandboxes, and no host of one.
    UnknownHost,
    TwoHosts,
}
