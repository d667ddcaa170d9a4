//! The stream of the daemon, frame by frame: server-sent events, as far as the daemon uses them. What a
//! sandbox sends is hostile: a frame has a bound, and one beyond it is skipped while its number is kept.

/// Of the data of one frame.
pub(super) const FRAME_BYTES_MAX: usize = 1 << 20;

/// One event as the daemon sent it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Frame {
    /// The daemon's number of it, if it said one.
    pub(super) id: Option<u64>,
    /// `None`: it was longer than [`FRAME_BYTES_MAX`].
    pub(super) data: Option<Vec<u8>>,
}

#[derive(Default)]
pub(super) struct Frames {
    /// A line whose end has not come yet.
    line: Vec<u8>,
    id: Option<u64>,
    data: Option<Vec<u8>>,
    /// The line, or the data, is too long.
    line_too_long: bool,
    too_long: bool,
}

impl Frames {
    /// Takes what came, and hands out the frames that are complete with it.
    pub(super) fn take(&mut self, mut bytes: &[u8], complete: &mut Vec<Frame>) {
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            self.extend(&bytes[..end]);
            bytes = &bytes[end + 1..];
            let line = std::mem::take(&mut self.line);
            let cut = std::mem::take(&mut self.line_too_long);
            complete.extend(self.line_ended(&line, cut));
        }
        self.extend(bytes);
    }

    fn extend(&mut self, bytes: &[u8]) {
        // With room for the field's name.
        if self.line.len() + bytes.len() > FRAME_BYTES_MAX + 64 {
            self.line_too_long = true;
            self.line.truncate(64);
            return;
        }
        if !self.line_too_long {
            self.line.extend_from_slice(bytes);
        }
    }

    fn line_ended(&mut self, line: &[u8], cut: bool) -> Option<Frame> {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() && !cut {
            let (id, data) = (self.id.take(), self.data.take());
            let too_long = std::mem::take(&mut self.too_long);
            let frame = Frame { id, data: data.filter(|_| !too_long) };
            return (too_long || frame.data.is_some()).then_some(frame);
        }
        let field = |name: &[u8]| {
            let rest = line.strip_prefix(name)?.strip_prefix(b":")?;
            Some(rest.strip_prefix(b" ").unwrap_or(rest))
        };
        if let Some(id) = field(b"id") {
            self.id = std::str::from_utf8(id).ok().and_then(|id| id.trim().parse().ok());
        }
        if let Some(data) = field(b"data") {
            let all = self.data.get_or_insert_default();
            self.too_long |= cut || all.len() + data.len() > FRAME_BYTES_MAX;
            if !self.too_long {
                if !all.is_empty() {
                    all.push(b'\n');
                }
                all.extend_from_slice(data);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(id: u64, data: &str) -> Frame {
        Frame { id: Some(id), data: Some(data.into()) }
    }

    #[track_caller]
    fn check(text: &str, expected: &[Frame]) {
        for size in [1, 2, 7, text.len()] {
            let (mut frames, mut complete) = (Frames::default(), Vec::new());
            for piece in text.as_bytes().chunks(size.max(1)) {
                frames.take(piece, &mut complete);
            }
            assert_eq!(complete, expected, "in pieces of {size}");
        }
    }

    #[test]
    fn frames_are_found_however_they_are_cut() {
        check("id: 7\ndata: {\"a\":1}\n\n", &[frame(7, "{\"a\":1}")]);
        check(
            ": keep-alive\n\nid: 1\r\ndata:x\r\n\r\nevent: y\nid: 2\ndata: y\n\nid: 3\ndata: z",
            &[frame(1, "x"), frame(2, "y")],
        );
        check("data: a\ndata: b\nid: 5\n\n", &[frame(5, "a\nb")]);
        check("id: none\ndata: a\n\n", &[Frame { id: None, data: Some(b"a".to_vec()) }]);
        check("\n\n\n", &[]);
    }

    #[test]
    fn what_is_too_long_is_skipped_and_takes_no_memory() {
        let (mut frames, mut complete) = (Frames::default(), Vec::new());
        frames.take(b"id: 3\ndata: ", &mut complete);
        for _ in 0..40 {
            frames.take(&[b'x'; 64 * 1024], &mut complete);
            assert!(frames.line.len() <= FRAME_BYTES_MAX + 64);
        }
        frames.take(b"\n\nid: 4\ndata: y\n\n", &mut complete);
        assert_eq!(complete, [Frame { id: Some(3), data: None }, frame(4, "y")]);
    }
}
