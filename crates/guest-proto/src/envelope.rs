//! The envelopes of a Connect stream: `flags u8 | len u32 BE | payload`.

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};

use crate::GuestError;

/// Of everything before the payload.
pub const HEADER_BYTES: usize = 5;

const FLAG_COMPRESSED: u8 = 1;
const FLAG_END: u8 = 2;

/// One message of a stream, or its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Envelope {
    Message(Bytes),
    /// The trailer: `{}`, or `{"error":{"code":…,"message":…}}`.
    End(Bytes),
}

/// Appends one envelope.
pub fn encode(envelope: &Envelope, out: &mut BytesMut) {
    let (flags, payload) = match envelope {
        Envelope::Message(payload) => (0, payload),
        Envelope::End(payload) => (FLAG_END, payload),
    };
    out.reserve(HEADER_BYTES + payload.len());
    out.put_u8(flags);
    out.put_u32(u32::try_from(payload.len()).expect("messages are far below 4 GiB"));
    out.put_slice(payload);
}

/// Turns bytes into envelopes. Holds at most one message of `max` bytes.
#[derive(Debug)]
pub struct Decoder {
    buffer: BytesMut,
    max: usize,
}

impl Decoder {
    pub fn new(max: usize) -> Self {
        Self { buffer: BytesMut::new(), max }
    }

    /// Takes what came. Call [`Decoder::next_envelope`] until it gives nothing before feeding more.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole envelope, if there is one. After an error the stream is of no more use.
    pub fn next_envelope(&mut self) -> Result<Option<Envelope>, GuestError> {
        if self.buffer.len() < HEADER_BYTES {
            return Ok(None);
        }
        let mut header = &self.buffer[..HEADER_BYTES];
        let (flags, len) = (header.get_u8(), header.get_u32() as usize);
        if len > self.max {
            return Err(GuestError::TooLarge);
        }
        if flags & FLAG_COMPRESSED != 0 {
            return Err(GuestError::Invalid("compressed messages are not supported".into()));
        }
        if self.buffer.len() < HEADER_BYTES + len {
            return Ok(None);
        }
        self.buffer.advance(HEADER_BYTES);
        let payload = self.buffer.split_to(len).freeze();
        let end = flags & FLAG_END != 0;
        Ok(Some(if end { Envelope::End(payload) } else { Envelope::Message(payload) }))
    }

    /// Whether what was fed ends at the end of an envelope.
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }
}

#[cfg(test)]
mod tests;
