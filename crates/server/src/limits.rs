//! The named limits of this crate that are not settings.

use std::time::Duration;

/// Between two comments on a stream that has nothing to say.
pub(crate) const KEEPALIVE_EVERY: Duration = Duration::from_secs(15);
/// For a TLS handshake.
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// While draining: for the first request of a connection that was just accepted.
pub(crate) const FIRST_REQUEST_WAIT: Duration = Duration::from_secs(1);
/// After the drain time: for tasks to notice that they are cut off.
pub(crate) const CUT_OFF_TIMEOUT: Duration = Duration::from_secs(5);
/// For a client to read a refusal that was sent before its whole body had come.
pub(crate) const LINGER_TIMEOUT: Duration = Duration::from_secs(3);
/// Bytes of a request line with all headers.
pub(crate) const HEADER_BYTES_MAX: usize = 64 * 1024;
pub(crate) const HEADERS_MAX: usize = 100;
/// Of a client's own `x-request-id`.
pub(crate) const REQUEST_ID_BYTES_MAX: usize = 64;
/// Of an `Idempotency-Key`.
pub(crate) const IDEMPOTENCY_KEY_BYTES_MAX: usize = 255;
/// Of a bundle of secrets: 50 values of 64 KiB, with room for how JSON writes them.
pub(crate) const BUNDLE_BODY_BYTES_MAX: u64 = 8 << 20;
/// One direction of a tunnel.
pub(crate) const TUNNEL_BUFFER_BYTES: usize = 64 * 1024;
/// For a server to become the leader when there is none; then calls that need one are refused.
pub(crate) const LEADER_WAIT: Duration = Duration::from_secs(15);
/// How often a leader that does not answer is asked whether it lives, and how long it may take.
pub(crate) const LEADER_PROBE: Duration = Duration::from_secs(2);
/// Of one text frame of a session's client.
pub(crate) const SESSION_FRAME_BYTES_MAX: usize = 1 << 20;
/// Events that are read from a session's log at a time.
pub(crate) const SESSION_BATCH: usize = 512;
/// For an agent to take what a client says.
pub(crate) const SESSION_SAY_TIMEOUT: Duration = Duration::from_secs(30);
/// For a client that connected without `?from=` to say where it is.
pub(crate) const FIRST_FRAME_WAIT: Duration = Duration::from_millis(250);
/// Events of one answer, as JSON.
pub(crate) const SESSION_PAGE_DEFAULT: usize = 1000;
pub(crate) const SESSION_PAGE_MAX: usize = 10_000;
