//! Messages between server, keeper and launchers: a length, JSON, and descriptors beside them.

use std::io::{IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use anyhow::{Context, bail};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The largest message; a plan is about 3 KiB.
const MESSAGE_BYTES_MAX: u32 = 256 * 1024;
/// Descriptors in one message.
const FDS_MAX: usize = 8;

/// Sends one message with `fds` beside its first byte.
pub fn send(
    stream: &UnixStream,
    message: &impl Serialize,
    fds: &[BorrowedFd<'_>],
) -> anyhow::Result<()> {
    let bytes = encode(message)?;
    let sent = send_once(stream.as_fd(), &bytes, fds).context("send")?;
    let mut rest = stream;
    std::io::Write::write_all(&mut rest, &bytes[sent..]).context("send")
}

/// A message as it goes over the wire.
pub fn encode(message: &impl Serialize) -> anyhow::Result<Vec<u8>> {
    let mut bytes = vec![0; 4];
    serde_json::to_writer(&mut bytes, message).context("encode")?;
    let length = u32::try_from(bytes.len() - 4).context("message too long")?;
    bytes[..4].copy_from_slice(&length.to_be_bytes());
    Ok(bytes)
}

/// Receives one message and the descriptors beside it.
pub fn receive<T: DeserializeOwned>(stream: &UnixStream) -> anyhow::Result<(T, Vec<OwnedFd>)> {
    let mut head = [0u8; 4];
    let (count, fds) = receive_once(stream.as_fd(), &mut head).context("receive")?;
    let mut rest = stream;
    rest.read_exact(&mut head[count..]).context("receive")?;
    let length = u32::from_be_bytes(head);
    if length > MESSAGE_BYTES_MAX {
        bail!("message of {length} bytes");
    }
    let mut body = vec![0; usize::try_from(length)?];
    rest.read_exact(&mut body).context("receive")?;
    let message = serde_json::from_slice(&body).context("decode")?;
    Ok((message, fds))
}

/// Two connected sockets that keep the borders of messages.
pub fn seqpacket_pair() -> anyhow::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC;
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).context("socketpair")
}

pub fn send_packet(socket: &OwnedFd, text: &[u8], fds: &[BorrowedFd<'_>]) -> anyhow::Result<()> {
    send_once(socket.as_fd(), text, fds).context("send packet").map(drop)
}

/// The next packet, or `None` when there is none now.
pub fn receive_packet(socket: &OwnedFd) -> anyhow::Result<Option<(String, Vec<OwnedFd>)>> {
    let mut buffer = [0u8; 512];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let mut parts = [IoSliceMut::new(&mut buffer)];
    let count = match recvmsg(socket, &mut parts, &mut control, flags) {
        Ok(received) => received.bytes,
        Err(rustix::io::Errno::AGAIN) => return Ok(None),
        Err(errno) => return Err(errno).context("receive packet"),
    };
    let fds = drain(&mut control);
    Ok(Some((String::from_utf8_lossy(&buffer[..count]).into_owned(), fds)))
}

fn send_once(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
) -> rustix::io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(rustix::io::Errno::INVAL);
    }
    sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)
}

pub fn receive_once(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
) -> rustix::io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(buffer)];
    let received = recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let count = received.bytes;
    Ok((count, drain(&mut control)))
}

fn drain(control: &mut RecvAncillaryBuffer<'_>) -> Vec<OwnedFd> {
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    fds
}
