//! Stored workspaces with real sandboxes, and secrets with a real data directory.

use std::fs;
use std::path::Path;

use super::Server;

fn create(server: &Server, name: &str) {
    let body = format!(
        r#"{{"template": "host", "name": "{name}", "tier": "persistent",
            "workspace_enabled": true, "app_id": "app", "capset_id": "default"}}"#
    );
    let made = server.curl_with("/v1/sandboxes", &["-d", &body]);
    assert!(made.contains(r#""state":"running""#), "{made}");
}

#[test]
fn what_one_sandbox_leaves_the_next_one_finds() {
    let server = Server::start();
    let local = server.files().join("in");
    fs::write(&local, "from outside").unwrap();
    server.ok(&["workspace", "put", "app", "default", "dir/in file", local.to_str().unwrap()]);
    create(&server, "one");
    let seen = server.ok(&["sandbox", "exec", "one", "--", "cat 'dir/in file'; stat -c %U dir"]);
    assert_eq!(seen, "from outsideuser\n");
    let make = "mkdir -p a/empty; ln -s ../dir a/link; echo run > a/run.sh; chmod 755 a/run.sh; \
                head -c 3000000 /dev/zero > large; rm 'dir/in file'";
    server.ok(&["sandbox", "exec", "one", "--", make]);
    server.ok(&["sandbox", "rm", "one"]);
    let files = server.json(&["workspace", "files", "app", "default"]);
    let paths: Vec<_> =
        files["files"].as_array().unwrap().iter().map(|file| file["path"].clone()).collect();
    assert_eq!(paths, ["a/run.sh", "large"]);

    create(&server, "two");
    let check = "readlink a/link; test -x a/run.sh && test -d a/empty && test -w large; echo $?; \
                 stat -c %s large; echo again > more; echo $WORKSPACE_APP_ID";
    let seen = server.ok(&["sandbox", "exec", "two", "--", check]);
    assert_eq!(seen, "../dir\n0\n3000000\napp\n");
    // A stopped one has nobody to ask: its disk is looked at.
    server.ok(&["sandbox", "stop", "two"]);
    server.ok(&["sandbox", "rm", "two"]);
    assert_eq!(server.ok(&["workspace", "get", "app", "default", "more"]), "again\n");
    server.ok(&["workspace", "rm", "app", "default", "--all"]);
    assert_eq!(server.json(&["workspace", "ls"])["workspaces"].as_array().unwrap().len(), 0);
    server.end();
}

#[test]
fn no_secret_lies_in_the_data_directory() {
    let server = Server::start();
    let secret = "sk-very-recognisable-hush";
    let made = server
        .fed(&["secrets", "create", "keys", "--from-file", "LLM_API_KEY=-"], secret.as_bytes());
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    server.ok(&[
        "sandbox",
        "create",
        "--template",
        "host",
        "--env",
        &format!("TOKEN={secret}"),
        "--name",
        "envy",
    ]);
    assert_eq!(server.ok(&["secrets", "show", "keys"]), "LLM_API_KEY\n");
    let mut found = Vec::new();
    look(&server.instance().data(), secret.as_bytes(), &mut found);
    assert!(found.is_empty(), "{found:?}");
    server.ok(&["sandbox", "rm", "envy"]);
    server.end();
}

/// Small files alone: disks of sandboxes are theirs.
pub(super) fn look(dir: &Path, secret: &[u8], found: &mut Vec<String>) {
    for entry in fs::read_dir(dir).unwrap().flatten() {
        let Ok(meta) = fs::symlink_metadata(entry.path()) else { continue };
        if meta.is_dir() && entry.file_name() != "pool" && entry.file_name() != "guest" {
            look(&entry.path(), secret, found);
        }
        if meta.is_file() && meta.len() < 16 << 20 {
            let bytes = fs::read(entry.path()).unwrap_or_default();
            if bytes.windows(secret.len()).any(|part| part == secret) {
                found.push(entry.path().display().to_string());
            }
        }
    }
}
