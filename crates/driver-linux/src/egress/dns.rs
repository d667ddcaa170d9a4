//! The resolver inside a sandbox: it looks nothing up. A name that the policy allows gets an
//! address that stands for it (see `names`); the real one is found when somebody connects. So a
//! query carries nothing out of the sandbox, whatever is written into the name.
//!
//! Refused names are `NXDOMAIN`, because that ends a lookup at once everywhere: glibc asks again after
//! `REFUSED` and then says "temporary failure", musl ignores `REFUSED` and waits for its timeout.
//! There is no SOA in the answer, so nobody may cache it: the policy may change.
//! Everything but A is an empty answer: no IPv6, and no HTTPS records, thus no encrypted server name.
//!
//! Queries are hostile input. Only the header and the one question are parsed at all.

use std::sync::Arc;
use std::time::Duration;

use model::{Policy, host_name};
use simple_dns::rdata::{A, RData};
use simple_dns::{
    CLASS, OPCODE, Packet, PacketFlag, QCLASS, QTYPE, Question, RCODE, ResourceRecord, TYPE,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::time::{sleep, timeout};

use super::Inner;
use super::pace::Pace;

/// How long a program may keep an address. It stands longer than that.
const TTL_SECONDS: u32 = 60;

/// The longest query that is looked at: what EDNS programs say they can receive.
const QUERY_MAX: usize = 1232;

/// Queries over TCP are rare; this bounds one connection's life.
const TCP_CONNECTION_MAX: Duration = Duration::from_secs(5);

/// A resolver asks twice a name (A and AAAA); a busy build asks hundreds a second.
const QUERIES_PER_SECOND: u32 = 2000;

/// Answers queries over UDP for as long as the socket works.
pub(super) async fn serve_udp(inner: Arc<Inner>, socket: UdpSocket) {
    let mut pace = Pace::per_second(QUERIES_PER_SECOND);
    let mut buffer = vec![0; QUERY_MAX];
    loop {
        pace.step().await;
        let Ok((length, from)) = socket.recv_from(&mut buffer).await else {
            // An earlier answer met a closed port. Never spin on it.
            sleep(Duration::from_millis(1)).await;
            continue;
        };
        if let Some(reply) = reply(&inner, &buffer[..length]) {
            // A full buffer drops the answer, as networks do; the program asks again.
            let _ = socket.try_send_to(&reply, from);
        }
    }
}

/// Answers queries over TCP, one connection at a time: no resolver needs more.
pub(super) async fn serve_tcp(inner: Arc<Inner>, listener: TcpListener) {
    let mut pace = Pace::per_second(QUERIES_PER_SECOND / 10);
    loop {
        pace.step().await;
        let Ok((stream, _)) = listener.accept().await else {
            sleep(Duration::from_millis(10)).await;
            continue;
        };
        // Too slow or gone: the connection is over, nothing to tell anybody.
        let _ = timeout(TCP_CONNECTION_MAX, answer_stream(&inner, stream)).await;
    }
}

async fn answer_stream(inner: &Inner, mut stream: TcpStream) -> std::io::Result<()> {
    // A program may ask several times over one connection, but not keep others out.
    for _ in 0..8 {
        let length = usize::from(stream.read_u16().await?);
        if length > QUERY_MAX {
            return Ok(());
        }
        let mut query = vec![0; length];
        stream.read_exact(&mut query).await?;
        let Some(reply) = reply(inner, &query) else { return Ok(()) };
        let Ok(length) = u16::try_from(reply.len()) else { return Ok(()) };
        // In one piece: there are programs that read only once.
        stream.write_all(&[&length.to_be_bytes()[..], &reply].concat()).await?;
    }
    Ok(())
}

fn reply(inner: &Inner, query: &[u8]) -> Option<Vec<u8>> {
    let policy = inner.policy();
    answer(query, &policy, |name| inner.stand_in(name), |name| inner.log.name_refused(name))
}

/// The answer to one query; `None` for what deserves none.
pub(super) fn answer(
    query: &[u8],
    policy: &Policy,
    stand_in: impl FnOnce(&str) -> std::net::Ipv4Addr,
    refused: impl FnOnce(String),
) -> Option<Vec<u8>> {
    let alone = question_alone(query)?;
    let Ok(packet) = Packet::parse(&alone) else {
        return header_only(&alone, RCODE::FormatError);
    };
    if packet.opcode() != OPCODE::StandardQuery {
        return header_only(&alone, RCODE::NotImplemented);
    }
    let [question] = packet.questions.as_slice() else {
        return header_only(&alone, RCODE::FormatError);
    };
    let mut reply = Packet::new_reply(packet.id());
    reply.set_flags(PacketFlag::RECURSION_AVAILABLE);
    if packet.has_flags(PacketFlag::RECURSION_DESIRED) {
        reply.set_flags(PacketFlag::RECURSION_DESIRED);
    }
    match name_of(question) {
        Some(name) if name == "localhost" || policy.allows_name(&name) => {
            if wants_address(question) {
                let address = if name == "localhost" {
                    std::net::Ipv4Addr::LOCALHOST
                } else {
                    stand_in(&name)
                };
                let data = RData::A(A::from(address));
                let owner = question.qname.clone();
                reply.answers.push(ResourceRecord::new(owner, CLASS::IN, TTL_SECONDS, data));
            }
        }
        name => {
            *reply.rcode_mut() = RCODE::NameError;
            if let Some(name) = name {
                refused(name);
            }
        }
    }
    reply.questions.push(question.clone());
    reply.build_bytes_vec_compressed().ok()
}

/// The query without what follows the question, so that nothing else is ever parsed. `None` when it
/// is no query at all.
fn question_alone(query: &[u8]) -> Option<Vec<u8>> {
    const COUNTS_AFTER_QUESTIONS: std::ops::Range<usize> = 6..12;
    const IS_RESPONSE: u8 = 0x80;
    // `authentic data`, `checking disabled` and the reserved bit mean nothing here.
    const IGNORED: u8 = 0x70;
    if query.len() < 12 || query.len() > QUERY_MAX || query[2] & IS_RESPONSE != 0 {
        return None;
    }
    let mut alone = query.to_vec();
    alone[COUNTS_AFTER_QUESTIONS].fill(0);
    alone[3] &= !IGNORED;
    Some(alone)
}

fn header_only(query: &[u8], code: RCODE) -> Option<Vec<u8>> {
    let id = u16::from_be_bytes([*query.first()?, *query.get(1)?]);
    let mut reply = Packet::new_reply(id);
    *reply.rcode_mut() = code;
    reply.build_bytes_vec().ok()
}

/// The name as policies spell names; `None` when it is none (odd bytes, dots inside a label).
fn name_of(question: &Question<'_>) -> Option<String> {
    let mut name = String::new();
    for label in question.qname.as_bytes() {
        let label = std::str::from_utf8(label).ok().filter(|label| !label.contains('.'))?;
        if !name.is_empty() {
            name.push('.');
        }
        name.push_str(label);
    }
    host_name(&name)
}

fn wants_address(question: &Question<'_>) -> bool {
    matches!(question.qtype, QTYPE::TYPE(TYPE::A) | QTYPE::ANY)
        && matches!(question.qclass, QCLASS::CLASS(CLASS::IN) | QCLASS::ANY)
}

#[cfg(test)]
mod tests;
