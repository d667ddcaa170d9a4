//! The template `standard`, built for real from Debian packages.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn bastide(data: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bastide"));
    command.args(arguments).env("BASTIDE_DATA_DIR", data).stdin(Stdio::null()).output().unwrap()
}

#[track_caller]
fn ok(data: &Path, arguments: &[&str]) -> String {
    let output = bastide(data, arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn it_has_what_it_promises_and_is_kept_until_it_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path();
    let built = ok(data, &["template", "build", "standard"]);
    assert!(built.starts_with("standard@sha256:"), "{built}");
    let checks = "id -un && sudo -n id -u && cat /etc/debian_version && git --version && curl --version \
                  && python3 -m venv /tmp/v && /tmp/v/bin/python -c 'import ssl, sqlite3; print(6 * 7)' \
                  && touch /workspace/w ~/h && locale -a | grep -c C.utf8";
    let said = ok(data, &["run", "--template", "standard", "--", "sh", "-c", checks]);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[..2], ["user", "0"], "{said}");
    assert!(lines[2].starts_with("12."), "{said}");
    assert!(said.ends_with("42\n1\n"), "{said}");

    assert_eq!(ok(data, &["template", "build", "standard"]), built, "it is kept");
    a_browser_built_on_it_opens_a_page_and_takes_a_screenshot(data);
    a_canvas_is_rendered(data);
    // Here for the same reason.
    ok(data, &["template", "build", "cua"]);
    super::sessions::display::a_client_sees_the_display_and_uses_it(data);
    ok(data, &["template", "rm", "cua"]);
    ok(data, &["template", "rm", "standard"]);
    assert_eq!(bastide(data, &["template", "rm", "standard"]).status.code(), Some(1));
    let gone = bastide(data, &["run", "--template", "standard", "--", "true"]);
    assert_eq!(gone.status.code(), Some(1));
}

/// Here, because it stands on the layers that are there now: nothing of them is built again.
fn a_browser_built_on_it_opens_a_page_and_takes_a_screenshot(data: &Path) {
    let events = ok(data, &["template", "build", "browser", "--json"]);
    let events: Vec<serde_json::Value> =
        events.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let steps: Vec<_> = events.iter().filter(|one| one["event"] == "step").collect();
    assert!(steps.iter().all(|one| one["total"] == 3 && one["cached"] == false), "{steps:?}");
    let built = events.last().unwrap();
    assert_eq!((&built["name"], &built["built"]), (&"browser".into(), &true.into()));
    // The page is served from inside; of a picture, the first pixel is as it was before any filter.
    let script = "\
        echo '<body style=background:#12ab34><script>document.title=1+1</script>' > page.html\n\
        python3 -m http.server 8000 >/dev/null 2>&1 &\n\
        until curl -so /dev/null http://127.0.0.1:8000/; do sleep 0.1; done\n\
        screenshot-page http://127.0.0.1:8000/page.html shot.png 320,200 >/dev/null 2>&1\n\
        python3 -c 'import zlib; png = open(\"shot.png\", \"rb\").read(); \
        print(png[:4], int.from_bytes(png[16:20]), int.from_bytes(png[20:24])); \
        at = png.index(b\"IDAT\"); print(zlib.decompressobj().decompress(png[at + 4:], 4)[1:4].hex())'";
    let said = ok(data, &["run", "--template", "browser", "--", "sh", "-c", script]);
    assert_eq!(said, "b'\\x89PNG' 320 200\n12ab34\n");
}

/// A script that draws, and a page that does.
fn a_canvas_is_rendered(data: &Path) {
    ok(data, &["template", "build", "canvas"]);
    let script = "\
        echo 'ctx.fillStyle = \"#12ab34\"; ctx.fillRect(0, 0, canvas.width, canvas.height)' > draw.js\n\
        (echo '<canvas width=7 height=5></canvas><script>'; \
        echo 'const canvas = document.querySelector(\"canvas\"), ctx = canvas.getContext(\"2d\")'; \
        cat draw.js; echo '</script>') > page.html\n\
        render-canvas draw.js one.png 320 200 && render-canvas page.html two.png\n\
        python3 -c 'import zlib\n\
        for name in (\"one.png\", \"two.png\"):\n \
        png = open(name, \"rb\").read(); at = png.index(b\"IDAT\")\n \
        print(int.from_bytes(png[16:20]), int.from_bytes(png[20:24]), \
        zlib.decompressobj().decompress(png[at + 4:], 4)[1:4].hex())'";
    let said = ok(data, &["run", "--template", "canvas", "--", "sh", "-c", script]);
    assert_eq!(said, "320 200 12ab34\n7 5 12ab34\n");
    ok(data, &["template", "rm", "canvas"]);
}

#[test]
fn a_killed_build_leaves_no_process_and_no_template() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path();
    let mut build = Command::new(env!("CARGO_BIN_EXE_bastide"))
        .args(["template", "build", "standard"])
        .env("BASTIDE_DATA_DIR", data)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let log = data.join("templates/standard/build.log");
    while !fs::read_to_string(&log).is_ok_and(|text| text.contains("apt-get update")) {
        assert!(build.try_wait().unwrap().is_none(), "the build ended by itself");
        std::thread::yield_now();
    }
    assert!(builders(data) > 0);
    build.kill().unwrap();
    build.wait().unwrap();
    // The kernel ends them; this waits for it, with nextest's own limit.
    while builders(data) > 0 {
        std::thread::yield_now();
    }
    let list = ok(data, &["template", "list", "--json"]);
    let list: serde_json::Value = serde_json::from_str(&list).unwrap();
    let standard =
        list["templates"].as_array().unwrap().iter().find(|one| one["name"] == "standard");
    assert_eq!(standard.unwrap()["built"], false);
}

/// Processes that were told to build in this data directory.
fn builders(data: &Path) -> usize {
    let data = data.to_str().unwrap().as_bytes();
    let names_it = |arguments: &[u8]| arguments.windows(data.len()).any(|part| part == data);
    let all = fs::read_dir("/proc").unwrap().flatten();
    all.filter(|entry| fs::read(entry.path().join("cmdline")).is_ok_and(|text| names_it(&text)))
        .count()
}
