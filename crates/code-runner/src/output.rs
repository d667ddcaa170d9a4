//! What the code prints, as much as is kept of it.

use std::cell::RefCell;

pub(crate) struct Output {
    max: usize,
    stdout: RefCell<String>,
    stderr: RefCell<String>,
}

impl Output {
    pub(crate) fn new(max: usize) -> Self {
        Self { max, stdout: RefCell::default(), stderr: RefCell::default() }
    }

    /// Stream 2 is `stderr`.
    pub(crate) fn write(&self, stream: u32, text: &str) {
        let kept = if stream == 2 { &self.stderr } else { &self.stdout };
        let mut kept = kept.borrow_mut();
        let room = self.max.saturating_sub(kept.len());
        kept.push_str(cut(text, room));
    }

    /// `stdout` and `stderr`.
    pub(crate) fn take(&self) -> (String, String) {
        (self.stdout.take(), self.stderr.take())
    }
}

/// The beginning of `text`, at most so many bytes.
pub(crate) fn cut(text: &str, max: usize) -> &str {
    &text[..text.floor_char_boundary(max)]
}
