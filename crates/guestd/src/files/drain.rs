//! A body that nobody wants.

use std::time::Duration;

use tokio::time::timeout;

use crate::http::BodyReader;

/// How long it is read, so that its client sees the answer.
const DRAIN_MAX: Duration = Duration::from_secs(30);

/// Reads what is left of a body, for a while: an answer that overtakes its request is not seen by
/// clients that are still sending.
pub(crate) async fn drain(body: &mut BodyReader) {
    let rest = async { while let Ok(Some(_)) = body.next().await {} };
    let _ = timeout(DRAIN_MAX, rest).await;
}
