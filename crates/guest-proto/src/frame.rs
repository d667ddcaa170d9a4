//! The frames that the output of a command travels in:
//! `kind u8 | offset u64 BE | len u32 BE | payload`.
//!
//! [`Decoder`] is fed bytes in any pieces and gives whole frames. It holds at most one frame.

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};

use crate::{ExecEnd, ExecFrame, GuestError, OutputStream};

/// Of everything before the payload.
pub const HEADER_BYTES: usize = 13;

/// The longest payload. A guest sends at most 64 KiB at once; newer ones may send more.
pub const PAYLOAD_BYTES_MAX: usize = 256 << 10;

const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const GAP: u8 = 3;
const KEEPALIVE: u8 = 4;
const END: u8 = 5;

/// The header of a piece of output, to be followed by `len` bytes, so that a sender need not copy.
pub fn output_header(stream: OutputStream, offset: u64, len: u32) -> [u8; HEADER_BYTES] {
    let kind = match stream {
        OutputStream::Stdout => STDOUT,
        OutputStream::Stderr => STDERR,
    };
    header(kind, offset, len)
}

/// Appends one frame.
pub fn encode(frame: &ExecFrame, out: &mut BytesMut) {
    match frame {
        ExecFrame::Output { stream, offset, bytes } => {
            for (index, piece) in bytes.chunks(PAYLOAD_BYTES_MAX).enumerate() {
                let start = offset + (index * PAYLOAD_BYTES_MAX) as u64;
                out.put_slice(&output_header(*stream, start, length(piece.len())));
                out.put_slice(piece);
            }
        }
        ExecFrame::Gap { offset } => out.put_slice(&header(GAP, *offset, 0)),
        ExecFrame::Keepalive => out.put_slice(&header(KEEPALIVE, 0, 0)),
        ExecFrame::End(end) => {
            let json = serde_json::to_vec(end).expect("a struct of numbers is JSON");
            out.put_slice(&header(END, end.total_bytes, length(json.len())));
            out.put_slice(&json);
        }
    }
}

fn header(kind: u8, offset: u64, len: u32) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[0] = kind;
    header[1..9].copy_from_slice(&offset.to_be_bytes());
    header[9..].copy_from_slice(&len.to_be_bytes());
    header
}

fn length(len: usize) -> u32 {
    u32::try_from(len).expect("pieces are at most PAYLOAD_BYTES_MAX long")
}

/// Turns bytes into frames.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: BytesMut,
}

impl Decoder {
    /// Takes what came. Call [`Decoder::next_frame`] until it gives nothing before feeding more.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole frame, if there is one. After an error the stream is of no more use.
    pub fn next_frame(&mut self) -> Result<Option<ExecFrame>, GuestError> {
        loop {
            if self.buffer.len() < HEADER_BYTES {
                return Ok(None);
            }
            let mut header = &self.buffer[..HEADER_BYTES];
            let (kind, offset, len) =
                (header.get_u8(), header.get_u64(), header.get_u32() as usize);
            if len > PAYLOAD_BYTES_MAX {
                return Err(GuestError::protocol(format!("a frame of {len} bytes")));
            }
            if self.buffer.len() < HEADER_BYTES + len {
                return Ok(None);
            }
            self.buffer.advance(HEADER_BYTES);
            let payload = self.buffer.split_to(len).freeze();
            if let Some(frame) = decode(kind, offset, payload)? {
                return Ok(Some(frame));
            }
        }
    }

    /// Whether what was fed ends at the end of a frame.
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }
}

/// `None` for a kind that a newer guest made up.
fn decode(kind: u8, offset: u64, payload: Bytes) -> Result<Option<ExecFrame>, GuestError> {
    let output = |stream, bytes| Ok(Some(ExecFrame::Output { stream, offset, bytes }));
    match kind {
        STDOUT => output(OutputStream::Stdout, payload),
        STDERR => output(OutputStream::Stderr, payload),
        GAP => Ok(Some(ExecFrame::Gap { offset })),
        KEEPALIVE => Ok(Some(ExecFrame::Keepalive)),
        END => serde_json::from_slice::<ExecEnd>(&payload)
            .map(|end| Some(ExecFrame::End(end)))
            .map_err(|error| GuestError::protocol(format!("end of a command: {error}"))),
        0 => Err(GuestError::protocol("a frame of kind 0")),
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests;
