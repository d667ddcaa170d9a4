//! Processes that die, and their successors.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use super::*;
use crate::api::ServerStatus;

static STARTED: AtomicU64 = AtomicU64::new(0);

/// Seen to be dead when `dead` is cancelled; its task ends with `ended`.
#[derive(Debug, Clone, Default)]
struct Mortal {
    number: u64,
    dead: CancellationToken,
    ended: CancellationToken,
    told: CancellationToken,
}

impl Shared for Mortal {
    type Process = ();

    async fn start(_: &Arc<Host>, _: &Environment) -> Result<(Self, ())> {
        let number = STARTED.fetch_add(1, Ordering::SeqCst);
        Ok((Self { number, ..Self::default() }, ()))
    }

    async fn serve(&self, (): (), stop: CancellationToken) -> Option<String> {
        tokio::select! {
            () = stop.cancelled() => None,
            () = self.ended.cancelled() => Some("it died".to_owned()),
        }
    }

    fn is_alive(&self) -> bool {
        !self.dead.is_cancelled()
    }

    fn gone(&self) {
        self.told.cancel();
    }
}

fn host() -> Arc<Host> {
    Arc::new(Host {
        data_dir: "/nonexistent".into(),
        environment: BTreeMap::new(),
        directory: "/".into(),
        tasks: TaskTracker::new(),
        stop: CancellationToken::new(),
        mock_delay: Duration::ZERO,
        deictic: Vec::new(),
    })
}

#[tokio::test(start_paused = true)]
async fn the_end_of_one_does_not_end_its_successor() {
    let (host, servers) = (host(), Servers::<Mortal>::default());
    let none = Environment::new();
    let first = servers.get(&host, &none).await.unwrap();
    assert_eq!(servers.get(&host, &none).await.unwrap().number, first.number, "they share it");
    first.dead.cancel();
    assert!(servers.running().is_none());
    let second = servers.get(&host, &none).await.unwrap();
    assert_ne!(second.number, first.number);

    first.ended.cancel();
    first.told.cancelled().await;
    assert_eq!(servers.status().status, ServerStatus::Running);
    assert_eq!(servers.get(&host, &none).await.unwrap().number, second.number);

    second.dead.cancel();
    second.ended.cancel();
    second.told.cancelled().await;
    let status = servers.status();
    assert_eq!((status.status, status.restart_count), (ServerStatus::Error, 2));
    host.tasks.close();
    timeout(Duration::from_secs(10), host.tasks.wait()).await.expect("nothing goes on");
}

#[tokio::test(start_paused = true)]
async fn each_environment_has_its_own_and_all_end_at_the_close() {
    let (host, servers) = (host(), Servers::<Mortal>::default());
    let other = Environment::from([("A".to_owned(), "1".to_owned())]);
    let one = servers.get(&host, &Environment::new()).await.unwrap();
    let two = servers.get(&host, &other).await.unwrap();
    assert_ne!(one.number, two.number);
    servers.close();
    one.told.cancelled().await;
    two.told.cancelled().await;
    assert_eq!(servers.status().status, ServerStatus::Stopped);
    assert!(servers.get(&host, &other).await.is_err(), "nothing starts any more");
}
