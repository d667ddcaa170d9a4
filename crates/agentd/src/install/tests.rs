//! Against a registry on loopback that can be told to misbehave.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::json;
use sha2::{Digest as _, Sha512};
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::PrivatePkcs8KeyDer;
use tokio_util::task::TaskTracker;

use super::{InstallError, Installed, Installer, RegistrySettings, package_of};

const PINNED: &str = "2.1.330";

/// One file of a package: its path in the archive, what it holds, its mode.
type Entry<'a> = (&'a str, &'a [u8], u32);

fn program() -> Vec<u8> {
    let machine = if cfg!(target_arch = "x86_64") { 62 } else { 183 };
    let mut elf = b"\x7fELF".to_vec();
    elf.resize(18, 0);
    elf.extend([machine, 0]);
    // Not compressible, so that a cut in the middle is one of the archive too.
    let mut state = 1_u32;
    elf.extend((0..40_000).map(|_| {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state.to_be_bytes()[0]
    }));
    elf
}

fn tarball(entries: &[Entry<'_>]) -> Vec<u8> {
    let mut archive = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
    for (path, bytes, mode) in entries {
        let mut header = tar::Header::new_ustar();
        // Not by `append_data`, which refuses what has to be refused here.
        header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
        header.set_size(bytes.len() as u64);
        header.set_mode(*mode);
        if *mode == 0 {
            header.set_entry_type(tar::EntryType::Symlink);
            header.set_link_name("/etc/passwd").unwrap();
            header.set_size(0);
        }
        header.set_cksum();
        archive.append(&header, if *mode == 0 { &[] } else { *bytes }).unwrap();
    }
    archive.into_inner().unwrap().finish().unwrap()
}

/// What the registry does beside answering.
#[derive(Default)]
struct Mood {
    /// Cut the tarball here, this many times.
    cut: Mutex<(usize, usize)>,
    tarballs: AtomicUsize,
    ranges: Mutex<Vec<String>>,
    /// Only documents of all versions, as some registries have.
    old_fashioned: bool,
    checksum_of: Option<Vec<u8>>,
}

struct Registry {
    address: String,
    /// What has to be trusted to believe it.
    certificate: Option<String>,
    mood: Arc<Mood>,
    tasks: TaskTracker,
}

impl Registry {
    async fn serve(archive: Vec<u8>, mood: Mood) -> Self {
        Self::serve_by("http", archive, mood).await
    }

    async fn serve_by(scheme: &str, archive: Vec<u8>, mood: Mood) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("{scheme}://{}", listener.local_addr().unwrap());
        let (tls, certificate) = (scheme == "https").then(tls).unzip();
        let (mood, tasks) = (Arc::new(mood), TaskTracker::new());
        let (base, shared, inner) = (address.clone(), Arc::clone(&mood), tasks.clone());
        tasks.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (base, mood, archive) = (base.clone(), Arc::clone(&shared), archive.clone());
                let tls = tls.clone();
                inner.spawn(async move { answer_by(tls, stream, &base, &mood, &archive).await });
            }
        });
        Self { address, certificate, mood, tasks }
    }

    fn installer(&self, dir: &Path) -> Installer {
        let address = Some(self.address.clone());
        Installer::new(dir, RegistrySettings { address, ..RegistrySettings::default() })
    }
}

trait Stream: AsyncRead + AsyncWrite + Unpin {}
impl<T: AsyncRead + AsyncWrite + Unpin> Stream for T {}

/// And the certificate of it, which nobody has signed.
fn tls() -> (TlsAcceptor, String) {
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".into()]).unwrap();
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key.into())
        .unwrap();
    (TlsAcceptor::from(Arc::new(config)), made.cert.pem())
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.tasks.close();
    }
}

async fn answer_by(
    tls: Option<TlsAcceptor>,
    stream: TcpStream,
    base: &str,
    mood: &Mood,
    archive: &[u8],
) {
    let Some(tls) = tls else { return answer(stream, base, mood, archive).await };
    // Who does not believe us goes away.
    if let Ok(stream) = tls.accept(stream).await {
        answer(stream, base, mood, archive).await;
    }
}

async fn answer(mut stream: impl Stream, base: &str, mood: &Mood, archive: &[u8]) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => return,
        }
    }
    let head = String::from_utf8(head).unwrap();
    let path = head.split(' ').nth(1).unwrap();
    if path.ends_with(".tgz") {
        return answer_tarball(stream, &head, mood, archive).await;
    }
    let digest = Sha512::digest(mood.checksum_of.as_deref().unwrap_or(archive));
    let sha512 = base64::engine::general_purpose::STANDARD.encode(digest);
    let dist =
        json!({"tarball": format!("{base}/x/-/x.tgz"), "integrity": format!("sha512-{sha512}")});
    let arch = if cfg!(target_arch = "x86_64") { "x64" } else { "arm64" };
    let main = json!({"version": PINNED, "dist": dist, "optionalDependencies": {
        format!("@anthropic-ai/claude-code-linux-{arch}"): PINNED,
    }});
    let one = path.ends_with(&format!("/{PINNED}")) || path.ends_with("/latest");
    let (status, body) = match (one, mood.old_fashioned) {
        (true, false) => ("200 OK", main),
        (false, true) => {
            let all = json!({"dist-tags": {"latest": PINNED}, "versions": {PINNED: main}});
            ("200 OK", all)
        }
        _ => ("404 Not Found", json!({"error": "not found"})),
    };
    let body = body.to_string();
    let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    let _ = stream.write_all(head.as_bytes()).await;
}

async fn answer_tarball(mut stream: impl Stream, head: &str, mood: &Mood, archive: &[u8]) {
    mood.tarballs.fetch_add(1, Ordering::SeqCst);
    let range = head.lines().find_map(|line| line.strip_prefix("range: bytes="));
    let from = range.map_or(0, |range| range.trim_end_matches('-').parse::<usize>().unwrap());
    mood.ranges.lock().unwrap().extend(range.map(str::to_owned));
    let (whole, rest) = (archive.len(), &archive[from.min(archive.len())..]);
    let status = match from {
        0 => "200 OK".to_owned(),
        from if from >= whole => "416 Range Not Satisfiable".to_owned(),
        _ => format!("206 Partial Content\r\ncontent-range: bytes {from}-{}/{whole}", whole - 1),
    };
    let _ = stream
        .write_all(
            format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n", rest.len()).as_bytes(),
        )
        .await;
    let cut = {
        let mut cut = mood.cut.lock().unwrap();
        cut.1 = cut.1.saturating_sub(1);
        (cut.1 > 0).then_some(cut.0)
    };
    let end = cut.map_or(rest.len(), |at| at.saturating_sub(from).min(rest.len()));
    let _ = stream.write_all(&rest[..end]).await;
}

fn good() -> Vec<u8> {
    tarball(&[("package/LICENSE.md", b"words", 0o644), ("package/claude", &program(), 0o755)])
}

async fn install(registry: &Registry, dir: &TempDir) -> Result<Installed, InstallError> {
    registry.installer(dir.path()).install("claude", None, false).await
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().map(Result::unwrap) {
        if entry.file_type().unwrap().is_dir() {
            found.extend(files(&entry.path()));
        } else if entry.file_name() != ".lock" {
            found.push(entry.path());
        }
    }
    found.sort();
    found
}

#[tokio::test]
async fn a_program_is_installed_from_the_package_of_this_platform() {
    let registry = Registry::serve(good(), Mood::default()).await;
    let dir = TempDir::new().unwrap();
    let installed = install(&registry, &dir).await.unwrap();
    assert_eq!(installed.version, PINNED);
    assert_eq!(std::fs::read(dir.path().join("bin/claude")).unwrap(), program());
    let mode = std::fs::metadata(&installed.program).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o755);
    let home = dir.path().join("programs/claude").join(PINNED);
    let wanted = [dir.path().join("bin/claude"), home.join("LICENSE.md"), home.join("claude")];
    assert_eq!(files(dir.path()), wanted, "nothing else is left");
}

#[tokio::test]
async fn a_registry_by_tls_is_believed_when_its_certificate_is_trusted() {
    let mood = Mood { cut: Mutex::new((15_000, 2)), ..Mood::default() };
    let registry = Registry::serve_by("https", good(), mood).await;
    let dir = TempDir::new().unwrap();
    let error = install(&registry, &dir).await.unwrap_err();
    assert!(error.to_string().contains("is out of reach"), "{error}");
    assert!(!dir.path().join("bin/claude").exists());

    let ca_file = dir.path().join("ca.pem");
    std::fs::write(&ca_file, registry.certificate.as_ref().unwrap()).unwrap();
    let address = Some(registry.address.clone());
    let settings =
        RegistrySettings { address, ca_file: Some(ca_file), ..RegistrySettings::default() };
    Installer::new(dir.path(), settings).install("claude", None, false).await.unwrap();
    assert_eq!(std::fs::read(dir.path().join("bin/claude")).unwrap(), program());
    assert_eq!(registry.mood.ranges.lock().unwrap().len(), 1, "the cut one went on");
}

#[tokio::test]
async fn a_registry_with_documents_of_all_versions_only_will_do() {
    let mood = Mood { old_fashioned: true, ..Mood::default() };
    let registry = Registry::serve(good(), mood).await;
    let dir = TempDir::new().unwrap();
    let installer = registry.installer(dir.path());
    let installed = installer.install("claude", Some("latest"), false).await.unwrap();
    assert_eq!(installed.version, PINNED);
}

#[tokio::test]
async fn what_is_there_is_not_fetched_again_unless_asked_for() {
    let registry = Registry::serve(good(), Mood::default()).await;
    let dir = TempDir::new().unwrap();
    let installer = registry.installer(dir.path());
    let (one, other) = tokio::join!(
        installer.install("claude", None, false),
        installer.install("claude", None, false),
    );
    assert_eq!(one.unwrap(), other.unwrap());
    assert_eq!(registry.mood.tarballs.load(Ordering::SeqCst), 1, "two at once do it once");
    installer.install("claude", None, true).await.unwrap();
    assert_eq!(registry.mood.tarballs.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_download_that_was_cut_goes_on_where_it_stopped() {
    let mood = Mood { cut: Mutex::new((15_000, 2)), ..Mood::default() };
    let registry = Registry::serve(good(), mood).await;
    let dir = TempDir::new().unwrap();
    install(&registry, &dir).await.unwrap();
    let ranges = registry.mood.ranges.lock().unwrap().clone();
    assert_eq!(ranges.len(), 1, "{ranges:?}");
    assert_ne!(ranges[0], "0-", "it begins behind what came");
}

#[tokio::test]
async fn a_complete_file_of_before_is_used() {
    let archive = good();
    let registry = Registry::serve(archive.clone(), Mood::default()).await;
    let dir = TempDir::new().unwrap();
    let partial = dir.path().join("programs/claude/.partial");
    std::fs::create_dir_all(&partial).unwrap();
    let name: String =
        Sha512::digest(&archive).iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    std::fs::File::create(partial.join(format!("{name}.tgz")))
        .unwrap()
        .write_all(&archive)
        .unwrap();
    install(&registry, &dir).await.unwrap();
    let ranges = registry.mood.ranges.lock().unwrap().clone();
    assert_eq!(ranges, [format!("{}-", archive.len())]);
}

#[tokio::test]
async fn bytes_with_another_checksum_are_thrown_away() {
    let mood = Mood { checksum_of: Some(b"something else".to_vec()), ..Mood::default() };
    let registry = Registry::serve(good(), mood).await;
    let dir = TempDir::new().unwrap();
    let error = install(&registry, &dir).await.unwrap_err();
    assert!(error.to_string().contains("checksum"), "{error}");
    assert_eq!(files(dir.path()), Vec::<PathBuf>::new());
}

#[track_caller]
fn refused(entries: &[Entry<'_>], why: &str) -> impl Future<Output = ()> {
    let (archive, why) = (tarball(entries), why.to_owned());
    async move {
        let registry = Registry::serve(archive, Mood::default()).await;
        let dir = TempDir::new().unwrap();
        let error = install(&registry, &dir).await.unwrap_err();
        assert!(error.to_string().contains(&why), "{error}");
        assert!(!dir.path().join("bin/claude").exists());
        assert!(!dir.path().join("programs/claude").join(PINNED).exists());
        assert!(!dir.path().join("evil").exists() && !dir.path().join("programs/evil").exists());
    }
}

#[tokio::test]
async fn packages_that_are_not_what_they_should_be_are_refused() {
    let elf = program();
    refused(
        &[("package/claude", b"#!/usr/bin/env node\n....................", 0o755)],
        "not native",
    )
    .await;
    refused(&[("package/claude", b"", 0o755)], "empty").await;
    refused(&[("package/other", &elf, 0o755)], "no program").await;
    let mut foreign = elf.clone();
    foreign[18] = 8;
    refused(&[("package/claude", &foreign, 0o755)], "another machine").await;
    refused(&[("package/../../../evil", &elf, 0o755)], "outside").await;
    refused(&[("/evil", &elf, 0o755)], "outside").await;
    refused(&[("package/claude", &elf, 0o755), ("package/link", b"", 0)], "other than files").await;
}

#[tokio::test]
async fn without_a_way_to_the_registry_it_says_so() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = Some(format!("http://{}", listener.local_addr().unwrap()));
    drop(listener);
    let dir = TempDir::new().unwrap();
    let settings = RegistrySettings { address, ..RegistrySettings::default() };
    let error =
        Installer::new(dir.path(), settings).install("claude", None, false).await.unwrap_err();
    assert!(error.to_string().contains("is out of reach"), "{error}");
    assert!(error.hint.contains("policy"), "{}", error.hint);
}

#[tokio::test]
async fn without_a_registry_it_says_so() {
    let dir = TempDir::new().unwrap();
    let installer = Installer::new(dir.path(), RegistrySettings::default());
    let error = installer.install("claude", None, false).await.unwrap_err();
    assert_eq!(error.to_string(), "no npm registry is configured");
}

#[tokio::test]
async fn a_version_that_does_not_exist_is_named() {
    let registry = Registry::serve(good(), Mood { old_fashioned: true, ..Mood::default() }).await;
    let dir = TempDir::new().unwrap();
    let installer = registry.installer(dir.path());
    let error = installer.install("claude", Some("0.0.1"), false).await.unwrap_err();
    assert!(error.to_string().ends_with("called: 0.0.1"), "{error}");
    let error = installer.install("claude", Some("../../x"), false).await.unwrap_err();
    assert!(error.to_string().starts_with("not a version"), "{error}");
}

#[test]
fn every_program_has_a_package_and_a_version() {
    for adapter in crate::agents::all() {
        let description = adapter.description();
        let package = package_of(description.id);
        assert_eq!(package.is_some(), description.program.is_some(), "{}", description.id);
        assert!(package.is_none_or(|package| super::table::check_version(package.version).is_ok()));
    }
}
