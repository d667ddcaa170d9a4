use super::*;

fn archive(entries: &[(tar::EntryType, &str, &str)]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (kind, name, content) in entries {
        let mut header = tar::Header::new_ustar();
        header.set_entry_type(*kind);
        header.set_mode(0o4777);
        header.set_size(if kind.is_file() { content.len() as u64 } else { 0 });
        if kind.is_symlink() || kind.is_hard_link() {
            header.set_link_name(content).unwrap();
        }
        // By hand: the library refuses to write such names, a sandbox does not.
        header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
        header.set_cksum();
        let body = if kind.is_file() { content.as_bytes() } else { &[] };
        builder.append(&header, body).unwrap();
    }
    builder.into_inner().unwrap()
}

#[test]
fn nothing_of_a_hostile_archive_is_written_elsewhere() {
    use tar::EntryType as Kind;
    let dir = tempfile::tempdir().unwrap();
    let outside = dir.path().join("outside");
    fs::create_dir(&outside).unwrap();
    let through = outside.display().to_string();
    let bytes = archive(&[
        (Kind::Regular, "good", "kept"),
        (Kind::Regular, "../escaped", "no"),
        (Kind::Fifo, "pipe", ""),
        (Kind::Link, "hard", "/etc/passwd"),
    ]);
    let to = dir.path().join("to");
    assert_eq!(unpack_to(bytes.as_slice(), &to).unwrap(), 3);
    assert_eq!(fs::read_to_string(to.join("good")).unwrap(), "kept");
    let mode =
        std::os::unix::fs::PermissionsExt::mode(&to.join("good").metadata().unwrap().permissions());
    assert_eq!(mode & 0o7000, 0, "not even set-user-id");
    assert!(!dir.path().join("escaped").exists() && !to.join("pipe").exists());

    let bytes = archive(&[(Kind::Symlink, "link", &through), (Kind::Regular, "link/file", "no")]);
    let to = dir.path().join("again");
    // Refused as a whole, or without that entry; never through the link.
    let _ = unpack_to(bytes.as_slice(), &to);
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    let left: Vec<_> = fs::read_dir(dir.path()).unwrap().flatten().map(|e| e.file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().contains("part")), "{left:?}");
}

#[test]
fn directories_are_below_the_workspace() {
    assert_eq!(below_workspace("/workspace/a/b/").ok(), Some("a/b".into()));
    assert_eq!(below_workspace("/workspace").ok(), Some(String::new()));
    assert!(below_workspace("/workspaces").is_err() && below_workspace("/tmp/x").is_err());
}
