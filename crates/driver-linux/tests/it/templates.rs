//! Templates made step by step in sandboxes, and images from a registry on loopback, on a real kernel.

#![expect(clippy::unwrap_used, reason = "support of tests: a panic is how it tells")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::Command;
use std::sync::{Arc, Mutex};

use sha2::{Digest, Sha256};

/// Programs of this machine that the tiny image has, with the libraries that they load.
const PROGRAMS: &[&str] = &["sh", "cat", "mkdir", "sleep", "id"];

fn digest(bytes: &[u8]) -> String {
    let hex: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

fn tar(files: &[(String, u32, Vec<u8>)]) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for (name, mode, bytes) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(*mode);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        tar.append_data(&mut header, name, bytes.as_slice()).unwrap();
    }
    tar.into_inner().unwrap()
}

/// A layer with a shell and little else; no `/proc`, no `/workspace`, no `/dev`.
fn layer() -> Vec<u8> {
    let mut files = BTreeMap::new();
    for program in PROGRAMS {
        let path = std::fs::canonicalize(format!("/usr/bin/{program}")).unwrap();
        let listed = Command::new("ldd").arg(&path).output().unwrap();
        let listed = String::from_utf8(listed.stdout).unwrap();
        let libraries = listed.split_whitespace().filter(|word| word.starts_with('/'));
        for library in libraries.map(str::to_owned) {
            files.insert(
                library.trim_start_matches('/').to_owned(),
                std::fs::read(library).unwrap(),
            );
        }
        files.insert(format!("bin/{program}"), std::fs::read(path).unwrap());
    }
    let passwd = b"root:x:0:0::/:/bin/sh\nworker:x:1234:1234::/:/bin/sh\n".to_vec();
    files.insert("etc/passwd".into(), passwd);
    let files: Vec<_> = files.into_iter().map(|(name, bytes)| (name, 0o755, bytes)).collect();
    tar(&files)
}

fn config(layer: &[u8], settings: &serde_json::Value) -> Vec<u8> {
    let arch = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    let config = serde_json::json!({ "architecture": arch, "os": "linux", "config": settings,
        "rootfs": { "type": "layers", "diff_ids": [digest(layer)] } });
    serde_json::to_vec(&config).unwrap()
}

/// As `docker save` writes it.
fn archive() -> Vec<u8> {
    let layer = layer();
    let config = config(&layer, &serde_json::json!({ "Env": ["PATH=/bin"] }));
    let manifest = serde_json::json!([{ "Config": "c.json", "RepoTags": ["tiny:1"],
        "Layers": ["l/layer.tar"] }]);
    tar(&[
        ("c.json".into(), 0o644, config),
        ("l/layer.tar".into(), 0o644, layer),
        ("manifest.json".into(), 0o644, serde_json::to_vec(&manifest).unwrap()),
    ])
}

/// A registry that has `team/app:1`, and counts.
struct Registry {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Registry {
    fn start() -> Self {
        let layer = layer();
        let settings = serde_json::json!({ "Env": ["PATH=/bin", "FROM_IMAGE=yes"],
            "User": "worker", "Cmd": ["/bin/sh", "-c", "id > /workspace/started; sleep 60"] });
        let config = config(&layer, &settings);
        let manifest = serde_json::json!({ "schemaVersion": 2,
            "config": { "mediaType": "application/vnd.oci.image.config.v1+json",
                "digest": digest(&config), "size": config.len() },
            "layers": [{ "mediaType": "application/vnd.oci.image.layer.v1.tar",
                "digest": digest(&layer), "size": layer.len() }] });
        let blob = |bytes: Vec<u8>| (format!("/v2/team/app/blobs/{}", digest(&bytes)), bytes);
        let manifest = serde_json::to_vec(&manifest).unwrap();
        let content: BTreeMap<String, Vec<u8>> =
            [blob(layer), blob(config), ("/v2/team/app/manifests/1".to_owned(), manifest)].into();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let registry = Self { address: listener.local_addr().unwrap(), asked: Arc::default() };
        let asked = Arc::clone(&registry.asked);
        // Ends with the process of the test.
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let mut line = String::new();
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                reader.read_line(&mut line).unwrap();
                let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
                while line.trim() != "" {
                    line.clear();
                    reader.read_line(&mut line).unwrap();
                }
                let body = content.get(&path);
                asked.lock().unwrap().push(path);
                let (status, body) = body.map_or((404, &b"{}"[..]), |body| (200, body));
                let length = body.len();
                let head = format!("HTTP/1.1 {status} X\r\nContent-Length: {length}\r\n\r\n");
                // A client may have seen enough.
                let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
            }
        });
        registry
    }

    fn asked_for(&self, word: &str) -> usize {
        self.asked.lock().unwrap().iter().filter(|path| path.contains(word)).count()
    }
}

mod needs_root {
    use driver::{Driver, ImageWanted, Launch};
    use driver_linux::template::{
        BuildOptions, Event, ImageAccess, TemplateStore, build, clean_up, dockerfile, import,
    };
    use driver_linux::{LinuxConfig, LinuxDriver};
    use model::{EndReason, Error, Policy, SandboxId};
    use sha2::{Digest as _, Sha256};

    use super::{Registry, archive, digest, layer};
    use crate::host::{Host, run, run_as, spec};

    struct Builder {
        host: Host,
        store: TemplateStore,
        context: tempfile::TempDir,
    }

    impl Builder {
        fn new() -> Self {
            let host = Host::new();
            let store = TemplateStore::open(&host.path().join("data")).unwrap();
            let name = "tiny".parse().unwrap();
            import(&store, archive().as_slice(), Some("tiny:1"), name, &mut |_| {}).unwrap();
            let context = tempfile::tempdir().unwrap();
            std::fs::write(context.path().join("file.txt"), "from the context\n").unwrap();
            Self { host, store, context }
        }

        /// Builds, and gives which steps were done before and what was printed.
        async fn build(&self, text: &str) -> (model::Result<()>, Vec<bool>, Vec<String>) {
            let options = BuildOptions {
                runtime_dir: self.host.path().join("runtime"),
                fresh: false,
                allow: Policy::none(),
                images: ImageAccess::default(),
                mirror: None,
            };
            let recipe = dockerfile("mine".parse().unwrap(), text, self.context.path()).unwrap();
            let (mut steps, mut lines) = (Vec::new(), Vec::new());
            let mut tell = |event| match event {
                Event::Step { cached, .. } => steps.push(cached),
                Event::Log(line) => lines.push(line),
                Event::Layer { .. } | Event::Done { .. } => {}
            };
            let built = Box::pin(build(&self.store, &recipe, &options, &mut tell)).await;
            let left = std::fs::read_dir(self.host.path().join("data/builds"));
            assert_eq!(left.map_or(0, Iterator::count), 0, "nothing is left of the build");
            (built.map(drop), steps, lines)
        }

        async fn sandbox(&self) -> (LinuxDriver, SandboxId) {
            let driver = self.host.driver().await;
            let spec = spec("mine");
            let id = spec.id;
            driver.create(Launch { spec, policy: Policy::none() }).await.unwrap();
            (driver, id)
        }
    }

    const GOOD: &str = "FROM tiny\nENV GREETING=hello\nWORKDIR /srv/app\nCOPY file.txt .\n\
        RUN cat file.txt > made && echo $GREETING >> made && echo working\n";

    #[tokio::test]
    async fn a_build_that_failed_goes_on_after_its_last_layer_and_is_never_half_seen() {
        let builder = Builder::new();
        let (failed, steps, lines) = builder.build(&format!("{GOOD}RUN exit 3\n")).await;
        let said = failed.unwrap_err().to_string();
        assert!(said.starts_with("step 4 of 4 failed (RUN exit 3): it exited with 3"), "{said}");
        assert_eq!((steps, lines), (vec![false; 4], vec!["working".to_owned()]));
        assert!(builder.store.get(&"mine".parse().unwrap()).unwrap().is_none());

        let end = "RUN mkdir /gone && echo kept > /kept\nUSER worker\n\
            CMD [\"/bin/sh\", \"-c\", \"id > /workspace/started; sleep 60\"]\n";
        let (built, steps, _) = builder.build(&format!("{GOOD}{end}")).await;
        built.unwrap();
        assert_eq!(steps, [true, true, true, false]);
        let (driver, id) = builder.sandbox().await;
        let (code, text) =
            run(&driver, id, "cat made /kept; echo $GREETING; id; until [ -s /workspace/started ]; do sleep 0.05; done; cat /workspace/started").await;
        let worker = "uid=1234(worker) gid=1234 groups=1234";
        assert_eq!(
            (code, text.as_str()),
            (0, format!("from the context\nhello\nkept\nhello\n{worker}\n{worker}\n").as_str())
        );
        driver.remove(id, EndReason::UserRequest).await.unwrap();
        driver.close().await;

        std::fs::write(builder.context.path().join("file.txt"), "changed\n").unwrap();
        let (built, steps, _) = builder.build(GOOD).await;
        built.unwrap();
        assert_eq!(steps, [true, false, false], "the content of a file is part of its step");
    }

    #[tokio::test]
    async fn what_is_not_there_to_be_copied_is_said_before_any_step() {
        let builder = Builder::new();
        let (failed, steps, _) = builder.build("FROM tiny\nRUN true\nCOPY gone /\n").await;
        let said = (failed.unwrap_err().to_string(), steps.len());
        assert_eq!(said, ("files: copy gone: no such file in the build context".to_owned(), 0));
        let (failed, ..) = builder.build("FROM host\nRUN true\n").await;
        assert!(failed.unwrap_err().to_string().contains("nothing is built on it"));
    }

    #[tokio::test]
    async fn a_hostile_step_finds_walls_and_its_output_is_harmless() {
        let builder = Builder::new();
        let secret = builder.host.path().join("secret");
        std::fs::write(&secret, "hush").unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let text = format!(
            "FROM tiny\nRUN cat {} ; echo 1 > /proc/sys/kernel/panic; \
             cat /proc/*/environ /proc/kcore; printf '\\033]0;title\\007red'; true\n",
            secret.display()
        );
        let (built, _, lines) = builder.build(&text).await;
        built.unwrap();
        let all = lines.join("\n");
        assert!(!all.contains("hush"), "{all}");
        assert!(all.contains("No such file") && all.contains("Read-only"), "{all}");
        assert!(!all.chars().any(|c| c.is_control() && c != '\n'), "{all:?}");
        drop(listener);
        assert_eq!(std::fs::read_to_string(secret).unwrap(), "hush");
    }

    #[tokio::test]
    async fn a_build_waits_for_who_cleans_up_after_one_that_was_killed() {
        let builder = Builder::new();
        let log = builder.store.build_log(&"mine".parse().unwrap()).display().to_string();
        let digest = Sha256::digest(log);
        let name: String = digest[..4].iter().map(|byte| format!("{byte:02x}")).collect();
        let data = builder.host.path().canonicalize().unwrap().join("data");
        let (yard, template) = (data.join("builds").join(name), data.join("templates/mine"));
        let locks = [(yard, "lock"), (template, ".lock")].map(|(dir, name)| {
            std::fs::create_dir_all(&dir).unwrap();
            let lock = std::fs::File::create(dir.join(name)).unwrap();
            lock.lock().unwrap();
            lock
        });
        let cleaning = async {
            tokio::time::sleep(std::time::Duration::from_millis(500)).await;
            drop(locks);
        };
        let (built, ()) = tokio::join!(builder.build("FROM tiny\nRUN true\n"), cleaning);
        built.0.unwrap();
    }

    #[tokio::test]
    async fn what_a_killed_build_left_is_found_and_removed() {
        let host = Host::new();
        let data = host.path().join("data");
        let yard = data.join("builds/01234567");
        let mut config = LinuxConfig::new(yard.clone());
        config.runtime_dir = host.path().join("runtime");
        let driver = LinuxDriver::open(config).await.unwrap();
        let spec = spec("host");
        let id = spec.id;
        driver.create(Launch { spec, policy: Policy::none() }).await.unwrap();
        let record = crate::host::run_record(&yard, id);
        let pid = record["pid"].as_i64().unwrap();
        // A build under way is nobody else's.
        let clean = async || clean_up(&data, &host.path().join("runtime")).await;
        assert_eq!(clean().await.unwrap(), 0);
        // The sandbox and the keeper go on, as they do when the process is killed.
        driver.close().await;
        assert!(std::path::Path::new(&format!("/proc/{pid}")).exists());
        assert_eq!(clean().await.unwrap(), 1);
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
        assert!(!yard.exists());
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        assert!(!mounts.contains("builds/01234567"), "{mounts}");
    }

    #[tokio::test]
    async fn a_server_removes_what_a_build_left_and_not_what_one_uses() {
        let host = Host::new();
        let yard = host.path().join("data/builds/01234567");
        let mut config = LinuxConfig::new(yard.clone());
        config.runtime_dir = host.path().join("runtime");
        let build = LinuxDriver::open(config).await.unwrap();
        let spec = spec("host");
        let id = spec.id;
        build.create(Launch { spec, policy: Policy::none() }).await.unwrap();
        let pid = crate::host::run_record(&yard, id)["pid"].as_i64().unwrap();
        let driver = host.driver().await;
        let alive = || std::path::Path::new(&format!("/proc/{pid}")).exists();
        for _ in 0..3 {
            driver.collect().await.unwrap();
        }
        assert!(yard.exists() && alive(), "a build under way is nobody else's");
        // The sandbox and the keeper go on, as they do when the process is killed.
        build.close().await;
        for _ in 0..2 {
            driver.collect().await.unwrap();
        }
        assert!(!yard.exists() && !alive());
        driver.close().await;
    }

    #[tokio::test]
    async fn a_step_gains_no_privileges() {
        let builder = Builder::new();
        let text = "FROM tiny\nRUN cat /proc/self/status\n";
        let (built, _, lines) = builder.build(text).await;
        built.unwrap();
        assert!(lines.contains(&"NoNewPrivs:\t1".to_owned()), "{lines:?}");
    }

    fn wanted(registry: &Registry, tail: &str, by_operator: bool) -> ImageWanted {
        let reference = format!("{}/team/app{tail}", registry.address);
        ImageWanted { reference, owner: "usr_a".parse().unwrap(), by_operator }
    }

    #[tokio::test]
    async fn an_image_is_pulled_once_for_all_who_want_it_and_runs_as_it_says() {
        let host = Host::new();
        let registry = Registry::start();
        let mut config = host.config();
        config.images.allowed_registries = vec![registry.address.to_string()];
        let driver = LinuxDriver::open(config).await.unwrap();
        let image = wanted(&registry, ":1", false);
        let (one, two) = tokio::join!(driver.pull(&image), driver.pull(&image));
        let template = one.unwrap();
        assert_eq!(template, two.unwrap());
        assert_eq!(registry.asked_for(&digest(&layer())), 1);
        assert_eq!(template.image.as_deref(), Some(image.reference.as_str()));
        driver.pull(&image).await.unwrap();
        assert_eq!(registry.asked_for("manifests"), 1, "a tag is believed for a minute");

        let mut spec = spec("host");
        spec.template = template.name.clone();
        let id = spec.id;
        driver.create(Launch { spec, policy: Policy::none() }).await.unwrap();
        let (code, text) =
            run(&driver, id, "echo $FROM_IMAGE; id; until [ -s /workspace/started ]; do sleep 0.05; done; cat /workspace/started; echo x > file; cat file")
                .await;
        let worker = "uid=1234(worker) gid=1234 groups=1234";
        assert_eq!((code, text), (0, format!("yes\n{worker}\n{worker}\nx\n")));
        let (_, text) = run_as(&driver, id, Some("7:8"), "id").await;
        assert_eq!(text, "uid=7 gid=8 groups=8\n", "a number needs no account");
        driver.collect().await.unwrap();
        driver.stop(id, EndReason::Idle).await.unwrap();
        driver.start(id, Policy::none()).await.unwrap();
        assert_eq!(run(&driver, id, "cat file").await.1, "x\n");

        let gone = driver.pull(&wanted(&registry, ":2", false)).await.unwrap_err();
        assert!(matches!(&gone, Error::Invalid { field, .. } if field == "image"), "{gone}");
        driver.remove(id, EndReason::UserRequest).await.unwrap();
        driver.close().await;
    }

    #[tokio::test]
    async fn others_than_the_operator_have_what_is_listed_and_nobody_an_address_inside() {
        let host = Host::new();
        let registry = Registry::start();
        let mut config = host.config();
        config.images.allowed_registries = vec!["*".into()];
        let driver = LinuxDriver::open(config).await.unwrap();
        let refused = driver.pull(&wanted(&registry, ":1", false)).await.unwrap_err().to_string();
        assert!(refused.contains("private"), "{refused}");
        assert_eq!(registry.asked_for(""), 0, "nobody was dialled");
        tokio::time::sleep(std::time::Duration::from_secs(6)).await;
        driver.pull(&wanted(&registry, ":1", true)).await.unwrap();
        driver.close().await;
        let driver = host.driver().await;
        let refused = driver.pull(&wanted(&registry, ":1", false)).await.unwrap_err().to_string();
        assert!(refused.contains("is not allowed here"), "{refused}");
        driver.close().await;
    }
}
