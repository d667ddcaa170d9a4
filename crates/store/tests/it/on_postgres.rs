//! The same tests once more, on `PostgreSQL`; and what only it can do to us.

use model::Plan;
use store::{KeyFormat, Store};

use crate::again::run_again_on_postgres;
use crate::cluster::{self, Cluster};
use crate::owner;

#[test]
fn everything_holds_on_postgresql_too() {
    run_again_on_postgres(&["--skip", "on_postgres", "--test-threads", "4"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_connection_is_made_anew_and_nothing_hangs_meanwhile() {
    let cluster = Cluster::start();
    let url = cluster::database(cluster.socket(), "lost");
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open_postgres(&url, dir.path()).unwrap();
    let ann = owner("ann");
    let key = store.create_key(&ann, Plan::Free, KeyFormat::Live, "x").await.unwrap();
    let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
               WHERE application_name = 'bastide'";
    let psql = || {
        let mut psql = std::process::Command::new("psql");
        psql.args(["-q", "-U", "bastide", "-d", "postgres", "-h"]).arg(cluster.socket());
        assert!(psql.args(["-c", cut]).output().unwrap().status.success());
    };
    psql();
    // The first may find out that the connection is gone.
    let first = store.list_keys(&ann).await;
    assert!(first.is_ok() || matches!(first, Err(model::Error::Unavailable { .. })), "{first:?}");
    assert_eq!(store.list_keys(&ann).await.unwrap(), [key.record]);
    psql();
    let first = store.create_key(&ann, Plan::Free, KeyFormat::Live, "y").await;
    assert!(first.is_ok() || matches!(first, Err(model::Error::Unavailable { .. })), "{first:?}");
    store.create_key(&ann, Plan::Free, KeyFormat::Live, "z").await.unwrap();
    drop(cluster);
    let refused = store.create_key(&ann, Plan::Free, KeyFormat::Live, "z").await;
    assert!(matches!(refused, Err(model::Error::Unavailable { .. })), "{refused:?}");
    let refused = store.list_keys(&ann).await;
    assert!(matches!(refused, Err(model::Error::Unavailable { .. })), "{refused:?}");
}

#[test]
fn a_url_that_is_none_or_asks_for_what_we_cannot_do_is_refused_without_being_shown() {
    let dir = tempfile::tempdir().unwrap();
    for url in ["nonsense://u:hunter2@x", "postgresql://u:hunter2@127.0.0.1:1/x?sslmode=maybe"] {
        let refused = Store::open_postgres(url, dir.path()).map(drop).unwrap_err();
        assert!(!format!("{refused:?}").contains("hunter2"), "{refused:?}");
    }
}
