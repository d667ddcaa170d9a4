//! A description that comes from elsewhere, as it changes, stays and goes.

use std::sync::atomic::{AtomicU32, Ordering};

use axum::Router;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

use super::*;

const NONE: Blocked = &[];

fn document(path: &str) -> String {
    format!("openapi: 3.0.0\npaths:\n  {path}: {{ get: {{ summary: One }} }}\n")
}

fn paths(found: &Found) -> Vec<String> {
    let document: Value = serde_json::from_str(&found.text).unwrap();
    document["paths"].as_object().unwrap().keys().cloned().collect()
}

/// A server of a description: what it has now, and how often it was asked and gave it.
#[derive(Default)]
struct Place {
    /// The status and the document, whose name is its `ETag`.
    now: Mutex<(u16, String)>,
    asked: AtomicU32,
    sent: AtomicU32,
}

impl Place {
    fn has(&self, status: u16, text: &str) {
        *self.now.lock().unwrap() = (status, text.to_owned());
    }

    fn counts(&self) -> (u32, u32) {
        (self.asked.load(Ordering::Relaxed), self.sent.load(Ordering::Relaxed))
    }
}

async fn answer(State(place): State<Arc<Place>>, headers: HeaderMap) -> Response {
    place.asked.fetch_add(1, Ordering::Relaxed);
    let (status, text) = place.now.lock().unwrap().clone();
    let etag = format!("\"{}\"", text.len());
    if headers.get(IF_NONE_MATCH).is_some_and(|known| known.as_bytes() == etag.as_bytes()) {
        return StatusCode::NOT_MODIFIED.into_response();
    }
    place.sent.fetch_add(1, Ordering::Relaxed);
    (StatusCode::from_u16(status).unwrap(), [(ETAG, etag)], text).into_response()
}

/// Its address, until it is dropped.
async fn serve(place: &Arc<Place>) -> (String, AbortOnDropHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = format!("http://{}/spec.yml", listener.local_addr().unwrap());
    let routes = Router::new().route("/spec.yml", get(answer)).with_state(Arc::clone(place));
    let serving = tokio_util::task::TaskTracker::new()
        .spawn(async move { axum::serve(listener, routes).await.unwrap() });
    (at, AbortOnDropHandle::new(serving))
}

/// As if it had been asked long ago.
fn age(source: &Source) {
    let mut kept = source.kept.lock().unwrap();
    let kept = kept.as_mut().unwrap();
    kept.looked_at = kept.looked_at.checked_sub(FRESH_FOR).unwrap();
}

#[tokio::test]
async fn a_url_is_asked_again_with_its_etag_and_what_has_not_changed_is_kept() {
    let place = Arc::new(Place::default());
    place.has(200, &document("/one"));
    let (at, _serving) = serve(&place).await;
    let source = Source::new(Some(&at), NONE).unwrap();
    assert_eq!(place.counts(), (0, 0), "nobody has called yet");

    let first = source.get(b"").await.unwrap();
    source.get(b"").await.unwrap();
    assert_eq!((paths(&first), place.counts()), (vec!["/one".to_owned()], (1, 1)));

    age(&source);
    let same = source.get(b"").await.unwrap();
    assert_eq!(place.counts(), (2, 1), "asked, and not sent again");
    assert!(Arc::ptr_eq(&first.text, &same.text), "nor prepared again");
    source.get(b"").await.unwrap();
    assert_eq!(place.counts(), (2, 1), "it is fresh again");

    place.has(200, &document("/another"));
    age(&source);
    let changed = source.get(b"").await.unwrap();
    assert_eq!((paths(&changed), place.counts()), (vec!["/another".to_owned()], (3, 2)));
}

#[tokio::test]
async fn what_was_good_outlives_its_server() {
    let place = Arc::new(Place::default());
    place.has(503, "");
    let (at, serving) = serve(&place).await;
    let source = Source::new(Some(&at), NONE).unwrap();
    let told = source.get(b"").await.unwrap_err();
    assert_eq!(told, "the API's OpenAPI document cannot be read");
    place.has(200, &document("/one"));
    source.get(b"").await.unwrap();
    for (status, text) in [(500, ""), (200, "no: document"), (200, "{"), (302, "")] {
        place.has(status, text);
        age(&source);
        let kept = source.get(b"").await.unwrap();
        assert_eq!(paths(&kept), ["/one"], "{status} {text}");
    }
    let (asked, _) = place.counts();
    source.get(b"").await.unwrap();
    assert_eq!(place.counts().0, asked, "nor is it asked again with every call");
    serving.abort();
    assert!(serving.await.unwrap_err().is_cancelled());
    age(&source);
    assert_eq!(paths(&source.get(b"").await.unwrap()), ["/one"]);
}

#[tokio::test]
async fn a_file_is_read_again_when_it_changes() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("spec.yml");
    std::fs::write(&file, document("/one")).unwrap();
    let source = Source::new(file.to_str(), NONE).unwrap();
    let first = source.get(b"").await.unwrap();
    assert_eq!(paths(&first), ["/one"]);
    let same = source.get(b"").await.unwrap();
    assert!(Arc::ptr_eq(&first.text, &same.text), "it is not prepared for every call");

    std::fs::write(&file, r#"{ "paths": { "/json": {} } }"#).unwrap();
    assert_eq!(paths(&source.get(b"").await.unwrap()), ["/json"]);
    for text in ["", "paths: 1", "{"] {
        std::fs::write(&file, text).unwrap();
        assert_eq!(paths(&source.get(b"").await.unwrap()), ["/json"], "{text:?}");
    }
    std::fs::remove_file(&file).unwrap();
    assert_eq!(paths(&source.get(b"").await.unwrap()), ["/json"]);
    std::fs::write(&file, document("/back")).unwrap();
    assert_eq!(paths(&source.get(b"").await.unwrap()), ["/back"]);
}

#[test]
fn a_file_that_is_no_description_is_told_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let check = |file: &Path, why: &str| {
        let told = Source::new(file.to_str(), NONE).err().map(|error| format!("{error:#}"));
        let told = told.unwrap_or_else(|| panic!("{} is taken", file.display()));
        assert!(told.starts_with("code.spec: ") && told.contains(why), "{told}");
        assert!(told.contains(file.to_str().unwrap()) && told.contains("\nhint: "), "{told}");
    };
    check(&dir.path().join("none.yml"), "No such file");
    check(dir.path(), "not a file");
    let file = dir.path().join("spec.yml");
    for (text, why) in [
        ("", "has no paths"),
        ("openapi: 3.0.0", "has no paths"),
        ("paths: [1]", "has no paths"),
        ("{ \"paths\": {", "read the OpenAPI document"),
    ] {
        std::fs::write(&file, text).unwrap();
        check(&file, why);
    }
    std::fs::write(&file, [0xff, 0xfe, 0]).unwrap();
    check(&file, "utf-8");
    let large = std::fs::File::create(&file).unwrap();
    large.set_len(DOCUMENT_BYTES_MAX + 1).unwrap();
    check(&file, "larger than");
}
