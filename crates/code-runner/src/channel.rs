//! The connection to the host, line by line.

use std::cell::RefCell;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result, bail};

pub(crate) struct Channel {
    stream: TcpStream,
    /// Read and not taken yet.
    buffer: RefCell<Vec<u8>>,
}

/// What came of waiting for a line.
pub(crate) enum Wait {
    Line(Vec<u8>),
    TimedOut,
}

const PIECE_BYTES: usize = 256 << 10;

impl Channel {
    pub(crate) fn new(stream: TcpStream) -> Result<Self> {
        stream.set_nodelay(true).context("set up the connection")?;
        Ok(Self { stream, buffer: RefCell::default() })
    }

    pub(crate) fn send(&self, line: &str) -> Result<()> {
        let mut stream = &self.stream;
        let line = format!("{line}\n");
        stream.write_all(line.as_bytes()).context("write to the host")
    }

    /// Waits for as long as it takes.
    pub(crate) fn line(&self) -> Result<Vec<u8>> {
        match self.wait(None)? {
            Wait::Line(line) => Ok(line),
            Wait::TimedOut => bail!("the host said nothing"),
        }
    }

    pub(crate) fn wait(&self, limit: Option<Duration>) -> Result<Wait> {
        let mut buffer = self.buffer.borrow_mut();
        let mut searched = 0;
        // Zero would mean no limit.
        let limit = limit.map(|limit| limit.max(Duration::from_millis(1)));
        self.stream.set_read_timeout(limit).context("bound a wait")?;
        loop {
            if let Some(end) = buffer[searched..].iter().position(|byte| *byte == b'\n') {
                let rest = buffer.split_off(searched + end + 1);
                let mut line = std::mem::replace(&mut *buffer, rest);
                line.pop();
                return Ok(Wait::Line(line));
            }
            searched = buffer.len();
            buffer.resize(searched + PIECE_BYTES, 0);
            let read = (&self.stream).read(&mut buffer[searched..]);
            let length = *read.as_ref().unwrap_or(&0);
            buffer.truncate(searched + length);
            match read {
                Ok(0) => bail!("the host went away"),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) =>
                {
                    return Ok(Wait::TimedOut);
                }
                Err(error) => return Err(error).context("read from the host"),
            }
        }
    }
}
