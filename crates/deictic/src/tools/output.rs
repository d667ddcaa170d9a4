//! What a command printed: its beginning and its end, however much it was.

use std::collections::VecDeque;

const HEAD_BYTES_MAX: usize = 16 * 1024;
const TAIL_BYTES_MAX: usize = 16 * 1024;

#[derive(Debug, Default)]
pub(crate) struct Output {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    total: usize,
}

impl Output {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.total += bytes.len();
        let room = HEAD_BYTES_MAX - self.head.len();
        let (head, rest) = bytes.split_at(bytes.len().min(room));
        self.head.extend_from_slice(head);
        let rest = &rest[rest.len().saturating_sub(TAIL_BYTES_MAX)..];
        let over = (self.tail.len() + rest.len()).saturating_sub(TAIL_BYTES_MAX);
        self.tail.drain(..over);
        self.tail.extend(rest);
    }

    pub(crate) fn text(mut self) -> String {
        let left_out = self.total - self.head.len() - self.tail.len();
        let tail = String::from_utf8_lossy(self.tail.make_contiguous()).into_owned();
        let head = String::from_utf8_lossy(&self.head);
        if left_out == 0 {
            // A character may lie across the two.
            self.head.extend(self.tail.iter());
            return String::from_utf8_lossy(&self.head).into_owned();
        }
        format!("{head}\n[… {left_out} bytes left out …]\n{tail}")
    }
}
