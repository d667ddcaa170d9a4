//! Where a backend may be: HTTPS at public addresses, and what the operator lists; and only what was checked
//! is dialled.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::json;
use tokio::net::TcpListener;
use tokio::time::sleep;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use super::doubles::{Backend, Daemon, Mood};
use super::{make, say, start, wanted};
use crate::harness::Setup;

const NAMES: &str = "[hosts]\n'inside.test' = ['10.0.0.7']\n'mixed.test' = ['1.1.1.1', '127.0.0.1']\n\
    'ula.test' = ['fc00::1']\n'local.test' = ['fe80::1']\n'six.test' = ['::1']\n\
    'mapped.test' = ['::ffff:169.254.169.254']\n'zero.test' = ['0.0.0.0']\n'nat64.test' = ['64:ff9b::a00:1']\n\
    'metadata.test' = ['169.254.169.254']\n'sixtofour.test' = ['2002:7f00:1::']\n\
    'outside.test' = ['1.1.1.1', '2606:4700:4700::1111']\n";

#[tokio::test]
async fn only_public_https_may_be_a_backend() {
    let backend = Backend::start().await;
    let setup = format!("{NAMES}[persistence]\nallowed_urls = '{}'", backend.origin);
    let server = Setup::with(&setup).start().await;
    let port = backend.origin.rsplit_once(':').unwrap().1;
    let literal = [
        "https://127.0.0.1/",
        "https://2130706433/",
        "https://0x7f.1/",
        "https://0177.0.0.1/",
        "https://0.0.0.0/",
        "https://10.0.0.1/",
        "https://172.16.0.1/",
        "https://192.168.1.1/",
        "https://169.254.169.254/latest",
        "https://100.64.0.1/",
        "https://[::]/",
        "https://[::1]/",
        "https://[fc00::1]/",
        "https://[fd12::1]/",
        "https://[fe80::1]/",
        "https://[::ffff:127.0.0.1]/",
        "https://[::ffff:a00:1]/",
        "https://[fd00:ec2::254]/",
        "https://[64:ff9b::7f00:1]/",
        "https://[2002:7f00:1::]/",
        "https://localhost/",
        "https://a.localhost/",
        "http://1.1.1.1/",
        "http://outside.test/",
    ];
    let names = ["inside", "mixed", "ula", "local", "six", "mapped", "zero", "nat64", "metadata"];
    let names = names.into_iter().chain(["sixtofour"]);
    let resolved = names.map(|name| format!("https://{name}.test/persist"));
    // The origin that is listed, spelled as another one.
    let others = [
        format!("http://localhost:{port}"),
        format!("https://127.0.0.1:{port}"),
        "https://no-such-host.invalid".to_owned(),
    ];
    let literal = literal.into_iter().map(str::to_owned);
    for bad in literal.chain(resolved).chain(others) {
        let body = json!({ "template": "standard", "agent": "claude", "llm_key": "sk-1",
            "persistence_url": bad });
        let answer = server.operator.post("/v1/sandboxes", &body).await;
        assert_eq!(answer.status, 400, "{bad}");
        answer.refuses("persistence_url");
    }
    for good in ["https://outside.test/p?q=1", "https://1.1.1.1", &backend.url()] {
        let body = json!({ "template": "standard", "agent": "claude", "llm_key": "sk-1",
            "persistence_url": good });
        server.operator.post("/v1/sandboxes", &body).await.json(201);
    }
    server.stop().await;
}

#[tokio::test]
async fn a_name_that_turns_private_after_the_create_is_not_dialled() {
    let daemon = Daemon::start().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let dialled = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&dialled);
    let _listens = AbortOnDropHandle::new(TaskTracker::new().spawn(async move {
        while listener.accept().await.is_ok() {
            count.fetch_add(1, Ordering::SeqCst);
        }
    }));
    let first = Setup::with("[hosts]\n'backend.test' = ['1.1.1.1']");
    first.pools[0].0.set_agents(daemon.port);
    let server = first.start().await;
    let url = format!("https://backend.test:{port}/");
    let body = json!({ "template": "standard", "agent": "claude", "llm_key": "sk-1",
        "persistence_url": url });
    let sandbox = make(&server, &body).await;
    let (dir, pools) = (Arc::clone(&server.dir), vec![(server.driver.clone(), None)]);
    server.stop().await;
    let again =
        |toml: &str| Setup { dir: Arc::clone(&dir), pools: pools.clone(), ..Setup::with(toml) };
    let server = again("[hosts]\n'backend.test' = ['127.0.0.1']").start().await;
    daemon.records("s", 3);
    say(&server, &sandbox, "s").await;
    let store = crate::harness::store(server.dir.path());
    for _ in 0..1000 {
        // The batch was begun, and its first try is over soon after.
        if store.persisted(&sandbox).await.unwrap().is_some_and(|known| known.sending == 3) {
            break;
        }
        sleep(Duration::from_millis(10)).await;
    }
    sleep(Duration::from_millis(1500)).await;
    assert_eq!(store.persisted(&sandbox).await.unwrap().unwrap().sending, 3);
    assert_eq!(dialled.load(Ordering::SeqCst), 0);
    server.stop().await;
    // That it would have been, had it been allowed.
    let listed = format!(
        "[hosts]\n'backend.test' = ['127.0.0.1']\n[persistence]\nallowed_urls = 'https://backend.test:{port}'"
    );
    let server = again(&listed).start().await;
    for _ in 0..1000 {
        if dialled.load(Ordering::SeqCst) > 0 {
            return server.stop().await;
        }
        sleep(Duration::from_millis(10)).await;
    }
    panic!("what is listed is not dialled either");
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let (backend, daemon) = (Backend::start().await, Daemon::start().await);
    let server = start(&backend, &daemon).await;
    backend.next([Mood::Refuses(307)]);
    let sandbox = make(&server, &wanted(&backend)).await;
    daemon.records("s", 2);
    say(&server, &sandbox, "s").await;
    backend.is_asked(1).await;
    // Following it would have brought the batch at once, and not after a pause.
    sleep(Duration::from_millis(100)).await;
    assert_eq!(backend.posts(), 1);
    assert!(backend.kept.lock().unwrap().events[&sandbox].is_empty());
    backend.has(&sandbox, 2).await;
    server.stop().await;
}
