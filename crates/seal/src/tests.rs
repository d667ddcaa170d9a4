use super::*;

fn sealer(dir: &tempfile::TempDir, name: &str) -> Sealer {
    Sealer::open(&dir.path().join(name)).unwrap()
}

#[test]
fn what_was_sealed_opens_with_the_same_key_and_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let text = sealer(&dir, "a").seal_text(b"TOKEN=hush", "x").unwrap();
    assert!(!text.contains("hush"));
    assert_eq!(sealer(&dir, "a").unseal_text(&text, "x").unwrap(), b"TOKEN=hush");
    assert!(sealer(&dir, "b").unseal_text(&text, "x").is_err());
    let again = sealer(&dir, "a");
    for bad in ["zz", "00", "1:", "1:00", "1:zz", "", "é", &text[..40], &text[2..]] {
        assert!(again.unseal_text(bad, "x").is_err(), "{bad}");
    }
}

#[test]
fn it_opens_in_its_own_place_only() {
    let dir = tempfile::tempdir().unwrap();
    let sealer = sealer(&dir, "a");
    let bytes = sealer.seal(b"hush", "usr_ann/keys").unwrap();
    assert!(sealer.unseal(&bytes, "usr_bob/keys").is_err());
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 1;
        assert!(sealer.unseal(&changed, "usr_ann/keys").is_err(), "byte {at}");
    }
    assert_eq!(sealer.unseal(&bytes, "usr_ann/keys").unwrap(), b"hush");
}

#[test]
fn a_new_key_seals_and_old_ones_still_open_until_they_are_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a");
    let running = Sealer::open(&path).unwrap();
    let old = running.seal(b"hush", "").unwrap();
    add_key(&path).unwrap();
    let new = Sealer::open(&path).unwrap().seal(b"hush", "").unwrap();
    assert_eq!(running.unseal(&new, "").unwrap(), b"hush", "a running one learns of the key");
    assert!(running.is_newest(&new) && !running.is_newest(&old));
    assert_eq!(running.unseal(&old, "").unwrap(), b"hush");
    assert_eq!(forget_old_keys(&path).unwrap(), 1);
    assert!(!running.reload().unwrap());
    assert!(running.unseal(&old, "").is_err());
    assert_eq!(running.unseal(&new, "").unwrap(), b"hush");
}

#[test]
fn keys_are_given_in_hex_with_the_newest_first() {
    let (new, old) = ("ab".repeat(32), "cd".repeat(32));
    let before = Sealer::given(&old).unwrap().seal(b"hush", "").unwrap();
    let both = Sealer::given(&format!("{new}, {old}")).unwrap();
    assert_eq!(both.unseal(&before, "").unwrap(), b"hush");
    assert!(!both.is_newest(&before));
    assert!(both.is_newest(&both.seal(b"", "").unwrap()));
    for bad in ["", "ab", &old[1..], &format!("{new},"), &"zz".repeat(32)] {
        assert!(Sealer::given(bad).is_err(), "{bad}");
    }
}

#[test]
fn the_file_is_for_its_owner_alone() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a");
    drop(sealer(&dir, "a"));
    add_key(&path).unwrap();
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    std::fs::write(&path, b"short").unwrap();
    assert!(Sealer::open(&path).is_err());
}
