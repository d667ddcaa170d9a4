//! Container images end to end: pulled by a create, from a registry on loopback, and imported from an
//! archive; what they hold runs.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::Command;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::Server;

const PROGRAMS: [&str; 2] = ["sh", "cat"];

fn digest(bytes: &[u8]) -> String {
    use sha2::{Digest, Sha256};
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

/// A shell with its libraries, and two files, one of which the next layer takes away.
fn base() -> Vec<u8> {
    let mut files = BTreeMap::new();
    for program in PROGRAMS {
        let path = std::fs::canonicalize(format!("/usr/bin/{program}")).unwrap();
        let listed = Command::new("ldd").arg(&path).output().unwrap();
        let listed = String::from_utf8(listed.stdout).unwrap();
        for library in listed.split_whitespace().filter(|word| word.starts_with('/')) {
            let inside = library.trim_start_matches('/').to_owned();
            files.insert(inside, std::fs::read(library).unwrap());
        }
        files.insert(format!("bin/{program}"), std::fs::read(path).unwrap());
    }
    files.insert("srv/kept".to_owned(), b"kept\n".to_vec());
    files.insert("srv/gone".to_owned(), b"gone\n".to_vec());
    let files: Vec<_> = files.into_iter().map(|(name, bytes)| (name, 0o755, bytes)).collect();
    tar(&files)
}

fn top() -> Vec<u8> {
    let passwd = b"root:x:0:0::/:/bin/sh\nworker:x:1234:1234::/:/bin/sh\n".to_vec();
    tar(&[
        ("srv/.wh.gone".into(), 0o644, Vec::new()),
        ("etc/passwd".into(), 0o644, passwd),
        ("srv/added".into(), 0o644, b"added\n".to_vec()),
    ])
}

fn config(layers: &[Vec<u8>]) -> Vec<u8> {
    let arch = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    let diffs: Vec<String> = layers.iter().map(|layer| digest(layer)).collect();
    let settings = json!({ "Env": ["PATH=/bin", "FROM_IMAGE=yes"], "User": "worker" });
    let config = json!({ "architecture": arch, "os": "linux", "config": settings,
        "rootfs": { "type": "layers", "diff_ids": diffs } });
    serde_json::to_vec(&config).unwrap()
}

type Content = BTreeMap<String, Vec<u8>>;

/// `team/app:1`, as a registry has it.
fn content() -> Content {
    let layers = [base(), top()];
    let config = config(&layers);
    let of = |kind: &str, bytes: &[u8]| json!({ "mediaType": kind, "digest": digest(bytes), "size": bytes.len() });
    let layer = |bytes: &Vec<u8>| of("application/vnd.oci.image.layer.v1.tar", bytes);
    let manifest = json!({ "schemaVersion": 2,
        "config": of("application/vnd.oci.image.config.v1+json", &config),
        "layers": layers.iter().map(layer).collect::<Vec<_>>() });
    let mut content = Content::new();
    content.insert("/v2/team/app/manifests/1".into(), serde_json::to_vec(&manifest).unwrap());
    for bytes in layers.into_iter().chain([config]) {
        content.insert(format!("/v2/team/app/blobs/{}", digest(&bytes)), bytes);
    }
    content
}

/// The same, as an OCI layout in an archive.
fn archive() -> Vec<u8> {
    let content = content();
    let mut files =
        vec![("oci-layout".to_owned(), 0o644, br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec())];
    let manifest = content["/v2/team/app/manifests/1"].clone();
    let index = json!({ "schemaVersion": 2, "manifests": [{
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "digest": digest(&manifest), "size": manifest.len() }] });
    files.push(("index.json".into(), 0o644, serde_json::to_vec(&index).unwrap()));
    for bytes in content.into_values() {
        let name = digest(&bytes).replace(':', "/");
        files.push((format!("blobs/{name}"), 0o644, bytes));
    }
    tar(&files)
}

struct Registry {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Registry {
    fn start(content: Content) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let asked = Arc::<Mutex<Vec<String>>>::default();
        let told = Arc::clone(&asked);
        // Ends with the process of the test.
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let lines = BufReader::new(stream.try_clone().unwrap()).lines();
                let head: Vec<String> =
                    lines.map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
                let path = head.first().and_then(|line| line.split(' ').nth(1)).unwrap_or_default();
                let (status, body) =
                    content.get(path).map_or((404, &b"{}"[..]), |body| (200, body));
                told.lock().unwrap().push(path.to_owned());
                let head = format!(
                    "HTTP/1.1 {status} X\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                    body.len()
                );
                // A client may have seen enough.
                let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
            }
        });
        Self { address, asked }
    }

    fn asked_for_blobs(&self) -> usize {
        self.asked.lock().unwrap().iter().filter(|path| path.contains("/blobs/")).count()
    }
}

fn create(server: &Server, image: &str) -> Value {
    let body = json!({ "image": image }).to_string();
    let answer =
        server.curl_with("/v1/sandboxes", &["-H", "Content-Type: application/json", "-d", &body]);
    serde_json::from_str(&answer).unwrap()
}

/// What its layers say together, as who it says.
fn runs_as_it_says(server: &Server, id: &str) {
    let command = "cat /srv/kept /srv/added /etc/hostname; echo $FROM_IMAGE; [ ! -e /srv/gone ] && echo taken away";
    let told = server.ok(&["sandbox", "exec", id, "--", "/bin/sh", "-c", command]);
    assert_eq!(told, "kept\nadded\nsandbox\nyes\ntaken away\n");
}

#[test]
fn an_image_is_pulled_by_a_create_and_kept_for_the_next() {
    let server = Server::start();
    let registry = Registry::start(content());
    let image = format!("{}/team/app:1", registry.address);
    let made = create(&server, &image);
    assert_eq!((&made["state"], &made["image"]), (&json!("running"), &json!(image)), "{made}");
    let id = made["id"].as_str().unwrap();
    runs_as_it_says(&server, id);
    let blobs = registry.asked_for_blobs();
    let again = create(&server, &image);
    let other = again["id"].as_str().unwrap();
    runs_as_it_says(&server, other);
    assert_eq!(registry.asked_for_blobs(), blobs, "what was fetched is kept");
    for id in [id, other] {
        server.ok(&["sandbox", "rm", id]);
    }
    server.end();
}

#[test]
fn an_image_that_was_changed_on_the_way_makes_nothing() {
    let server = Server::start();
    let mut content = content();
    for (path, bytes) in &mut content {
        // The last layer says something else than its digest.
        if path.ends_with(&digest(&top())) {
            bytes[600] ^= 1;
        }
    }
    let registry = Registry::start(content);
    let refused = create(&server, &format!("{}/team/app:1", registry.address));
    assert!(refused["status"].as_u64().is_some_and(|status| status >= 400), "{refused}");
    assert!(refused["detail"].as_str().unwrap().contains("digest"), "{refused}");
    let list = server.json(&["sandbox", "list"]);
    assert_eq!(list.as_array().map(Vec::len), Some(1), "{list}");
    server.end();
}

#[test]
fn an_archive_is_imported_and_runs() {
    let server = Server::start();
    let imported = server.fed(&["template", "import", "app", "-"], &archive());
    assert!(imported.status.success(), "{}", String::from_utf8_lossy(&imported.stderr));
    let made = create(&server, "app");
    let id = made["id"].as_str().unwrap_or_else(|| panic!("{made}"));
    runs_as_it_says(&server, id);
    server.ok(&["sandbox", "rm", id]);
    server.end();
}
