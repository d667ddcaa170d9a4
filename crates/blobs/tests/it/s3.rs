//! A server that speaks S3, and what it says to somebody who has a signed link.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use blobs::{Blobs, Credentials, Key, S3Config};
use bytes::Bytes;
use futures_util::stream;
use http::Method;
use model::{OwnerId, SecretText, WorkspaceId};
use url::Url;

/// Ends with the test.
pub(crate) struct S3 {
    child: Child,
    address: SocketAddr,
}

impl S3 {
    pub(crate) fn start() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests-aws");
        let mut child = Command::new(root.join("venv/bin/python"))
            .arg(root.join("serve.py"))
            .stdout(Stdio::piped())
            .spawn()
            .expect("scripts/install-deps.sh test has made tests-aws/venv");
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().parse().unwrap();
        Self { child, address }
    }

    pub(crate) fn blobs(&self, bucket: &str, prefix: &str) -> Blobs {
        Blobs::in_bucket(&S3Config {
            bucket: bucket.into(),
            prefix: prefix.into(),
            region: "eu-central-1".into(),
            endpoint: Some(format!("http://{}", self.address)),
            credentials: Some(Credentials {
                access_key_id: "AKIATEST".into(),
                secret_access_key: SecretText("hush".into()),
                session_token: None,
            }),
        })
        .unwrap()
    }

    pub(crate) async fn make_bucket(&self, name: &str) {
        let made = http_client()
            .put(format!("http://{}/{name}", self.address))
            .body(
                "<CreateBucketConfiguration><LocationConstraint>eu-central-1</LocationConstraint>\
                 </CreateBucketConfiguration>",
            )
            .send()
            .await
            .unwrap();
        assert!(made.status().is_success(), "{made:?}");
    }
}

fn http_client() -> reqwest::Client {
    // Whoever comes second changes nothing.
    let _ = tokio_rustls::rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::new()
}

impl Drop for S3 {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test]
async fn a_signed_link_reads_and_writes_its_own_file() {
    let s3 = S3::start();
    s3.make_bucket("town").await;
    let blobs = s3.blobs("town", "p");
    let owner: OwnerId = "usr_ann".parse().unwrap();
    let workspace = WorkspaceId::new("app", "default").unwrap();
    let key: Key = "a b/ü.txt".parse().unwrap();
    let link = async |method: Method| -> Url {
        let signed = blobs.signed(method, (&owner, &workspace, &key), Duration::from_secs(60));
        signed.await.unwrap().unwrap()
    };
    let client = http_client();
    let put = client.put(link(Method::PUT).await).body("hello").send().await.unwrap();
    assert!(put.status().is_success(), "{put:?}");
    assert_eq!(blobs.head(&owner, &workspace, &key).await.unwrap().unwrap().size, 5);
    let got = client.get(link(Method::GET).await).send().await.unwrap();
    assert_eq!(got.text().await.unwrap(), "hello");
    let query = link(Method::GET).await.query().unwrap().to_owned();
    assert!(query.contains("X-Amz-Expires=60") && query.contains("X-Amz-Signature="), "{query}");
    assert!(!query.contains("hush"));
    let more = stream::iter([Ok(Bytes::from_static(b"again"))]);
    blobs.put(&owner, &workspace, &key, more).await.unwrap();
    let got = client.get(link(Method::GET).await).send().await.unwrap();
    assert_eq!(got.text().await.unwrap(), "again");
}
