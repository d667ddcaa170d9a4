//! gzip both ways, and what a client accepts.

use std::io::{self, Write as _};

use bytes::Bytes;
use flate2::Compression;
use flate2::write::{GzEncoder, MultiGzDecoder};

use crate::refusal::{Refusal, Result};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Encoding {
    Identity,
    Gzip,
}

/// What to answer with, by the `Accept-Encoding` of the client; `None` when it takes neither.
pub(super) fn negotiate(accepted: Option<&str>) -> Option<Encoding> {
    let Some(accepted) = accepted.filter(|accepted| !accepted.trim().is_empty()) else {
        return Some(Encoding::Identity);
    };
    let (mut gzip, mut identity, mut any) = (None, None, None);
    for item in accepted.split(',') {
        let mut parts = item.split(';');
        let name = parts.next().unwrap_or("").trim();
        let quality = parts.find_map(|part| part.trim().strip_prefix("q=")?.parse::<f32>().ok());
        let place = match name.to_ascii_lowercase().as_str() {
            "gzip" | "x-gzip" => &mut gzip,
            "identity" => &mut identity,
            "*" => &mut any,
            _ => continue,
        };
        *place = Some(quality.unwrap_or(1.0));
    }
    let gzip = gzip.or(any).unwrap_or(0.0);
    let named = identity;
    let identity = identity.or(any.filter(|quality| *quality == 0.0)).unwrap_or(1.0);
    // What is named explicitly and liked at least as much wins over compressing.
    if gzip > 0.0 && named.is_none_or(|named| gzip >= named) {
        return Some(Encoding::Gzip);
    }
    (identity > 0.0).then_some(Encoding::Identity)
}

/// Compresses pieces of a stream.
pub(super) struct Compressor(GzEncoder<Vec<u8>>);

impl Compressor {
    pub(super) fn new() -> Self {
        Self(GzEncoder::new(Vec::new(), Compression::fast()))
    }

    pub(super) fn feed(&mut self, piece: &[u8]) -> io::Result<Bytes> {
        self.0.write_all(piece)?;
        Ok(std::mem::take(self.0.get_mut()).into())
    }

    pub(super) fn finish(&mut self) -> io::Result<Bytes> {
        self.0.try_finish()?;
        Ok(std::mem::take(self.0.get_mut()).into())
    }
}

/// Decompresses pieces of a stream. What follows the last trailer is an error.
pub(super) struct Decompressor(MultiGzDecoder<Vec<u8>>);

/// One piece may blow up a thousandfold, so it is fed in small bites.
const BITE_BYTES: usize = 4 << 10;

impl Decompressor {
    pub(super) fn new() -> Self {
        Self(MultiGzDecoder::new(Vec::new()))
    }

    /// Gives what some of `piece` holds, which is taken off its front.
    pub(super) fn feed(&mut self, piece: &mut Bytes) -> Result<Bytes> {
        let bite = piece.split_to(piece.len().min(BITE_BYTES));
        self.0.write_all(&bite).map_err(|error| malformed(&error))?;
        Ok(std::mem::take(self.0.get_mut()).into())
    }

    pub(super) fn finish(&mut self) -> Result<Bytes> {
        self.0.try_finish().map_err(|error| malformed(&error))?;
        Ok(std::mem::take(self.0.get_mut()).into())
    }
}

fn malformed(error: &io::Error) -> Refusal {
    Refusal::invalid(format!("the body is not gzip: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(accepted: &str, expected: Option<Encoding>) {
        assert_eq!(negotiate(Some(accepted)), expected, "{accepted}");
    }

    #[test]
    fn encodings_are_negotiated() {
        assert_eq!(negotiate(None), Some(Encoding::Identity));
        check("gzip", Some(Encoding::Gzip));
        check("gzip, deflate, br", Some(Encoding::Gzip));
        check("identity", Some(Encoding::Identity));
        check("br", Some(Encoding::Identity));
        check("gzip;q=0", Some(Encoding::Identity));
        check("identity, gzip;q=0.5", Some(Encoding::Identity));
        check("br, identity;q=0", None);
        check("*;q=0", None);
        check("*", Some(Encoding::Gzip));
    }
}
