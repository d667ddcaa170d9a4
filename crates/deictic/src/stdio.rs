//! A session over a pair of pipes: see [`crate::protocol`]. Messages that come while a turn runs wait; the end
//! of the input ends the session.

use std::collections::VecDeque;
use std::pin::Pin;
use std::time::Duration;

use tokio::io::{AsyncBufRead, AsyncBufReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::desk::Given;
use crate::protocol::{Heard, Said, Start};
use crate::session::{Session, Surroundings};
use crate::voice::{QUEUE, Voice};

/// A longer line is not read.
const LINE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Messages that wait.
const WAITING_MAX: usize = 64;

/// How long a turn may take to end when the input is over.
const END_WAIT: Duration = Duration::from_secs(2);

type Turn = Pin<Box<dyn Future<Output = Session> + Send>>;

/// Serves one session, until the input ends. `false`: it could not start.
pub async fn serve(
    input: impl AsyncBufRead + Unpin + Send,
    output: impl AsyncWrite + Unpin + Send,
    around: Surroundings,
) -> std::io::Result<bool> {
    let (sender, receiver) = mpsc::channel(QUEUE);
    let voice = Voice::new(sender);
    let (written, served) = tokio::join!(write(receiver, output), listen(input, voice, around));
    written?;
    served
}

async fn write(
    mut said: mpsc::Receiver<Said>,
    mut output: impl AsyncWrite + Unpin,
) -> std::io::Result<()> {
    let mut text = Vec::new();
    while let Some(one) = said.recv().await {
        serde_json::to_writer(&mut text, &one)?;
        text.push(b'\n');
        // What is there already goes with it.
        while let Ok(one) = said.try_recv() {
            serde_json::to_writer(&mut text, &one)?;
            text.push(b'\n');
        }
        output.write_all(&text).await?;
        output.flush().await?;
        text.clear();
    }
    Ok(())
}

async fn listen(
    mut input: impl AsyncBufRead + Unpin,
    voice: Voice,
    around: Surroundings,
) -> std::io::Result<bool> {
    let mut lines = Lines::default();
    let Some(first) = lines.next(&mut input).await? else { return Ok(false) };
    let started = match serde_json::from_str::<Start>(&first) {
        Ok(start) => Session::open(&start, around, voice.clone()).await,
        Err(error) => Err(format!("the first line: {error}")),
    };
    let session = match started {
        Ok(session) => session,
        Err(message) => {
            voice.say(Said::Refused { message }).await;
            return Ok(false);
        }
    };
    let mut loops = Loop {
        shared: session.shared(),
        resting: Some(session),
        turn: None,
        cancel: CancellationToken::new(),
        waiting: VecDeque::new(),
        voice,
    };
    loop {
        loops.begin();
        tokio::select! {
            line = lines.next(&mut input) => match line? {
                Some(line) => loops.heard(&line).await,
                None => break,
            },
            session = over(&mut loops.turn) => {
                loops.turn = None;
                loops.resting = Some(session);
            }
        }
    }
    loops.end().await;
    Ok(true)
}

struct Loop {
    shared: std::sync::Arc<crate::turn::Shared>,
    /// Between turns.
    resting: Option<Session>,
    turn: Option<Turn>,
    cancel: CancellationToken,
    waiting: VecDeque<String>,
    voice: Voice,
}

impl Loop {
    fn begin(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        let Some(mut session) = self.resting.take() else { return };
        let Some(text) = self.waiting.pop_front() else { return };
        self.cancel = CancellationToken::new();
        let cancel = self.cancel.clone();
        self.turn = Some(Box::pin(async move {
            session.turn(text, cancel).await;
            session
        }));
    }

    async fn heard(&mut self, line: &str) {
        if line.trim().is_empty() {
            return;
        }
        match serde_json::from_str(line) {
            Ok(Heard::Message { text }) if self.waiting.len() < WAITING_MAX => {
                self.waiting.push_back(text);
            }
            Ok(Heard::Message { .. }) => {
                self.voice.error("too_many_messages", "too many messages wait").await;
            }
            Ok(Heard::Permission { id, reply }) => {
                self.shared.desk.settle(&id, Given::Permission(reply));
            }
            Ok(Heard::Question { id, answers }) => {
                self.shared.desk.settle(&id, Given::Answer(answers));
            }
            Ok(Heard::Interrupt) => self.cancel.cancel(),
            Ok(Heard::Environment { set, unset }) => {
                if let Err(why) = self.shared.environment(&set, &unset) {
                    self.voice.error("bad_input", why).await;
                }
            }
            Err(error) => {
                self.voice.error("bad_input", format!("a line of input: {error}")).await;
            }
        }
    }

    async fn end(mut self) {
        self.cancel.cancel();
        if let Some(turn) = self.turn.take()
            && let Ok(session) = timeout(END_WAIT, turn).await
        {
            self.resting = Some(session);
        }
        if let Some(session) = self.resting {
            session.close().await;
        }
    }
}

async fn over(turn: &mut Option<Turn>) -> Session {
    match turn {
        Some(turn) => turn.await,
        None => std::future::pending().await,
    }
}

/// Lines of any input, of which a wait can be given up.
#[derive(Default)]
struct Lines {
    partial: Vec<u8>,
    skipping: bool,
}

impl Lines {
    async fn next(
        &mut self,
        input: &mut (impl AsyncBufRead + Unpin),
    ) -> std::io::Result<Option<String>> {
        loop {
            let block = input.fill_buf().await?;
            if block.is_empty() {
                return Ok(None);
            }
            let end = block.iter().position(|byte| *byte == b'\n');
            let taken = end.unwrap_or(block.len());
            if !self.skipping {
                self.partial.extend_from_slice(&block[..taken]);
            }
            input.consume(taken + usize::from(end.is_some()));
            if self.partial.len() > LINE_BYTES_MAX {
                self.partial = Vec::new();
                self.skipping = true;
            }
            if end.is_some() {
                let line = std::mem::take(&mut self.partial);
                let line = String::from_utf8_lossy(&line).into_owned();
                // What stands for it is refused like anything that cannot be read.
                let skipped = std::mem::take(&mut self.skipping);
                return Ok(Some(if skipped { "a line that is too long".to_owned() } else { line }));
            }
        }
    }
}
