//! Archives of images: both forms, and what is wrong with some.

#![expect(clippy::unwrap_used, reason = "support of tests: a panic is how it tells")]

use oci::{Archive, Error};
use serde_json::{Value, json};

use crate::double::digest;

const LAYER: &[u8] = b"a layer";

fn arch() -> &'static str {
    if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" }
}

fn config() -> Vec<u8> {
    let config = json!({ "architecture": arch(), "os": "linux", "config": { "Cmd": ["sh"] },
        "rootfs": { "type": "layers", "diff_ids": [digest(LAYER)] } });
    serde_json::to_vec(&config).unwrap()
}

fn tar(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for (name, bytes) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        tar.append_data(&mut header, name, *bytes).unwrap();
    }
    tar.into_inner().unwrap()
}

fn layout(entries: &[Value], leave_out: &str) -> Vec<u8> {
    let blob = |bytes: &[u8]| (format!("blobs/sha256/{}", &digest(bytes)[7..]), bytes.to_vec());
    let config = config();
    let manifest = json!({ "schemaVersion": 2,
        "config": { "mediaType": "application/vnd.oci.image.config.v1+json",
            "digest": digest(&config), "size": config.len() },
        "layers": [{ "mediaType": "application/vnd.oci.image.layer.v1.tar",
            "digest": digest(LAYER), "size": LAYER.len() }] });
    let manifest = serde_json::to_vec(&manifest).unwrap();
    let entries: Vec<Value> = entries
        .iter()
        .map(|annotations| {
            json!({ "mediaType": "application/vnd.oci.image.manifest.v1+json",
                "digest": digest(&manifest), "size": manifest.len(), "annotations": annotations })
        })
        .collect();
    let index = serde_json::to_vec(&json!({ "schemaVersion": 2, "manifests": entries })).unwrap();
    let mut files = vec![("index.json".to_owned(), index)];
    files.extend([blob(LAYER), blob(&config), blob(&manifest)]);
    files.retain(|(name, _)| !name.contains(leave_out) || leave_out.is_empty());
    let files: Vec<(&str, &[u8])> =
        files.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice())).collect();
    tar(&files)
}

fn image(archive: &[u8], name: Option<&str>) -> oci::Result<oci::Image> {
    let dir = tempfile::tempdir().unwrap();
    let archive = Archive::read(archive, dir.path(), 1 << 20)?;
    let image = archive.image(name)?;
    for layer in &image.layers {
        assert_eq!(std::fs::read(archive.blob(&layer.digest)).unwrap(), LAYER);
    }
    Ok(image)
}

fn named(tag: &str) -> Value {
    json!({ "org.opencontainers.image.ref.name": tag })
}

#[test]
fn an_oci_layout_is_read() {
    let found = image(&layout(&[named("1.0")], ""), None).unwrap();
    assert_eq!(found.config.command, ["sh"]);
    let two = layout(&[named("1.0"), named("2.0")], "");
    assert!(image(&two, Some("2.0")).is_ok());
    let error = image(&two, None).unwrap_err().to_string();
    assert!(error.contains("1.0, 2.0"), "{error}");
    assert!(matches!(image(&two, Some("3.0")), Err(Error::Unknown(_))));
}

#[test]
fn what_docker_saves_is_read() {
    let manifest = json!([{ "Config": "abc.json", "RepoTags": ["app:1"],
        "Layers": ["x/layer.tar"] }]);
    let manifest = serde_json::to_vec(&manifest).unwrap();
    let config = config();
    let files: [(&str, &[u8]); 3] =
        [("x/layer.tar", LAYER), ("abc.json", &config), ("manifest.json", &manifest)];
    let saved = tar(&files);
    assert_eq!(image(&saved, Some("app:1")).unwrap().layers.len(), 1);
    assert_eq!(image(&saved, None).unwrap().digest, digest(&config));
}

#[test]
fn what_lacks_something_or_is_something_else_is_refused() {
    let layer = &digest(LAYER)[7..];
    let error = image(&layout(&[named("1.0")], layer), None).unwrap_err();
    assert!(matches!(&error, Error::Corrupt(text) if text.contains("lacks")), "{error}");
    assert!(matches!(image(&tar(&[("a", b"b")]), None), Err(Error::Invalid(_))));
    let noise: Vec<u8> = (0..4096u32).map(|n| (n * 7 % 251) as u8).collect();
    for (what, bytes) in [("cut off", &b"no tar at all"[..]), ("noise", &noise)] {
        let error = image(bytes, None).unwrap_err().to_string();
        assert_eq!(error, "not an image archive: it is no tar, or cut off", "{what}");
    }
    let large = tar(&[("big", &vec![0; 2 << 20])]);
    assert!(matches!(image(&large, None), Err(Error::TooLarge(_))));
}
