//! Layers that want out, and layers that are merely odd.

#![expect(clippy::unwrap_used, reason = "support of tests: a panic is how it tells")]

mod needs_root {
    use std::io::{Read, Seek, Write};
    use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
    use std::path::Path;

    use oci::{Error, Limits, Tree, Unpacked, unpack};
    use tar::{Builder, EntryType, Header};

    const LIMITS: Limits = Limits { bytes_max: 16 << 20, entries_max: 1000 };

    fn header(kind: EntryType, size: u64) -> Header {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(0o644);
        header.set_uid(7);
        header.set_gid(8);
        header.set_mtime(1_000_000);
        header.set_size(size);
        header
    }

    /// Writes a name as it is: the tar crate would refuse the hostile ones.
    fn entry(tar: &mut Builder<Vec<u8>>, kind: EntryType, name: &str, link: &str, content: &[u8]) {
        let mut header = header(kind, content.len() as u64);
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_cksum();
        tar.append(&header, content).unwrap();
    }

    fn unpacked(bytes: &[u8], into: &Path, limits: Limits) -> oci::Result<Unpacked> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file.rewind().unwrap();
        unpack(file, Tree::open(into).unwrap(), limits)
    }

    /// A directory of the host beside the tree; nothing in it may change.
    struct Place {
        dir: tempfile::TempDir,
    }

    impl Place {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            std::fs::create_dir(dir.path().join("tree")).unwrap();
            std::fs::create_dir(dir.path().join("host")).unwrap();
            std::fs::write(dir.path().join("host/file"), "host").unwrap();
            Self { dir }
        }

        fn tree(&self) -> std::path::PathBuf {
            self.dir.path().join("tree")
        }

        fn unpack(&self, tar: Builder<Vec<u8>>) -> oci::Result<Unpacked> {
            let done = unpacked(&tar.into_inner().unwrap(), &self.tree(), LIMITS);
            let host = self.dir.path().join("host");
            assert_eq!(std::fs::read_to_string(host.join("file")).unwrap(), "host");
            assert_eq!(std::fs::read_dir(&host).unwrap().count(), 1, "nothing came out");
            done
        }
    }

    #[test]
    fn files_keep_what_they_are_and_links_are_links() {
        let place = Place::new();
        let mut tar = Builder::new(Vec::new());
        entry(&mut tar, EntryType::Directory, "etc/", "", b"");
        entry(&mut tar, EntryType::Regular, "./etc/a", "", b"one");
        entry(&mut tar, EntryType::Link, "etc/b", "etc/a", b"");
        entry(&mut tar, EntryType::Symlink, "etc/c", "/etc/passwd", b"");
        entry(&mut tar, EntryType::Fifo, "pipe", "", b"");
        entry(&mut tar, EntryType::Regular, "deep/er/file", "", b"two");
        let done = place.unpack(tar).unwrap();
        let tree = place.tree();
        let a = std::fs::metadata(tree.join("etc/a")).unwrap();
        assert_eq!((a.uid(), a.gid(), a.mtime(), a.nlink()), (7, 8, 1_000_000, 2));
        assert_eq!(a.permissions().mode() & 0o7777, 0o644);
        assert_eq!(a.ino(), std::fs::metadata(tree.join("etc/b")).unwrap().ino());
        assert_eq!(std::fs::read_link(tree.join("etc/c")).unwrap(), Path::new("/etc/passwd"));
        assert!(std::fs::symlink_metadata(tree.join("pipe")).unwrap().file_type().is_fifo());
        assert_eq!(std::fs::read_to_string(tree.join("deep/er/file")).unwrap(), "two");
        assert_eq!((done.entries, done.skipped, done.diff_id.len()), (6, 0, 64));
    }

    #[test]
    fn whiteouts_and_opaque_directories_are_as_the_kernel_wants_them() {
        let place = Place::new();
        let mut tar = Builder::new(Vec::new());
        entry(&mut tar, EntryType::Regular, "etc/.wh.gone", "", b"");
        entry(&mut tar, EntryType::Regular, "var/.wh..wh..opq", "", b"");
        entry(&mut tar, EntryType::Regular, "var/fresh", "", b"x");
        place.unpack(tar).unwrap();
        let gone = std::fs::symlink_metadata(place.tree().join("etc/gone")).unwrap();
        assert!(gone.file_type().is_char_device() && gone.rdev() == 0);
        let mut value = [0u8; 8];
        let var = place.tree().join("var");
        let count = rustix::fs::getxattr(&var, "user.overlay.opaque", &mut value).unwrap();
        assert_eq!(&value[..count], b"y");
        assert!(var.join("fresh").exists());
    }

    #[test]
    fn no_name_and_no_link_leads_out_of_the_tree() {
        let out = |kind: EntryType, name: &str, link: &str| {
            let place = Place::new();
            let mut tar = Builder::new(Vec::new());
            entry(&mut tar, kind, name, link, b"");
            place.unpack(tar)
        };
        assert!(out(EntryType::Regular, "../host/new", "").is_err());
        assert!(out(EntryType::Regular, "a/../../host/new", "").is_err());
        assert!(out(EntryType::Directory, "../host/dir", "").is_err());
        assert!(out(EntryType::Symlink, "../host/link", "x").is_err());
        assert!(out(EntryType::Link, "mine", "../host/file").is_err());
        assert!(out(EntryType::Regular, "../host/.wh.file", "").is_err());
        assert!(out(EntryType::Regular, ".wh...", "").is_err());
        // Absolute is from the tree.
        assert!(out(EntryType::Regular, "/host/new", "").is_ok());
    }

    #[test]
    fn a_link_to_the_host_is_never_followed() {
        for target in ["../host", "/host", "/", "../../../../.."] {
            let place = Place::new();
            let host = place.dir.path().join("host").display().to_string();
            let target = if target == "/host" { host.as_str() } else { target };
            let mut tar = Builder::new(Vec::new());
            entry(&mut tar, EntryType::Symlink, "way", target, b"");
            entry(&mut tar, EntryType::Regular, "way/file", "", b"evil");
            entry(&mut tar, EntryType::Regular, "way/.wh.file", "", b"");
            // Where it leads is a place in the tree, or nowhere.
            let _ = place.unpack(tar);
            let mut tar = Builder::new(Vec::new());
            entry(&mut tar, EntryType::Symlink, "file", &format!("{host}/file"), b"");
            entry(&mut tar, EntryType::Regular, "file", "", b"mine");
            place.unpack(tar).unwrap();
            assert_eq!(std::fs::read_to_string(place.tree().join("file")).unwrap(), "mine");
        }
    }

    #[test]
    fn device_nodes_are_left_out_and_foreign_ids_belong_to_nobody() {
        let place = Place::new();
        let mut tar = Builder::new(Vec::new());
        let mut device = header(EntryType::Char, 0);
        device.set_path("dev-null").unwrap();
        device.set_device_major(1).unwrap();
        device.set_device_minor(3).unwrap();
        device.set_cksum();
        tar.append(&device, &[][..]).unwrap();
        let mut file = header(EntryType::Regular, 0);
        file.set_path("file").unwrap();
        file.set_uid(4_000_000);
        file.set_cksum();
        tar.append(&file, &[][..]).unwrap();
        assert_eq!(place.unpack(tar).unwrap().skipped, 1);
        assert!(!place.tree().join("dev-null").exists());
        assert_eq!(std::fs::metadata(place.tree().join("file")).unwrap().uid(), 65_534);
    }

    #[test]
    fn long_names_and_capabilities_come_through() {
        let place = Place::new();
        let mut tar = Builder::new(Vec::new());
        let long = format!("{}/{}", "d".repeat(120), "f".repeat(120));
        let mut file = header(EntryType::Regular, 1);
        tar.append_data(&mut file, &long, &b"x"[..]).unwrap();
        // cap_net_bind_service=ep
        let capability = [1u8, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        tar.append_pax_extensions([("SCHILY.xattr.security.capability", &capability[..])]).unwrap();
        entry(&mut tar, EntryType::Regular, "program", "", b"x");
        place.unpack(tar).unwrap();
        assert!(place.tree().join(long).exists());
        let mut value = [0u8; 64];
        let path = place.tree().join("program");
        let count = rustix::fs::getxattr(&path, "security.capability", &mut value).unwrap();
        assert_eq!(&value[..count], capability);
    }

    #[test]
    fn bombs_are_stopped_by_their_limits() {
        let place = Place::new();
        let mut tar = Builder::new(Vec::new());
        let zeroes = vec![0u8; 32 << 20];
        entry(&mut tar, EntryType::Regular, "big", "", &zeroes);
        let plain = tar.into_inner().unwrap();
        let gzip = compressed(&plain);
        assert!(gzip.len() < 1 << 19);
        let refused = unpacked(&gzip, &place.tree(), LIMITS).unwrap_err();
        assert!(matches!(refused, Error::TooLarge(_)), "{refused}");
        let written = std::fs::metadata(place.tree().join("big")).unwrap().len();
        assert!(written <= LIMITS.bytes_max);

        let mut tar = Builder::new(Vec::new());
        for number in 0..1001 {
            entry(&mut tar, EntryType::Regular, &format!("f{number}"), "", b"");
        }
        assert!(matches!(place.unpack(tar), Err(Error::TooLarge(_))));
        // A header that claims to be a name of 10 GiB.
        let mut tar = Builder::new(Vec::new());
        let mut name = header(EntryType::GNULongName, 10 << 30);
        name.set_cksum();
        tar.get_mut().write_all(name.as_bytes()).unwrap();
        assert!(matches!(place.unpack(tar), Err(Error::TooLarge(_))));
    }

    #[test]
    fn what_is_cut_or_no_tar_at_all_is_refused() {
        let place = Place::new();
        let mut tar = Builder::new(Vec::new());
        entry(&mut tar, EntryType::Regular, "file", "", &[7; 2000]);
        let whole = tar.into_inner().unwrap();
        let cut = &whole[..1500];
        assert!(matches!(unpacked(cut, &place.tree(), LIMITS), Err(Error::Corrupt(_))));
        let gzip = compressed(&whole);
        let cut = &gzip[..gzip.len() / 2];
        assert!(matches!(unpacked(cut, &place.tree(), LIMITS), Err(Error::Corrupt(_))));
        assert!(unpacked(&[9; 4096], &place.tree(), LIMITS).is_err());
    }

    #[test]
    fn gzip_and_zstd_are_the_same_layer() {
        let mut tar = Builder::new(Vec::new());
        entry(&mut tar, EntryType::Regular, "file", "", b"content");
        let plain = tar.into_inner().unwrap();
        let half = plain.len() / 2;
        let level = ruzstd::encoding::CompressionLevel::Fastest;
        let frame = |bytes: &[u8]| ruzstd::encoding::compress_to_vec(bytes, level);
        let zstd: Vec<u8> = [frame(&plain[..half]), frame(&plain[half..])].concat();
        let mut ids = Vec::new();
        for bytes in [plain.clone(), compressed(&plain), zstd] {
            let place = Place::new();
            ids.push(unpacked(&bytes, &place.tree(), LIMITS).unwrap().diff_id);
            assert_eq!(std::fs::read(place.tree().join("file")).unwrap(), b"content");
        }
        ids.dedup();
        assert_eq!(ids.len(), 1);
    }

    fn compressed(bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let level = flate2::Compression::fast();
        flate2::read::GzEncoder::new(bytes, level).read_to_end(&mut out).unwrap();
        out
    }
}
