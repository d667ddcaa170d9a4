//! cp, files, export, import.

use std::fs;

use super::Server;

#[test]
fn a_file_goes_in_and_comes_out_as_it_was() {
    let server = Server::start();
    let bytes: Vec<u8> =
        (0..5_000_000_u32).map(|i| i.to_le_bytes()[usize::from(i % 2 == 0)]).collect();
    let local = server.files().join("a file");
    fs::write(&local, &bytes).unwrap();
    let local = local.to_str().unwrap();
    server.ok(&["sandbox", "cp", local, "box:/workspace/"]);
    server.ok(&["sandbox", "exec", "box", "--", "mv", "a file", "b"]);
    let back = server.files().join("back");
    server.ok(&["sandbox", "cp", "box:/workspace/b", back.to_str().unwrap()]);
    assert!(fs::read(&back).unwrap() == bytes);
    let missing =
        server.fed(&["sandbox", "cp", "box:/workspace/none", back.to_str().unwrap()], b"");
    assert_eq!(missing.status.code(), Some(1));
    assert!(fs::read(&back).unwrap() == bytes, "a failed download changes nothing");
    assert_eq!(fs::read_dir(server.files()).unwrap().count(), 2, "and leaves nothing");
    server.end();
}

#[test]
fn files_are_put_listed_shown_and_removed() {
    let server = Server::start();
    let put = server.fed(&["sandbox", "files", "put", "box", "/workspace/x.txt"], b"hello\n");
    assert!(put.status.success(), "{}", String::from_utf8_lossy(&put.stderr));
    assert_eq!(server.ok(&["sandbox", "files", "cat", "box", "/workspace/x.txt"]), "hello\n");
    let list = server.ok(&["sandbox", "files", "ls", "box"]);
    let line = list.lines().find(|line| line.ends_with("x.txt")).unwrap();
    assert!(line.contains("user") && line.contains(" 6 "), "{list}");
    server.ok(&["sandbox", "files", "rm", "box", "/workspace/x.txt"]);
    let gone = server.instance().exit_code(&["sandbox", "files", "rm", "box", "/workspace/x.txt"]);
    assert_eq!(gone.unwrap(), 1);
    server.end();
}

#[test]
fn a_workspace_travels_as_an_archive_also_when_stopped() {
    let server = Server::start();
    server.ok(&["sandbox", "exec", "box", "--", "mkdir -p d/e; echo deep > d/e/f"]);
    server.ok(&["sandbox", "stop", "box"]);
    let archive = server.files().join("w.tar");
    server.ok(&["sandbox", "export", "box", "--output", archive.to_str().unwrap()]);
    server.ok(&["sandbox", "start", "box"]);
    server.ok(&["sandbox", "exec", "box", "--", "rm -r d"]);
    server.ok(&["sandbox", "import", "box", archive.to_str().unwrap()]);
    assert_eq!(server.ok(&["sandbox", "exec", "box", "--", "cat d/e/f"]), "deep\n");
    server.end();
}

#[test]
fn a_directory_goes_in_and_comes_out_with_what_is_in_it() {
    let server = Server::start();
    let tree = server.files().join("tree");
    fs::create_dir_all(tree.join("deep/er")).unwrap();
    fs::write(tree.join("deep/er/file"), "words").unwrap();
    fs::write(tree.join("run.sh"), "#!/bin/sh\necho ran\n").unwrap();
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(tree.join("run.sh"), executable).unwrap();
    std::os::unix::fs::symlink("deep/er/file", tree.join("link")).unwrap();
    let local = tree.to_str().unwrap();
    let refused = server.fed(&["sandbox", "cp", local, "box:/workspace/"], b"");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("-r"), "{refused:?}");
    server.ok(&["sandbox", "cp", "-r", local, "box:/workspace/"]);
    server.ok(&["sandbox", "cp", "-r", local, "box:/workspace/a/b"]);
    let shown = "cat tree/link a/b/deep/er/file; ./tree/run.sh; echo new > tree/new";
    assert_eq!(server.ok(&["sandbox", "exec", "box", "--", shown]), "wordswordsran\n");
    let back = server.files().join("back");
    let fetch = ["sandbox", "cp", "-r", "box:/workspace/tree", back.to_str().unwrap()];
    // Of a stopped one too.
    server.ok(&["sandbox", "stop", "box"]);
    server.ok(&fetch);
    assert_eq!(fs::read_to_string(back.join("new")).unwrap(), "new\n");
    assert_eq!(fs::read_to_string(back.join("link")).unwrap(), "words");
    assert_eq!(fs::read_link(back.join("link")).unwrap().to_str(), Some("deep/er/file"));
    // Into what exists, below it; and never over what is there.
    server.ok(&fetch);
    assert!(back.join("tree/run.sh").exists());
    assert_eq!(server.instance().exit_code(&fetch).unwrap(), 1);
    let outside = ["sandbox", "cp", "-r", "box:/etc", back.to_str().unwrap()];
    assert_eq!(server.instance().exit_code(&outside).unwrap(), 1);
    let missing = ["sandbox", "cp", "-r", "box:/workspace/none", "nowhere"];
    assert_eq!(server.instance().exit_code(&missing).unwrap(), 1);
    server.end();
}
