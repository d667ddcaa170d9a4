use std::os::unix::fs::symlink;

use super::*;

const DEFINITION: &str = r#"
name = "tiny"
description = "for tests"
base = "debian:bookworm"
user = "user"
limits = { vcpu = 1, cpu_fraction = 1.0, memory_mib = 64, pids = 64, disk_gb = 1 }
"#;

fn name(text: &str) -> TemplateName {
    text.parse().unwrap()
}

/// Writes a build as it is on disk, with one layer that is called the same.
fn put(store: &TemplateStore, template: &str, hex: &str) {
    let dir = store.dir(&name(template)).join(hex);
    fs::create_dir_all(&dir).unwrap();
    let unfinished = store.layers.begin().unwrap();
    store.layers.publish(&unfinished, hex, 7).unwrap();
    let meta = Meta {
        name: name(template),
        digest: format!("sha256:{hex}"),
        built_at: jiff::Timestamp::now(),
        bytes: 7,
        user: "user".to_owned(),
        sudo: true,
        nesting: false,
        limits: Definition::parse(DEFINITION).unwrap().limits(),
        env: std::collections::BTreeMap::new(),
        layers: vec![hex.to_owned()],
        uid: Some(1000),
        workdir: None,
        start: Vec::new(),
        image: None,
        passing: false,
    };
    fs::write(dir.join(META), serde_json::to_vec(&meta).unwrap()).unwrap();
}

fn make_current(store: &TemplateStore, template: &str, hex: &str) {
    let link = store.dir(&name(template)).join(CURRENT);
    let _ = fs::remove_file(&link);
    symlink(hex, link).unwrap();
}

#[test]
fn limits_in_which_nothing_runs_are_refused() {
    for (good, bad) in [
        ("vcpu = 1", "vcpu = 0"),
        ("cpu_fraction = 1.0", "cpu_fraction = 1.1"),
        ("memory_mib = 64", "memory_mib = 15"),
        ("pids = 64", "pids = 1"),
        ("disk_gb = 1", "disk_gb = 0"),
    ] {
        let error = Definition::parse(&DEFINITION.replace(good, bad)).unwrap_err().to_string();
        let field = bad.split(' ').next().unwrap();
        assert!(error.starts_with(&format!("{field}: must be ")), "{bad}: {error}");
    }
}

#[test]
fn every_built_in_definition_parses_and_has_a_name_of_its_own() {
    let mut names: Vec<_> = definitions().iter().map(|one| one.name().clone()).collect();
    let all = names.len();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), all);
    assert!(names.contains(&name("standard")));
    assert!(!names.contains(&name(HOST)));
}

#[test]
fn host_is_there_without_building() {
    let dir = tempfile::tempdir().unwrap();
    let store = TemplateStore::open(dir.path()).unwrap();
    let host = store.get(&name(HOST)).unwrap().unwrap();
    assert!(!host.sudo);
    assert_eq!(store.list().unwrap(), vec![host]);
}

#[test]
fn a_build_is_seen_only_once_it_is_current() {
    let dir = tempfile::tempdir().unwrap();
    let store = TemplateStore::open(dir.path()).unwrap();
    let hex = "a".repeat(64);
    put(&store, "tiny", &hex);
    assert_eq!(store.get(&name("tiny")).unwrap(), None);
    make_current(&store, "tiny", &hex);
    let built = store.get(&name("tiny")).unwrap().unwrap();
    assert_eq!(built.template.digest, format!("sha256:{hex}"));
    assert_eq!(
        built.layers,
        vec![dir.path().canonicalize().unwrap().join("layers").join(&hex).join("tree")]
    );
    assert_eq!(store.list().unwrap().len(), 2);
}

#[test]
fn an_old_build_is_found_by_its_digest_until_nothing_stands_on_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = TemplateStore::open(dir.path()).unwrap();
    let (old, new) = ("a".repeat(64), "b".repeat(64));
    put(&store, "tiny", &old);
    put(&store, "tiny", &new);
    make_current(&store, "tiny", &new);
    let digest = format!("sha256:{old}");

    assert_eq!(store.collect(&|_, used| used == digest).unwrap(), 0);
    assert!(store.get_digest(&name("tiny"), &digest).unwrap().is_some());
    assert_eq!(store.collect(&|_, _| false).unwrap(), 2, "the build and its layer");
    assert_eq!(store.get_digest(&name("tiny"), &digest).unwrap(), None);
    assert!(store.get(&name("tiny")).unwrap().is_some());
}

#[test]
fn a_removed_template_is_gone_at_once_and_its_bytes_with_the_next_collection() {
    let dir = tempfile::tempdir().unwrap();
    let store = TemplateStore::open(dir.path()).unwrap();
    let hex = "c".repeat(64);
    put(&store, "tiny", &hex);
    make_current(&store, "tiny", &hex);
    assert!(store.remove(&name("tiny")).unwrap());
    assert!(!store.remove(&name("tiny")).unwrap());
    assert_eq!(store.get(&name("tiny")).unwrap(), None);
    assert_eq!(store.collect(&|_, _| false).unwrap(), 2);
    assert!(!store.dir(&name("tiny")).join(&hex).exists());
    assert!(!store.layers.has(&hex));
}

#[test]
fn what_an_interrupted_build_left_is_collected_but_not_a_build_under_way() {
    let dir = tempfile::tempdir().unwrap();
    let store = TemplateStore::open(dir.path()).unwrap();
    let tiny = store.dir(&name("tiny"));
    fs::create_dir_all(tiny.join(format!("{UNFINISHED}1/rootfs"))).unwrap();
    let held = lock(&tiny).unwrap();
    assert_eq!(store.collect(&|_, _| false).unwrap(), 0);
    drop(held);
    assert_eq!(store.collect(&|_, _| false).unwrap(), 1);
}

#[test]
fn a_layer_stays_while_a_template_has_it_or_a_step_of_late_made_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = TemplateStore::open(dir.path()).unwrap();
    let (shared, own, step) = ("a".repeat(64), "b".repeat(64), "c".repeat(64));
    put(&store, "tiny", &shared);
    make_current(&store, "tiny", &shared);
    for id in [&own, &step] {
        store.layers.publish(&store.layers.begin().unwrap(), id, 1).unwrap();
    }
    store.layers.remember("key", &step).unwrap();
    let held = store.layers.hold().unwrap();
    assert_eq!(store.collect(&|_, _| false).unwrap(), 0, "somebody builds");
    drop(held);
    assert_eq!(store.collect(&|_, _| false).unwrap(), 1);
    assert!(store.layers.has(&shared) && !store.layers.has(&own));
    assert_eq!(store.layers.cached("key"), Some(step.clone()));
    assert_eq!(store.collect_older(&|_, _| false, Duration::ZERO).unwrap(), 1);
    assert!(store.layers.has(&shared) && !store.layers.has(&step));
    assert_eq!(store.layers.cached("key"), None);
}

#[test]
fn what_code_mode_stood_on_before_an_upgrade_goes_when_no_sandbox_stands_on_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = TemplateStore::open(dir.path()).unwrap();
    store.make_code_root().unwrap();
    let own = store.get(&TemplateName::of_code()).unwrap().unwrap();
    let root = |hex: &str| dir.path().join(format!("templates/.code-{hex}"));
    let (old, used) = ("a".repeat(64), "b".repeat(64));
    let older = root("0123456789abcdef");
    let gone = [root(&old), root(&format!("{old}-1")), older];
    let kept = [root(&used), own.layers[0].clone()];
    for dir in gone.iter().chain(&kept[..1]) {
        fs::create_dir_all(dir.join("usr/lib")).unwrap();
    }
    let digest = format!("sha256:{used}");
    let uses = |name: &TemplateName, asked: &str| name.is_of_code() && asked == digest;
    assert_eq!(store.collect(&uses).unwrap(), 3);
    assert!(gone.iter().all(|dir| !dir.exists()) && kept.iter().all(|dir| dir.exists()));
    assert_eq!(store.collect(&|_, _| false).unwrap(), 1, "now nobody stands on it");
    assert!(own.layers[0].join("usr/lib/bastide/code-runner").exists());
    assert_eq!(store.collect(&|_, _| false).unwrap(), 0);
}

#[test]
fn what_an_older_version_built_is_still_a_template() {
    let dir = tempfile::tempdir().unwrap();
    let store = TemplateStore::open(dir.path()).unwrap();
    let hex = "e".repeat(64);
    let build = store.dir(&name("old")).join(&hex);
    fs::create_dir_all(build.join(ROOTFS)).unwrap();
    let meta = format!(
        r#"{{"name": "old", "digest": "sha256:{hex}", "built_at": "2026-01-01T00:00:00Z",
        "bytes": 7, "user": "user", "sudo": true, "limits": {{"vcpu": 1, "cpu_fraction": 1.0,
        "memory_mib": 64, "pids": 64, "disk_gb": 1}}, "packages": ["bash=5"]}}"#
    );
    fs::write(build.join(META), meta).unwrap();
    make_current(&store, "old", &hex);
    let built = store.get(&name("old")).unwrap().unwrap();
    assert_eq!(built.layers, vec![build.canonicalize().unwrap().join(ROOTFS)]);
    assert_eq!((built.uid, built.start.len()), (1000, 0));
}

#[test]
fn a_built_in_template_is_not_removed_under_its_sandboxes() {
    let dir = tempfile::tempdir().unwrap();
    let store = TemplateStore::open(dir.path()).unwrap();
    let hex = "a".repeat(64);
    for template in ["standard", "mine"] {
        put(&store, template, &hex);
        make_current(&store, template, &hex);
        let sandbox = dir.path().join("sandboxes").join(template);
        fs::create_dir_all(&sandbox).unwrap();
        let spec = format!(r#"{{"spec": {{"name": "kind-fox-1", "template": "{template}"}}}}"#);
        fs::write(sandbox.join("spec.json"), spec).unwrap();
    }
    let error = store.remove(&name("standard")).unwrap_err().to_string();
    assert_eq!(error, "template standard is used by: kind-fox-1");
    assert!(store.get(&name("standard")).unwrap().is_some());
    assert!(store.remove(&name("mine")).unwrap(), "one's own is one's own affair");
    fs::remove_dir_all(dir.path().join("sandboxes/standard")).unwrap();
    assert!(store.remove(&name("standard")).unwrap());
}

#[test]
fn a_digest_cannot_name_another_directory() {
    let dir = tempfile::tempdir().unwrap();
    let store = TemplateStore::open(dir.path()).unwrap();
    put(&store, "tiny", &"d".repeat(64));
    for digest in ["", "sha256:", "../tiny", "sha256:..", "current"] {
        assert_eq!(store.get_digest(&name("tiny"), digest).unwrap(), None, "{digest}");
    }
}

#[track_caller]
fn check_refused(replace: &str, with: &str, field: &str) {
    let text = DEFINITION.replace(replace, with);
    assert_ne!(text, DEFINITION);
    let error = Definition::parse(&text).unwrap_err().to_string();
    assert!(error.starts_with(field), "{error}");
}

#[test]
fn a_definition_that_could_smuggle_an_option_or_a_path_is_refused() {
    check_refused("debian:bookworm", "debian:--help", "base");
    check_refused("debian:bookworm", "fedora:40", "base");
    check_refused("debian:bookworm", "template:../x", "base");
    check_refused("debian:bookworm", "image:A B", "base");
    check_refused("name = \"tiny\"", "name = \"image-abc\"", "name");
    check_refused("user = \"user\"", "user = \"-x\"", "user");
    check_refused("user = \"user\"", "user = \"user\"\npackages = [\"--option\"]", "packages");
    check_refused("user = \"user\"", "user = \"user\"\npackages = [\"a,b\"]", "packages");
    check_refused("limits", "files.\"/../x\".content = \"\"\nlimits", "files");
    check_refused("user = \"user\"", "user = \"user\"\nshell = \"zsh\"", "template");
}

#[test]
fn a_skeleton_is_made_once_with_its_users_and_links() {
    let dir = tempfile::tempdir().unwrap();
    let store = TemplateStore::open(dir.path()).unwrap();
    let skeleton = store.host_skeleton_dir();
    if !rustix::process::geteuid().is_root() {
        // Only root may give the home to its user; the failure leaves nothing behind.
        assert!(host_skeleton(skeleton).is_err());
        assert!(!skeleton.exists());
        return;
    }
    host_skeleton(skeleton).unwrap();
    let passwd = fs::read_to_string(skeleton.join("etc/passwd")).unwrap();
    assert!(passwd.contains("user:x:1000:1000:"));
    assert_eq!(fs::read_link(skeleton.join("bin")).unwrap(), Path::new("usr/bin"));
    fs::write(skeleton.join("marker"), "").unwrap();
    host_skeleton(skeleton).unwrap();
    assert!(skeleton.join("marker").exists());
    assert!(!skeleton.join("etc/shadow").exists());
}
