//! Connections of real programs, and connections that try to reach a second host.

use proptest::prelude::*;

use super::*;

/// What goes on of `input`, whole and byte by byte alike, and how it ends.
#[track_caller]
fn carried(input: &[u8]) -> (String, Option<Verdict>) {
    let (whole, slowly) = (fed(input, input.len().max(1)), fed(input, 1));
    assert_eq!(whole.1, slowly.1);
    if whole.1.is_none() {
        assert_eq!(whole.0, slowly.0);
    }
    (String::from_utf8_lossy(&slowly.0).into_owned(), slowly.1)
}

fn fed(input: &[u8], size: usize) -> (Vec<u8>, Option<Verdict>) {
    let (mut requests, mut out) = (Requests::new("a.com"), Vec::new());
    for piece in input.chunks(size) {
        if let Err(verdict) = requests.feed(piece, &mut out) {
            return (out, Some(verdict));
        }
    }
    (out, None)
}

#[track_caller]
fn passes(input: &str) {
    assert_eq!(carried(input.as_bytes()), (input.to_owned(), None));
}

#[track_caller]
fn is_cut(input: &str, verdict: Verdict) {
    let (out, end) = carried(input.as_bytes());
    assert_eq!(end, Some(verdict), "{input:?}");
    assert!(!out.contains("evil"), "{out:?}");
}

const GOOD: &str = "GET / HTTP/1.1\r\nHost: a.com\r\n\r\n";
const EVIL: &str = "GET /x HTTP/1.1\r\nHost: evil.com\r\n\r\n";

#[test]
fn requests_of_all_kinds_follow_each_other() {
    let sized = "POST / HTTP/1.1\r\nHost: a.com\r\nContent-Length: 5\r\n\r\nhello";
    // What looks like a request is bytes of a chunk.
    let chunked = format!(
        "POST / HTTP/1.1\r\nHost: a.com\r\nTransfer-Encoding: chunked\r\n\r\n\
         5\r\nhello\r\n{:X};a=b\r\n{EVIL}\r\n0\r\nX: y\r\n\r\n",
        EVIL.len()
    );
    passes(&[GOOD, sized, GOOD, "\r\n", GOOD].concat());
    passes(&[&chunked, GOOD].concat());
    passes("GET / HTTP/1.0\r\n\r\n");
}

#[test]
fn a_later_request_cannot_go_to_another_host() {
    is_cut(&[GOOD, EVIL].concat(), Verdict::HostDiffers);
    is_cut(&[GOOD, "\r\n\r\n", EVIL].concat(), Verdict::HostDiffers);
    let sized = "POST / HTTP/1.1\r\nHost: a.com\r\nContent-Length: 2\r\n\r\nok";
    is_cut(&[sized, EVIL].concat(), Verdict::HostDiffers);
    let chunked =
        "POST / HTTP/1.1\r\nHost: a.com\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n";
    is_cut(&[chunked, EVIL].concat(), Verdict::HostDiffers);
    is_cut(
        &[GOOD, "GET http://evil.com/ HTTP/1.1\r\nHost: a.com\r\n\r\n"].concat(),
        Verdict::HostDiffers,
    );
    is_cut(&[GOOD, "SSH-2.0-x\r\nevil"].concat(), Verdict::Unreadable);
    is_cut(&[GOOD, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nevil"].concat(), Verdict::Unreadable);
}

#[test]
fn a_body_whose_end_is_in_two_places_is_refused() {
    for headers in [
        "Content-Length: 5\r\nTransfer-Encoding: chunked",
        "Content-Length: 5\r\nContent-Length: 6",
        "Content-Length: 5\r\nContent-Length: 5",
        "Content-Length: +5",
        "Content-Length: 5, 5",
        "Content-Length: ",
        "Content-Length: 99999999999999999999",
        "Transfer-Encoding: gzip, chunked",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding: \"chunked\"",
    ] {
        let head = format!("POST / HTTP/1.1\r\nHost: a.com\r\n{headers}\r\n\r\n");
        is_cut(&[&head, "0\r\n\r\n", EVIL].concat(), Verdict::Unreadable);
    }
    let old = "POST / HTTP/1.0\r\nHost: a.com\r\nTransfer-Encoding: chunked\r\n\r\n";
    is_cut(&[old, "0\r\n\r\n", EVIL].concat(), Verdict::Unreadable);
    let head = "POST / HTTP/1.1\r\nHost: a.com\r\nTransfer-Encoding: chunked\r\n\r\n";
    for chunks in [
        "2\nok\r\n0\r\n\r\n",
        "2\r\nok0\r\n\r\n",
        " 2\r\nok\r\n0\r\n\r\n",
        "0x2\r\nok\r\n0\r\n\r\n",
        "-2\r\nok\r\n0\r\n\r\n",
        "\r\n2\r\nok\r\n",
        "2\rx\r\nok\r\n",
        "0\r\nX: y\n\n",
        "FFFFFFFFFFFFFFFFF\r\n",
    ] {
        is_cut(&[head, chunks, EVIL].concat(), Verdict::Unreadable);
    }
}

#[test]
fn an_upgrade_waits_for_its_answer() {
    let upgrade =
        b"GET / HTTP/1.1\r\nHost: a.com\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    let begin = || {
        let (mut requests, mut out) = (Requests::new("a.com"), Vec::new());
        requests.feed(upgrade, &mut out).unwrap();
        assert!(requests.waits() && out == upgrade);
        out.clear();
        // Too early: held until it is known what it is.
        requests.feed(EVIL.as_bytes(), &mut out).unwrap();
        assert!(out.is_empty());
        (requests, out)
    };
    let (mut requests, mut out) = begin();
    assert!(!requests.heard(b"HTTP/1."));
    assert!(requests.heard(b"1 101 Switching Protocols\r\n"));
    requests.feed(b"\x81\x85", &mut out).unwrap();
    assert!(out.ends_with(b"\x81\x85"));
    let (mut requests, mut out) = begin();
    assert!(requests.heard(b"HTTP/1.1 200 OK\r\n"));
    assert_eq!(requests.feed(b"", &mut out), Err(Verdict::HostDiffers));
    let (mut requests, mut out) = begin();
    assert!(requests.heard(b""), "the other side ended");
    assert_eq!(requests.feed(b"", &mut out), Err(Verdict::HostDiffers));
    // On a connection that has been used before; but not behind a request that waits itself.
    for (heard, end) in [(true, None), (false, Some(Verdict::Unreadable))] {
        let (mut requests, mut out) = (Requests::new("a.com"), Vec::new());
        requests.feed(GOOD.as_bytes(), &mut out).unwrap();
        if heard {
            assert!(!requests.heard(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"));
        }
        assert_eq!(requests.feed(upgrade, &mut out).err(), end);
    }
    // Java says that it sends nothing.
    let java = "GET / HTTP/1.1\r\nHost: a.com\r\nContent-Length: 0\r\nUpgrade: websocket\r\n\r\n";
    let mut requests = Requests::new("a.com");
    requests.feed(java.as_bytes(), &mut Vec::new()).unwrap();
    assert!(requests.waits());
    // HTTP/2 names its hosts where nobody reads them.
    let h2c = "GET / HTTP/1.1\r\nHost: a.com\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n";
    let mut requests = Requests::new("a.com");
    requests.feed(h2c.as_bytes(), &mut Vec::new()).unwrap();
    assert!(!requests.waits());
}

proptest! {
    #[test]
    fn whatever_is_sent_first_no_head_for_another_host_goes_on(
        noise in "[a-zA-Z0-9 :;\\r\\n/.]{0,60}", length in 0_usize..40,
    ) {
        let input = format!(
            "POST / HTTP/1.1\r\nHost: a.com\r\nContent-Length: {length}\r\n\r\n{:length$}{noise}{EVIL}",
            ""
        );
        let (out, _) = carried(input.as_bytes());
        prop_assert!(!out.contains("evil.com"));
    }
}
