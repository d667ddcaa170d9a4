//! Queries of well-behaved resolvers, and of others.

use std::net::Ipv4Addr;

use proptest::prelude::*;
use simple_dns::Name;

use super::*;

const ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 18, 1, 2);

fn policy() -> Policy {
    Policy::parse(&["example.com".into(), "*.packages.example:443".into(), "10.0.0.0/8".into()])
        .unwrap()
}

fn query(name: &str, kind: TYPE) -> Vec<u8> {
    let mut packet = Packet::new_query(77);
    packet.set_flags(PacketFlag::RECURSION_DESIRED);
    let name = Name::new_unchecked(name);
    packet.questions.push(Question::new(name, kind.into(), CLASS::IN.into(), false));
    packet.build_bytes_vec().unwrap()
}

fn ask(query: &[u8]) -> Option<Vec<u8>> {
    answer(query, &policy(), |_| ADDRESS, drop)
}

/// The code and the addresses of an answer.
#[track_caller]
fn check(query: &[u8], code: RCODE, addresses: &[Ipv4Addr]) {
    let bytes = ask(query).unwrap();
    assert!(bytes.len() <= 512);
    let reply = Packet::parse(&bytes).unwrap();
    assert_eq!(reply.id(), u16::from_be_bytes([query[0], query[1]]));
    assert!(reply.has_flags(PacketFlag::RESPONSE));
    assert_eq!(reply.rcode(), code);
    let found: Vec<Ipv4Addr> = reply
        .answers
        .iter()
        .filter_map(|record| match &record.rdata {
            RData::A(a) => Some(Ipv4Addr::from(a.address)),
            _ => None,
        })
        .collect();
    assert_eq!(found, addresses);
}

#[test]
fn allowed_names_get_the_address_that_stands_for_them() {
    check(&query("example.com", TYPE::A), RCODE::NoError, &[ADDRESS]);
    check(&query("EXAMPLE.com", TYPE::A), RCODE::NoError, &[ADDRESS]);
    check(&query("files.packages.example", TYPE::A), RCODE::NoError, &[ADDRESS]);
    check(&query("localhost", TYPE::A), RCODE::NoError, &[Ipv4Addr::LOCALHOST]);
}

#[test]
fn other_records_of_allowed_names_are_empty() {
    for kind in [TYPE::AAAA, TYPE::HTTPS, TYPE::SVCB, TYPE::TXT, TYPE::MX] {
        check(&query("example.com", kind), RCODE::NoError, &[]);
    }
}

#[test]
fn refused_names_do_not_exist_and_are_logged() {
    for name in
        ["example.org", "packages.example", "a.example.com", "10.0.0.1", "1.0.0.10.in-addr.arpa"]
    {
        check(&query(name, TYPE::A), RCODE::NameError, &[]);
    }
    let mut refused = Vec::new();
    answer(
        &query("Evil.Example.ORG", TYPE::A),
        &policy(),
        |_| unreachable!("no address for a refused name"),
        |name| refused.push(name),
    )
    .unwrap();
    assert_eq!(refused, ["evil.example.org"]);
}

#[test]
fn a_dot_inside_a_label_does_not_make_a_name() {
    let mut bytes = query("aaaaaaaaaaa", TYPE::A);
    let at = bytes.windows(11).position(|w| w == b"aaaaaaaaaaa").unwrap();
    bytes[at..at + 11].copy_from_slice(b"example.com");
    check(&bytes, RCODE::NameError, &[]);
}

#[test]
fn what_is_no_query_gets_no_answer() {
    assert_eq!(ask(&[]), None);
    assert_eq!(ask(&[0; 11]), None);
    assert_eq!(ask(&[0; QUERY_MAX + 1]), None);
    let mut response = query("example.com", TYPE::A);
    response[2] |= 0x80;
    assert_eq!(ask(&response), None);
}

#[test]
fn odd_queries_are_turned_away() {
    let good = query("example.com", TYPE::A);
    let changed = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = good.clone();
        change(&mut bytes);
        bytes
    };
    let two_questions = changed(&|q| {
        q[5] = 2;
        q.extend_from_within(12..);
    });
    check(&two_questions, RCODE::FormatError, &[]);
    check(&changed(&|q| q[5] = 0), RCODE::FormatError, &[]);
    check(&changed(&|q| q[4..6].fill(0xff)), RCODE::FormatError, &[]);
    check(&changed(&|q| q.truncate(20)), RCODE::FormatError, &[]);
    let update = changed(&|q| q[2] = 5 << 3);
    check(&update, RCODE::NotImplemented, &[]);
    // Sections after the question are not looked at, so their lies do not matter.
    check(&changed(&|q| q[6..12].fill(0xff)), RCODE::NoError, &[ADDRESS]);
}

#[test]
fn a_compression_loop_ends() {
    let header = [0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for pointer in [[0xc0, 12], [0xc0, 14], [0xc0, 0], [0xff, 0xff]] {
        let query = [&header[..], &pointer, &[0, 1, 0, 1]].concat();
        let reply = ask(&query).unwrap();
        assert_ne!(Packet::parse(&reply).unwrap().rcode(), RCODE::NoError, "{pointer:?}");
    }
    // Two names that point at each other, and a name too long for the protocol.
    let query = [&header[..], &[1, b'a', 0xc0, 16, 1, b'b', 0xc0, 12], &[0, 1, 0, 1]].concat();
    check(&query, RCODE::FormatError, &[]);
    let long = [[63; 64].as_slice(); 5].concat();
    let query = [&header[..], &long, &[0, 0, 1, 0, 1]].concat();
    check(&query, RCODE::FormatError, &[]);
}

proptest! {
    #[test]
    fn no_query_panics_or_gets_an_address_it_may_not_have(
        noise in prop::collection::vec(any::<u8>(), 0..200),
        flips in prop::collection::vec((0_usize..64, any::<u8>()), 0..6),
        made_up in any::<bool>(),
    ) {
        let mut bytes = if made_up { noise } else { query("example.org", TYPE::A) };
        for (at, byte) in flips {
            if let Some(old) = bytes.get_mut(at) {
                *old = byte;
            }
        }
        let mut asked = None;
        let _ = answer(&bytes, &policy(), |name| { asked = Some(name.to_owned()); ADDRESS }, drop);
        if let Some(name) = asked {
            prop_assert!(policy().allows_name(&name), "{name}");
        }
    }
}
