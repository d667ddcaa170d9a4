use std::time::Duration;

use tokio::time::Instant;

use super::Health;
use crate::api::ServerStatus;

#[tokio::test(start_paused = true)]
async fn what_keeps_dying_is_started_ever_later() {
    let mut health = Health::default();
    let mut waits = Vec::new();
    for _ in 0..8 {
        health.died("it died".to_owned(), Duration::from_secs(1));
        waits.push(health.not_before().unwrap().duration_since(Instant::now()).as_millis());
    }
    assert_eq!(waits, [500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000]);
    health.died("it died".to_owned(), Duration::from_secs(100));
    assert_eq!(health.not_before().unwrap().duration_since(Instant::now()).as_millis(), 500);
}

#[tokio::test(start_paused = true)]
async fn its_last_error_is_shown_until_it_runs_again() {
    let mut health = Health::default();
    assert_eq!(health.info(None, None).status, ServerStatus::Stopped);
    health.died("it died".to_owned(), Duration::ZERO);
    let info = health.info(None, None);
    assert_eq!((info.status, info.restart_count), (ServerStatus::Error, 1));
    assert_eq!(info.last_error.as_deref(), Some("it died"));
    let info = health.info(Some(Duration::from_secs(1)), None);
    assert_eq!((info.status, info.uptime_ms), (ServerStatus::Running, Some(1000)));
    assert_eq!(info.last_error, None);
}
