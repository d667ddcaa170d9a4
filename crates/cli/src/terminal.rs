//! The local terminal: its size, and raw mode that is undone however the command ends.

use std::io::{self, IsTerminal, Stdin};

use rustix::termios::{self, OptionalActions, Termios};

/// Raw mode of stdin while it lives.
pub(crate) struct RawMode {
    stdin: Stdin,
    before: Termios,
}

impl RawMode {
    /// `None` when stdin is no terminal.
    pub(crate) fn enter() -> io::Result<Option<Self>> {
        let stdin = io::stdin();
        if !stdin.is_terminal() {
            return Ok(None);
        }
        let before = termios::tcgetattr(&stdin)?;
        let mut raw = before.clone();
        raw.make_raw();
        termios::tcsetattr(&stdin, OptionalActions::Flush, &raw)?;
        Ok(Some(Self { stdin, before }))
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        // There is nobody left to tell.
        let _ = termios::tcsetattr(&self.stdin, OptionalActions::Flush, &self.before);
    }
}

/// Columns and rows; 80 and 24 where there is no terminal.
pub(crate) fn size() -> (u16, u16) {
    let size = termios::tcgetwinsize(io::stdin()).or_else(|_| termios::tcgetwinsize(io::stdout()));
    match size {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col, size.ws_row),
        _ => (80, 24),
    }
}
