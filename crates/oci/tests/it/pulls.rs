//! What is asked of a registry, and what becomes of its faults.

#![expect(clippy::unwrap_used, reason = "support of tests: a panic is how it tells")]

use std::sync::Arc;
use std::time::Duration;

use oci::{Credentials, Error, Image, Login, Registry, RegistryOptions};
use serde_json::json;
use tokio::net::TcpStream;

use crate::double::{Double, Fault, digest};

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const LAYER: &[u8] = &[42; 300_000];

fn arch() -> &'static str {
    if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" }
}

fn registry(credentials: Credentials) -> Registry {
    let dial: oci::Dial = Arc::new(|host, port| {
        Box::pin(async move {
            TcpStream::connect((host.as_str(), port)).await.map_err(|error| error.to_string())
        })
    });
    Registry::new(RegistryOptions { dial, credentials, plain_http: Vec::new() }).unwrap()
}

fn anonymous() -> Registry {
    registry(Credentials::default())
}

fn login(user: &str, password: &str) -> Credentials {
    Credentials::of_login(Login { user: user.into(), password: password.into() })
}

/// An image of one layer under `:main`; gives the digest of its manifest.
pub(crate) fn publish(double: &Double) -> String {
    let layer = double.blob(LAYER.to_vec());
    let config = json!({
        "architecture": arch(), "os": "linux",
        "config": {
            "Env": ["PATH=/bin", "A=b=c"], "WorkingDir": "/srv", "User": "1000:1000",
            "Entrypoint": ["/bin/sh", "-c"], "Cmd": ["echo hi"],
        },
        "rootfs": { "type": "layers", "diff_ids": [digest(LAYER)] },
    });
    let config = serde_json::to_vec(&config).unwrap();
    let size = config.len();
    let config = double.blob(config);
    let manifest = json!({
        "schemaVersion": 2, "mediaType": MANIFEST,
        "config": { "mediaType": "application/vnd.oci.image.config.v1+json", "digest": config,
            "size": size },
        "layers": [{ "mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": layer,
            "size": LAYER.len() }],
    });
    let manifest = serde_json::to_vec(&manifest).unwrap();
    let name = digest(&manifest);
    for path in ["main", name.as_str()] {
        double.put(&format!("manifests/{path}"), MANIFEST, manifest.clone());
    }
    name
}

async fn image(double: &Double) -> oci::Result<Image> {
    anonymous().image(&double.reference(":main")).await
}

/// Downloads the layer into a fresh file; gives what is in it and how much came over the network.
async fn layer(double: &Double) -> oci::Result<(Vec<u8>, u64)> {
    let dir = tempfile::tempdir().unwrap();
    let image = image(double).await?;
    let path = dir.path().join("layer");
    let reference = double.reference(":main");
    let got = anonymous().download(&reference, &image.layers[0], &path, &|_| {}).await?;
    Ok((std::fs::read(path).unwrap(), got.received))
}

#[tokio::test]
async fn an_image_says_what_it_is_and_how_to_run_it() {
    let double = Double::start();
    let name = publish(&double);
    let image = image(&double).await.unwrap();
    assert_eq!(image.digest, name);
    assert_eq!(format!("sha256:{}", image.layers[0].diff_id), digest(LAYER));
    let config = &image.config;
    assert_eq!((config.user.as_str(), config.working_dir.as_str()), ("1000:1000", "/srv"));
    assert_eq!(config.env["A"], "b=c");
    assert_eq!(config.command, ["/bin/sh", "-c", "echo hi"]);
    let asked = double.seen("manifests/main");
    let accept = &asked[0].headers["accept"];
    for kind in [MANIFEST, INDEX, "docker.distribution.manifest.v2", "manifest.list.v2"] {
        assert!(accept.contains(kind), "{accept}");
    }
    assert_eq!(layer(&double).await.unwrap().0, LAYER);
}

#[tokio::test]
async fn an_index_gives_the_manifest_of_this_machine() {
    let double = Double::start();
    let name = publish(&double);
    let entry = |digest: &str, arch: &str| {
        json!({ "mediaType": MANIFEST, "digest": digest, "size": 1,
            "platform": { "os": "linux", "architecture": arch } })
    };
    let other = format!("sha256:{}", "0".repeat(64));
    let index = |entries: Vec<serde_json::Value>| {
        let index = json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": entries });
        serde_json::to_vec(&index).unwrap()
    };
    let both = index(vec![entry(&other, "s390x"), entry(&name, arch())]);
    double.put("manifests/main", INDEX, both);
    assert_eq!(image(&double).await.unwrap().digest, name);
    double.put("manifests/main", INDEX, index(vec![entry(&other, "s390x")]));
    let error = image(&double).await.unwrap_err().to_string();
    assert!(error.contains("linux/s390x") && error.contains(arch()), "{error}");
}

#[tokio::test]
async fn what_is_not_there_is_unknown_in_the_registrys_words() {
    let double = Double::start();
    publish(&double);
    let gone = anonymous().image(&double.reference(":gone")).await.unwrap_err();
    assert!(matches!(&gone, Error::Unknown(text) if text.contains("MANIFEST_UNKNOWN not here")));
    let other = format!("@sha256:{}", "1".repeat(64));
    let gone = anonymous().image(&double.reference(&other)).await.unwrap_err();
    assert!(matches!(gone, Error::Unknown(_)), "{gone}");
}

#[tokio::test]
async fn a_manifest_that_is_not_its_digest_is_refused() {
    let double = Double::start();
    let name = publish(&double);
    double.fault("manifests", Fault::Lie);
    let lied = anonymous().image(&double.reference(&format!("@{name}"))).await.unwrap_err();
    assert!(matches!(lied, Error::Corrupt(_)), "{lied}");
}

#[tokio::test]
async fn a_token_is_fetched_with_the_login_and_sent_only_where_it_belongs() {
    let double = Double::start();
    publish(&double);
    // me:hush
    double.want_token(Some("Basic bWU6aHVzaA=="));
    let refused = image(&double).await.unwrap_err();
    assert!(matches!(refused, Error::Denied(_)), "{refused}");
    let ours = registry(login("me", "hush"));
    let reference = double.reference(":main");
    let image = ours.image(&reference).await.unwrap();
    let elsewhere = Double::start();
    let blob = elsewhere.blob(LAYER.to_vec());
    double.fault("blobs", Fault::Redirect(elsewhere.address));
    let dir = tempfile::tempdir().unwrap();
    ours.download(&reference, &image.layers[0], &dir.path().join("x"), &|_| {}).await.unwrap();
    let sent = &elsewhere.seen(&blob)[0];
    assert!(!sent.headers.contains_key("authorization"), "{sent:?}");
    let wrong = registry(login("me", "wrong")).image(&reference).await.unwrap_err();
    assert!(matches!(&wrong, Error::Denied(text) if !text.contains("wrong")), "{wrong}");
}

#[tokio::test]
async fn a_registry_may_want_the_login_itself() {
    let double = Double::start();
    publish(&double);
    double.want_basic("Basic bWU6aHVzaA==");
    assert!(matches!(image(&double).await, Err(Error::Denied(_))));
    let reference = double.reference(":main");
    registry(login("me", "hush")).image(&reference).await.unwrap();
}

#[tokio::test]
async fn a_layer_goes_on_where_it_broke_off() {
    let double = Double::start();
    publish(&double);
    double.fault(&digest(LAYER), Fault::Cut(100_000));
    double.fault(&digest(LAYER), Fault::Cut(50_000));
    let (bytes, received) = layer(&double).await.unwrap();
    assert_eq!((bytes.as_slice(), received), (LAYER, LAYER.len() as u64));
    let asked = double.seen(&digest(LAYER));
    let ranges: Vec<Option<&String>> = asked.iter().map(|one| one.headers.get("range")).collect();
    assert_eq!(ranges[0], None);
    assert_eq!(ranges[1].unwrap(), "bytes=100000-");
    assert_eq!(ranges[2].unwrap(), "bytes=150000-");
}

#[tokio::test]
async fn a_later_process_goes_on_too_and_a_registry_without_ranges_begins_anew() {
    let double = Double::start();
    publish(&double);
    let image = image(&double).await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("layer");
    let reference = double.reference(":main");
    for (ranges, received) in [(true, 200_000), (false, 300_000)] {
        if !ranges {
            double.without_ranges();
        }
        std::fs::write(&path, &LAYER[..100_000]).unwrap();
        let got = anonymous().download(&reference, &image.layers[0], &path, &|_| {}).await;
        assert_eq!(got.unwrap().received, received);
        assert_eq!(std::fs::read(&path).unwrap(), LAYER);
    }
}

#[tokio::test]
async fn a_layer_that_is_not_its_digest_is_thrown_away() {
    let double = Double::start();
    publish(&double);
    double.fault(&digest(LAYER), Fault::Lie);
    assert!(matches!(layer(&double).await, Err(Error::Corrupt(_))));
    // What was left from elsewhere cannot spoil it for good.
    let image = image(&double).await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("layer");
    std::fs::write(&path, [0; 1000]).unwrap();
    let reference = double.reference(":main");
    let get = async || anonymous().download(&reference, &image.layers[0], &path, &|_| {}).await;
    assert!(matches!(get().await, Err(Error::Corrupt(_))));
    assert_eq!(get().await.unwrap().received, LAYER.len() as u64);
}

#[tokio::test]
async fn a_busy_registry_is_asked_again_when_it_says() {
    let double = Double::start();
    publish(&double);
    double.fault("manifests", Fault::Status(429, "Retry-After: 1\r\n"));
    double.fault("manifests", Fault::Status(503, "Retry-After: 0\r\n"));
    image(&double).await.unwrap();
    assert_eq!(double.seen("manifests").len(), 3);
    for _ in 0..5 {
        double.fault("manifests", Fault::Status(429, "Retry-After: 0\r\n"));
    }
    let error = image(&double).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error}");
}

#[tokio::test]
async fn a_slow_registry_is_waited_for_and_a_dead_one_is_not_for_ever() {
    let double = Double::start();
    publish(&double);
    double.fault(&digest(LAYER), Fault::Pause(Duration::from_millis(500)));
    assert_eq!(layer(&double).await.unwrap().0, LAYER);
    for _ in 0..5 {
        double.fault(&digest(LAYER), Fault::Cut(0));
    }
    assert!(matches!(layer(&double).await, Err(Error::Unavailable(_))));
}
