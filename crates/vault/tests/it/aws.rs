//! In a server that speaks AWS's API.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use model::Error;
use seal::Sealer;
use store::Store;
use tempfile::TempDir;
use vault::{AwsConfig, Credentials, Place, Vault};

use crate::{map, name, owner, resolved, values};

/// Ends with the test.
struct Aws {
    child: Child,
    address: SocketAddr,
}

impl Aws {
    fn start() -> Self {
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

    fn config(&self) -> AwsConfig {
        AwsConfig {
            region: "eu-central-1".into(),
            endpoint: Some(format!("http://{}", self.address)),
            prefix: "bastide".into(),
            credentials: Credentials {
                access_key_id: "AKIATEST".into(),
                secret_access_key: "hush".into(),
                session_token: None,
            },
        }
    }

    /// The names of all secrets that it has.
    fn names(&self) -> Vec<String> {
        let body = r#"{"MaxResults": 100}"#;
        let request = format!(
            "POST / HTTP/1.1\r\nhost: {}\r\nx-amz-target: secretsmanager.ListSecrets\r\n\
             content-type: application/x-amz-json-1.1\r\nauthorization: AWS4-HMAC-SHA256 \
             Credential=AKIATEST/20260101/eu-central-1/secretsmanager/aws4_request\r\n\
             content-length: {}\r\nconnection: close\r\n\r\n{body}",
            self.address,
            body.len()
        );
        let mut stream = std::net::TcpStream::connect(self.address).unwrap();
        std::io::Write::write_all(&mut stream, request.as_bytes()).unwrap();
        let mut answer = String::new();
        std::io::Read::read_to_string(&mut stream, &mut answer).unwrap();
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        let body: serde_json::Value = serde_json::from_str(body).unwrap();
        let list = body["SecretList"].as_array().unwrap();
        list.iter().map(|one| one["Name"].as_str().unwrap().to_owned()).collect()
    }
}

impl Drop for Aws {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn vault(dir: &TempDir, place: Place, aws: Option<AwsConfig>) -> Vault {
    let store = Store::open(&dir.path().join("bastide.db")).unwrap();
    let sealer = Sealer::open(&dir.path().join("master.key")).unwrap();
    Vault::new(store, sealer, place, aws)
}

#[tokio::test]
async fn a_bundle_lives_in_its_tenants_namespace_and_leaves_nothing_behind() {
    let aws = Aws::start();
    let dir = tempfile::tempdir().unwrap();
    let vault = vault(&dir, Place::Aws, Some(aws.config()));
    let ann = owner("ann");
    let large = "x".repeat(64 * 1024);
    vault.create(&ann, &name("keys"), values(&[("A", "1"), ("LARGE", &large)])).await.unwrap();
    assert_eq!(resolved(&vault, &ann, &["keys"]).await, map(&[("A", "1"), ("LARGE", &large)]));
    let names = aws.names();
    assert_eq!(names.len(), 2, "in two parts: {names:?}");
    assert!(names.iter().all(|name| name.starts_with("bastide/usr_ann/keys/")), "{names:?}");

    let taken = vault.create(&ann, &name("keys"), values(&[("A", "3")])).await;
    assert!(matches!(taken, Err(Error::Conflict { .. })));
    let rotated = vault.rotate(&ann, &name("keys"), values(&[("B", "2")])).await.unwrap();
    assert_eq!(rotated.key_names, ["B"]);
    assert!(rotated.rotated_at.is_some());
    assert_eq!(resolved(&vault, &ann, &["keys"]).await, map(&[("B", "2")]));
    assert_eq!(aws.names().len(), 1);
    let unknown = vault.rotate(&owner("bob"), &name("keys"), values(&[("B", "3")])).await;
    assert!(matches!(unknown, Err(Error::NotFound { .. })));
    assert_eq!(aws.names().len(), 1);

    vault.delete(&ann, &name("keys")).await.unwrap();
    assert!(aws.names().is_empty());
    let again = vault.delete(&ann, &name("keys")).await;
    assert!(matches!(again, Err(Error::NotFound { .. })));
}

#[tokio::test]
async fn a_deployment_may_change_its_mind_and_old_bundles_still_open() {
    let aws = Aws::start();
    let dir = tempfile::tempdir().unwrap();
    let ann = owner("ann");
    let before = vault(&dir, Place::Sealed, None);
    before.create(&ann, &name("old"), values(&[("A", "1")])).await.unwrap();
    let after = vault(&dir, Place::Aws, Some(aws.config()));
    after.create(&ann, &name("new"), values(&[("B", "2")])).await.unwrap();
    assert_eq!(resolved(&after, &ann, &["old", "new"]).await, map(&[("A", "1"), ("B", "2")]));
    let without = before.resolve(&ann, &[name("new")]).await;
    assert!(matches!(without, Err(Error::Unavailable { .. })));
    after.rotate(&ann, &name("old"), values(&[("A", "2")])).await.unwrap();
    assert_eq!(aws.names().len(), 2);
    assert_eq!(resolved(&after, &ann, &["old"]).await, map(&[("A", "2")]));
}

#[tokio::test]
async fn what_a_crash_leaves_there_is_found_and_deleted_and_nothing_else() {
    let aws = Aws::start();
    let dir = tempfile::tempdir().unwrap();
    let vault = vault(&dir, Place::Aws, Some(aws.config()));
    let ann = owner("ann");
    vault.create(&ann, &name("kept"), values(&[("A", "1")])).await.unwrap();
    let broken = AwsConfig { endpoint: Some("http://127.0.0.1:1".into()), ..aws.config() };
    let blind = self::vault(&dir, Place::Aws, Some(broken));
    // Deleted in the store, and its values cannot be reached: as after a crash in between.
    vault.create(&ann, &name("gone"), values(&[("B", "2")])).await.unwrap();
    blind.delete(&ann, &name("gone")).await.unwrap();
    assert_eq!(aws.names().len(), 2);
    let now = jiff::Timestamp::now();
    vault.clean(now - jiff::SignedDuration::from_mins(1)).await.unwrap();
    assert_eq!(aws.names().len(), 2, "it may be on its way still");
    vault.clean(now + jiff::SignedDuration::from_mins(1)).await.unwrap();
    assert_eq!(aws.names().len(), 1);
    assert_eq!(resolved(&vault, &ann, &["kept"]).await, map(&[("A", "1")]));
    vault.rotate(&ann, &name("kept"), values(&[("A", "2")])).await.unwrap();
    vault.clean(now + jiff::SignedDuration::from_mins(1)).await.unwrap();
    assert_eq!(resolved(&vault, &ann, &["kept"]).await, map(&[("A", "2")]));
    assert_eq!(aws.names().len(), 1);
}

#[tokio::test]
async fn a_server_that_is_not_there_is_told_without_a_value() {
    let aws = Aws::start();
    let config = AwsConfig { endpoint: Some("http://127.0.0.1:1".into()), ..aws.config() };
    let dir = tempfile::tempdir().unwrap();
    let vault = vault(&dir, Place::Aws, Some(config));
    let failure = vault.create(&owner("ann"), &name("k"), values(&[("A", "hush")])).await;
    let failure = failure.unwrap_err();
    assert!(matches!(failure, Error::Unavailable { .. }), "{failure:?}");
    assert!(!format!("{failure:?}").contains("hush"));
    assert!(vault.list(&owner("ann")).await.unwrap().is_empty());
}
