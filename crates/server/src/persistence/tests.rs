//! How long a backend that fails is left alone.

use super::*;

#[test]
fn the_pause_doubles_up_to_a_limit_and_differs_between_conversations() {
    let id = "sb-1";
    let pauses: Vec<Duration> = (1..40).map(|failures| back_off(failures, id)).collect();
    assert!(pauses[0] >= BACK_OFF && pauses[0] < BACK_OFF * 2);
    assert_eq!(pauses[1], pauses[0] * 2);
    assert!(pauses.is_sorted());
    assert!(pauses.iter().all(|pause| *pause <= BACK_OFF_MAX + BACK_OFF_MAX / 4));
    let own: std::collections::BTreeSet<_> =
        (0..20).map(|i| back_off(1, &format!("sb-{i}"))).collect();
    assert!(own.len() > 10, "{own:?}");
}

#[test]
fn a_success_forgets_failures_and_the_backend_may_ask_for_a_longer_pause() {
    let mut resting = HashMap::new();
    note(&mut resting, "a".into(), Delivered::Failed { retry_after: None });
    note(&mut resting, "a".into(), Delivered::Failed { retry_after: None });
    assert_eq!(resting["a"].failures, 2);
    note(&mut resting, "a".into(), Delivered::Well);
    assert!(resting.is_empty());
    let long = Duration::from_secs(600);
    note(&mut resting, "a".into(), Delivered::Failed { retry_after: Some(long) });
    assert!(resting["a"].until > Instant::now() + Duration::from_secs(590));
}
