//! Reads the few values of a JSON text that a meter wants, a byte at a time, in memory that does not grow with
//! the text: where it is (keys, so deep), and as much of the current word as could matter. It judges
//! nothing: text that is no JSON gives values that nobody asked for, or none.

/// Deeper values are passed over.
const DEPTH_MAX: usize = 16;
/// A longer key or string is none that is looked for.
const WORD_BYTES_MAX: usize = 64;

/// One step on the way to a value.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Key(Word),
    Index,
}

/// As much of a word as could matter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Word {
    bytes: [u8; WORD_BYTES_MAX],
    /// Larger than the word that is kept when it is too long.
    length: usize,
}

/// A value, and where it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seen<'a> {
    /// An object or an array begins.
    Opened,
    /// An object or an array is over.
    Closed,
    Text(&'a str),
    Number(u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reading {
    Nothing,
    Text {
        escaped: bool,
    },
    /// A number, or `true`, `false`, `null`.
    Plain,
}

pub(super) struct Scanner {
    /// What is open, from the outside.
    open: Vec<Step>,
    /// Of what is open deeper than that.
    deeper: usize,
    reading: Reading,
    word: Word,
    /// The string that ended last, which a colon makes a key.
    last: Option<Word>,
    /// The key whose value comes next.
    key: Option<Word>,
}

impl Word {
    const EMPTY: Self = Self { bytes: [0; WORD_BYTES_MAX], length: 0 };

    fn push(&mut self, byte: u8) {
        if let Some(place) = self.bytes.get_mut(self.length) {
            *place = byte;
        }
        self.length = self.length.saturating_add(1);
    }

    fn text(&self) -> Option<&str> {
        std::str::from_utf8(self.bytes.get(..self.length)?).ok()
    }
}

impl Default for Scanner {
    fn default() -> Self {
        Self {
            open: Vec::with_capacity(DEPTH_MAX),
            deeper: 0,
            reading: Reading::Nothing,
            word: Word::EMPTY,
            last: None,
            key: None,
        }
    }
}

impl Scanner {
    /// For the next text.
    pub(super) fn reset(&mut self) {
        self.open.clear();
        self.deeper = 0;
        self.reading = Reading::Nothing;
        (self.last, self.key) = (None, None);
    }

    /// `tell` hears of each value, with the keys that lead to it; an index is `None`.
    pub(super) fn read(&mut self, byte: u8, tell: &mut impl FnMut(&[Option<&str>], Seen<'_>)) {
        match self.reading {
            Reading::Text { escaped: true } => {
                // What is escaped is in no word that is looked for.
                self.word.length = WORD_BYTES_MAX + 1;
                self.reading = Reading::Text { escaped: false };
            }
            Reading::Text { escaped: false } => match byte {
                b'\\' => self.reading = Reading::Text { escaped: true },
                b'"' => {
                    self.reading = Reading::Nothing;
                    self.settle(tell);
                    self.last = Some(self.word);
                }
                other => self.word.push(other),
            },
            Reading::Plain if is_plain(byte) => self.word.push(byte),
            Reading::Plain => {
                self.reading = Reading::Nothing;
                let number = self.word.text().and_then(|text| text.parse().ok());
                if let Some(number) = number {
                    self.tell(Seen::Number(number), tell);
                }
                self.key = None;
                self.begin(byte, tell);
            }
            Reading::Nothing => self.begin(byte, tell),
        }
    }

    #[cfg(test)]
    pub(super) fn held_bytes(&self) -> usize {
        self.open.capacity() * size_of::<Step>()
    }

    fn begin(&mut self, byte: u8, tell: &mut impl FnMut(&[Option<&str>], Seen<'_>)) {
        match byte {
            b'"' => {
                self.word = Word::EMPTY;
                self.reading = Reading::Text { escaped: false };
            }
            b':' => self.key = self.last.take(),
            b'{' | b'[' => self.enter(tell),
            b'}' | b']' => {
                self.settle(tell);
                self.leave(tell);
            }
            b',' => {
                self.settle(tell);
                self.key = None;
            }
            byte if is_plain(byte) => {
                self.word = Word::EMPTY;
                self.word.push(byte);
                self.reading = Reading::Plain;
            }
            _ => {}
        }
    }

    /// A string that no colon followed was a value.
    fn settle(&mut self, tell: &mut impl FnMut(&[Option<&str>], Seen<'_>)) {
        if let Some(word) = self.last.take()
            && let Some(text) = word.text()
        {
            self.tell(Seen::Text(text), tell);
        }
    }

    fn enter(&mut self, tell: &mut impl FnMut(&[Option<&str>], Seen<'_>)) {
        self.tell(Seen::Opened, tell);
        if self.open.len() == DEPTH_MAX {
            self.deeper += 1;
            return;
        }
        let step = match self.key.take() {
            Some(key) => Step::Key(key),
            None => Step::Index,
        };
        self.open.push(step);
    }

    fn leave(&mut self, tell: &mut impl FnMut(&[Option<&str>], Seen<'_>)) {
        if self.deeper > 0 {
            self.deeper -= 1;
            return;
        }
        if let Some(step) = self.open.pop() {
            self.key = match step {
                Step::Key(key) => Some(key),
                Step::Index => None,
            };
            self.tell(Seen::Closed, tell);
            self.key = None;
        }
    }

    fn tell(&self, seen: Seen<'_>, tell: &mut impl FnMut(&[Option<&str>], Seen<'_>)) {
        if self.deeper > 0 {
            return;
        }
        let mut path = [None; DEPTH_MAX + 1];
        let depth = self.open.len();
        // The outermost has no place of its own.
        for (place, step) in path.iter_mut().zip(self.open.iter().skip(1)) {
            *place = match step {
                Step::Key(key) => key.text(),
                Step::Index => None,
            };
        }
        if depth > 0 {
            path[depth - 1] = self.key.as_ref().and_then(Word::text);
        }
        tell(&path[..depth], seen);
    }
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'+' | b'.')
}
