//! What becomes of what is traced.

use super::*;

#[test]
fn it_never_grows_beyond_its_bound_and_takes_no_link() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("log");
    let open = || {
        let mut book = Book { path: path.clone(), file: None, bytes: 0 };
        book.open();
        book
    };
    let line = format!("{}\n", "x".repeat(999));
    let mut book = open();
    for _ in 0..300 {
        book.write(&line);
    }
    book.write("last\n");
    // A daemon that comes after it goes on in the same file.
    open().write("after\n");
    let kept = std::fs::read_to_string(&path).unwrap();
    assert!(kept.ends_with("last\nafter\n"));
    assert!((1000..256 * 1024).contains(&kept.len()), "{}", kept.len());

    let secret = dir.path().join("secret");
    std::fs::write(&secret, "").unwrap();
    std::fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink(&secret, &path).unwrap();
    open().write("not here\n");
    assert_eq!(std::fs::read_to_string(&secret).unwrap(), "");
}

#[test]
fn an_event_is_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("log");
    let mut book = Book { path: path.clone(), file: None, bytes: 0 };
    book.open();
    tracing::subscriber::with_default(Diary(Mutex::new(book)), || {
        tracing::warn!(agent = "codex", "it died:\n{}", "ä".repeat(5000));
        tracing::debug!("not of interest");
    });
    let kept = std::fs::read_to_string(&path).unwrap();
    assert_eq!(kept.lines().count(), 1);
    assert!(kept.contains(" WARN it died: ää") && kept.len() <= 4097, "{}", kept.len());
}
