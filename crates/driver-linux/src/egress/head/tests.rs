//! Heads of real programs, and heads that try to hide whom they are for.

use proptest::prelude::*;

use super::*;

/// A `ClientHello` as `curl` sends it, with the server name in the middle of its extensions.
pub(super) fn client_hello(name: Option<&str>) -> Vec<u8> {
    let mut extensions = extension(23, &[]);
    if let Some(name) = name {
        extensions.extend(extension(0, &name_list(name)));
    }
    extensions.extend(extension(43, &[4, 3, 4, 3, 3]));
    record(&handshake(&extensions))
}

fn handshake(extensions: &[u8]) -> Vec<u8> {
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    body.push(32);
    body.extend([9; 32]);
    body.extend([0, 4, 0x13, 1, 0x13, 2, 1, 0]);
    body.extend(u16::try_from(extensions.len()).unwrap().to_be_bytes());
    body.extend(extensions);
    let length = u32::try_from(body.len()).unwrap().to_be_bytes();
    [&[1], &length[1..], &body].concat()
}

fn extension(kind: u16, data: &[u8]) -> Vec<u8> {
    let length = u16::try_from(data.len()).unwrap();
    [&kind.to_be_bytes()[..], &length.to_be_bytes(), data].concat()
}

fn name_list(name: &str) -> Vec<u8> {
    let length = u16::try_from(name.len()).unwrap();
    let entry = [&[0][..], &length.to_be_bytes(), name.as_bytes()].concat();
    [&(length + 3).to_be_bytes()[..], &entry].concat()
}

fn record(payload: &[u8]) -> Vec<u8> {
    [&[0x16, 3, 1][..], &u16::try_from(payload.len()).unwrap().to_be_bytes(), payload].concat()
}

#[track_caller]
fn check(head: &[u8], name: &str, verdict: Option<Verdict>) {
    let shown = String::from_utf8_lossy(head);
    assert_eq!(Head::read(head).differs_from(name), verdict, "{shown:?}");
    // However it is cut into pieces, nobody may be told too early that all is well.
    if verdict.is_some() {
        for end in 0..head.len() {
            let early = Head::read(&head[..end]);
            assert_ne!(early.differs_from(name), None, "passed after {end} bytes of {shown:?}");
        }
    }
}

#[test]
fn tls_must_name_the_host() {
    check(&client_hello(Some("example.com")), "example.com", None);
    check(&client_hello(Some("EXAMPLE.com")), "example.com", None);
    check(&client_hello(None), "example.com", Some(Verdict::NoSni));
    check(&client_hello(Some("evil.com")), "example.com", Some(Verdict::SniDiffers));
    check(&client_hello(Some("")), "example.com", Some(Verdict::SniDiffers));
}

#[test]
fn an_encrypted_name_is_judged_by_the_one_outside() {
    // What browsers send to everybody (RFC 9849 section 6.2), and what hides a name, look the same.
    let outer = |name| [extension(0xfe0d, &[0; 200]), extension(0, &name_list(name))].concat();
    check(&record(&handshake(&outer("a.com"))), "a.com", None);
    check(&record(&handshake(&outer("public.cdn"))), "a.com", Some(Verdict::SniDiffers));
    let nameless = record(&handshake(&extension(0xfe0d, &[0; 200])));
    check(&nameless, "a.com", Some(Verdict::NoSni));
}

#[test]
fn a_client_hello_of_old_names_nobody() {
    check(&[0x80, 0x2e, 1, 3, 3, 0, 0x15], "a.com", Some(Verdict::NoSni));
    check(&[0x80, 0x2e, 1, 0, 2, 0, 0x15], "a.com", Some(Verdict::NoSni));
    check(&[0x80, 0x2e, 7, 3], "a.com", None);
}

#[test]
fn a_client_hello_in_many_records_is_put_together() {
    let whole = client_hello(Some("evil.com"));
    let split: Vec<u8> = whole[5..].chunks(3).flat_map(record).collect();
    check(&split, "example.com", Some(Verdict::SniDiffers));
    let split: Vec<u8> = whole[5..].chunks(1).flat_map(record).collect();
    check(&split, "evil.com", None);
}

#[test]
fn two_server_names_are_unreadable() {
    let names = [extension(0, &name_list("a.com")), extension(0, &name_list("b.com"))].concat();
    check(&record(&handshake(&names)), "a.com", Some(Verdict::Unreadable));
    let inner = [&name_list("a.com")[2..], &name_list("b.com")[2..]].concat();
    let list = [&u16::try_from(inner.len()).unwrap().to_be_bytes()[..], &inner].concat();
    check(&record(&handshake(&extension(0, &list))), "a.com", Some(Verdict::Unreadable));
}

#[test]
fn broken_tls_is_unreadable() {
    check(&[0x16, 3, 1, 0, 0], "a.com", Some(Verdict::Unreadable));
    check(&[0x16, 3, 1, 0xff, 0xff], "a.com", Some(Verdict::Unreadable));
    check(&[0x16, 3, 1, 0, 1, 2], "a.com", Some(Verdict::Unreadable));
    // A length that never comes true.
    let endless = [record(&[1, 0xff, 0xff, 0xff]), record(&[0; 1 << 14])].concat();
    assert_eq!(Head::read(&endless), Head::Unreadable);
    let mut short = client_hello(Some("a.com"));
    short.truncate(40);
    assert_eq!(Head::read(&short), Head::More);
}

#[test]
fn http_must_name_the_host() {
    let get = |host: &str| format!("GET / HTTP/1.1\r\nA: b\r\nHost: {host}\r\n\r\n").into_bytes();
    for good in ["example.com", "Example.COM", "example.com:8080", "example.com."] {
        check(&get(good), "example.com", None);
    }
    for bad in ["evil.com", "evil.com:80", "example.com.evil.com", "", "example.com, evil.com"] {
        check(&get(bad), "example.com", Some(Verdict::HostDiffers));
    }
    check(b"GET / HTTP/1.0\r\n\r\n", "example.com", None);
    check(b"GET http://example.com/ HTTP/1.1\r\nHost: example.com\r\n\r\n", "example.com", None);
}

#[test]
fn http_cannot_name_another_host_elsewhere() {
    for head in [
        "GET http://evil.com/ HTTP/1.1\r\nHost: a.com\r\n\r\n",
        "GET http://a.com@evil.com/ HTTP/1.1\r\nHost: a.com\r\n\r\n",
        "CONNECT evil.com:443 HTTP/1.1\r\nHost: a.com\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a.com\r\nhost: evil.com\r\n\r\n",
        "\r\n\r\nGET / HTTP/1.1\r\nHost: evil.com\r\n\r\n",
        "GET / HTTP/1.1\nHost: evil.com\n\n",
        "A-METHOD-NOBODY-HAS-EVER-HEARD-OF_1 / HTTP/1.1\r\nHost: evil.com\r\n\r\n",
    ] {
        check(head.as_bytes(), "a.com", Some(Verdict::HostDiffers));
    }
    for head in [
        "GET / HTTP/1.1\r\nHost : evil.com\r\n\r\n",
        "GET / HTTP/1.1\r\nX: a\r\n Host: evil.com\r\n\r\n",
        "GET\t/ HTTP/1.1\r\nHost: evil.com\r\n\r\n",
        "GET / HTTP/1.1 x\r\nHost: evil.com\r\n\r\n",
        "get / http/1.1\r\nHost: evil.com\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ] {
        check(head.as_bytes(), "a.com", Some(Verdict::Unreadable));
    }
    let mut long = b"GET / HTTP/1.1\r\n".to_vec();
    long.extend(b"X: y\r\n".repeat(HEADERS_MAX + 1));
    check(&long, "a.com", Some(Verdict::Unreadable));
    assert_eq!(Head::read(&[b'A'; HEAD_MAX]), Head::Unreadable);
}

#[test]
fn other_protocols_name_nobody() {
    for head in [
        &b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n"[..],
        b"\0\0\0\x08\x04\xd2\x16\x2f",
        b"*1\r\n$4\r\nPING\r\n",
        b"AMQP\0\0\x09\x01",
        b"EHLO me\r\n",
        b"\x10\x0c\0\x04MQTT",
        b"PING\r\n",
    ] {
        check(head, "a.com", None);
    }
}

#[test]
fn git_names_its_host_and_waits_for_no_end_of_line() {
    let request = |rest: &str| format!("{:04x}{rest}", rest.len() + 4).into_bytes();
    let asked = request("git-upload-pack /repo.git\0host=a.com:9418\0\0version=2\0");
    check(&asked, "a.com", None);
    check(&asked, "b.com", Some(Verdict::HostDiffers));
    assert_eq!(Head::read(&asked[..asked.len() - 1]), Head::More);
    // What a server might read as HTTP is read as HTTP.
    let both = request("git-upload-pack / HTTP/1.1\r\nHost: b.com\r\n\r\n\0host=a.com\0");
    check(&both, "a.com", Some(Verdict::HostDiffers));
    let line = request("git-upload-pack / HTTP/1.1\r\nHost: b.com\r\n\r\n");
    check(&line, "a.com", Some(Verdict::HostDiffers));
}

proptest! {
    #[test]
    fn no_head_panics(head in prop::collection::vec(any::<u8>(), 0..300), tls in any::<bool>()) {
        let mut head = head;
        if tls {
            head.splice(0..0, [0x16, 3, 1]);
        }
        let _ = Head::read(&head).differs_from("a.com");
    }

    #[test]
    fn a_damaged_client_hello_for_another_host_never_speaks_to_ours(
        at in 0_usize..200, byte in any::<u8>(),
    ) {
        let mut hello = client_hello(Some("evil.com"));
        let at = at % hello.len();
        hello[at] = byte;
        prop_assert_ne!(Head::read(&hello), Head::Tls("a.com".into()));
    }
}
