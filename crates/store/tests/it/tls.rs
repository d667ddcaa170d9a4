//! TLS to a real `PostgreSQL`, with a certificate of our own.

use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use model::{Error, Plan};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use store::{KeyFormat, Store};

use crate::cluster::{Cluster, database};
use crate::owner;

struct Secure {
    cluster: Cluster,
    port: u16,
}

fn issuer() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

impl Secure {
    /// A server that is called `localhost`.
    fn start() -> Self {
        let port =
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        let cluster = Cluster::start_with(|dir| {
            let (issuer, key) = (issuer(), KeyPair::generate().unwrap());
            let params = CertificateParams::new(["localhost".to_owned()]).unwrap();
            let certificate = params.signed_by(&key, &issuer).unwrap();
            let write = |name: &str, text: &str| {
                let file = dir.join(name);
                std::fs::write(&file, text).unwrap();
                std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
                file.display().to_string()
            };
            write("root.pem", &issuer.pem());
            write("other.pem", &self::issuer().pem());
            vec![
                "listen_addresses=127.0.0.1".into(),
                format!("port={port}"),
                "ssl=on".into(),
                format!("ssl_cert_file={}", write("server.pem", &certificate.pem())),
                format!("ssl_key_file={}", write("server.key", &key.serialize_pem())),
            ]
        });
        Self { cluster, port }
    }

    fn url(&self, host: &str, words: &str) -> String {
        let root = self.cluster.socket().display();
        let words = words.replace("DIR", &root.to_string());
        format!("postgresql://bastide:hunter2@{host}:{}/postgres?{words}", self.port)
    }

    /// Connections of ours, and how many of them are encrypted.
    fn connections(&self) -> (i64, i64) {
        let sql = "SELECT count(*) || ' ' || count(*) FILTER (WHERE ssl) FROM pg_stat_ssl \
                   JOIN pg_stat_activity USING (pid) WHERE application_name = 'bastide'";
        let mut psql = Command::new("psql");
        psql.args(["-tAU", "bastide", "-d", "postgres", "-p", &self.port.to_string(), "-h"]);
        let said = psql.arg(self.cluster.socket()).args(["-c", sql]).output().unwrap();
        let said = String::from_utf8(said.stdout).unwrap();
        let (all, encrypted) = said.trim().split_once(' ').unwrap();
        (all.parse().unwrap(), encrypted.parse().unwrap())
    }
}

async fn use_it(url: &str, dir: &Path) -> Result<Store, Error> {
    let store = Store::open_postgres(url, dir)?;
    store.create_key(&owner("ann"), Plan::Free, KeyFormat::Live, "x").await?;
    Ok(store)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_url_asks_for_holds() {
    let secure = Secure::start();
    let dir = tempfile::tempdir().unwrap();
    for (host, words, encrypted) in [
        ("localhost", "sslmode=verify-full&sslrootcert=DIR/root.pem", true),
        ("127.0.0.1", "sslmode=require&sslrootcert=DIR/root.pem", true),
        ("127.0.0.1", "sslmode=require", true),
        ("127.0.0.1", "connect_timeout=5", true),
        ("127.0.0.1", "sslmode=disable", false),
    ] {
        let store = use_it(&secure.url(host, words), dir.path()).await.unwrap();
        let (all, secret) = secure.connections();
        assert!(all > 0 && secret == if encrypted { all } else { 0 }, "{words}: {secret} of {all}");
        drop(store);
        // Its connections end in their own time.
        while secure.connections().0 > 0 {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    }
    for (host, words) in [
        ("127.0.0.1", "sslmode=verify-full&sslrootcert=DIR/root.pem"),
        ("localhost", "sslmode=verify-full&sslrootcert=DIR/other.pem"),
        ("localhost", "sslmode=verify-full"),
        ("localhost", "sslmode=require&sslrootcert=DIR/other.pem"),
    ] {
        let refused = use_it(&secure.url(host, words), dir.path()).await.map(drop).unwrap_err();
        assert!(matches!(refused, Error::Unavailable { .. }), "{words}: {refused:?}");
        assert!(!format!("{refused:?}").contains("hunter2"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_tls_at_the_server_nothing_is_sent_that_should_be_secret() {
    let cluster = Cluster::start();
    let dir = tempfile::tempdir().unwrap();
    let url = database(cluster.socket(), "plain");
    use_it(&url, dir.path()).await.unwrap();
    let refused = use_it(&format!("{url}&sslmode=require"), dir.path()).await.map(drop);
    assert!(matches!(refused, Err(Error::Unavailable { .. })), "{refused:?}");
}
