//! The agent daemon of the sandbox: a process of its own, of the sandbox's user, started on first use.
//!
//! It gets a new token each time it starts, through its standard input, and only whoever speaks to
//! this guest is told it. Its program cannot be read by anybody inside, so that the kernel lets nobody
//! inside look into its memory: an agent cannot find the token and allow itself what it asked for.

use std::future::poll_fn;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use guest_proto::AGENTS_LOG;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

use crate::extension::connect_to;
use crate::process::{self, Ended, Found, Process, Reader, Start, Stdin, Until};
use crate::refusal::{Code, Refusal, Result};
use crate::state::State;

/// Where it listens.
const PORT: u16 = 2468;

/// How long it may take to listen.
const START_MAX: Duration = Duration::from_secs(10);

const READY: &[u8] = b"ready\n";

const SAID_BYTES_MAX: usize = 4096;

#[derive(Debug)]
pub(crate) struct Agents {
    program: Option<OwnedFd>,
    running: Mutex<Option<Running>>,
    /// One starts it; the others wait for that.
    starting: Semaphore,
}

#[derive(Debug, Clone)]
struct Running {
    process: Arc<Process>,
    token: String,
}

impl Agents {
    pub(crate) fn new(program: Option<OwnedFd>) -> Self {
        Self { program, running: Mutex::default(), starting: Semaphore::new(1) }
    }

    /// A connection to it, and the token that it wants to see.
    pub(crate) async fn connect(&self, state: &Arc<State>) -> Result<(TcpStream, String)> {
        let running = match self.running() {
            Some(running) => running,
            None => self.start(state).await?,
        };
        let stream = connect_to(PORT).await?;
        Ok((stream, running.token))
    }

    pub(crate) fn is_running(&self) -> bool {
        self.running().is_some()
    }

    async fn start(&self, state: &Arc<State>) -> Result<Running> {
        let closed = |_| Refusal::internal("the guest stops");
        let _turn = self.starting.acquire().await.map_err(closed)?;
        if let Some(running) = self.running() {
            return Ok(running);
        }
        let missing =
            || Refusal::new(Code::Unimplemented, "there is no agent daemon in this sandbox");
        let program = self.program.as_ref().ok_or_else(missing)?;
        let token = new_token()?;
        let program = format!("/proc/self/fd/{}", program.as_raw_fd());
        let start = Start {
            argv: [&*program, "--listen", &format!("127.0.0.1:{PORT}"), "--log", AGENTS_LOG]
                .map(str::to_owned)
                .to_vec(),
            stdin: Stdin::Bytes(format!("{token}\n").into_bytes()),
            until: Until::Exit,
            ..Start::default()
        };
        let process = process::start(state, start)?;
        let until = Instant::now() + START_MAX;
        // It says so on standard output, or why it cannot.
        let mut reader = process.output.reader(Some(0));
        let mut said = Vec::new();
        while said != READY {
            if let Ok(Some(ended)) = timeout_at(until, next(&mut reader, &mut said)).await {
                let why = String::from_utf8_lossy(&said);
                let why = why.trim();
                let why = if why.is_empty() { format!("{ended:?}") } else { why.to_owned() };
                return Err(Refusal::internal(why));
            }
            if Instant::now() > until || said.len() > SAID_BYTES_MAX {
                process.kill_tree();
                return Err(Refusal::internal("it does not listen in time"));
            }
        }
        let running = Running { process, token };
        *self.lock() = Some(running.clone());
        Ok(running)
    }

    fn running(&self) -> Option<Running> {
        self.lock().clone().filter(|running| running.process.output.ended().is_none())
    }

    fn lock(&self) -> MutexGuard<'_, Option<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes what it printed; how it ended, if it did.
async fn next(reader: &mut Reader, said: &mut Vec<u8>) -> Option<Ended> {
    let found = poll_fn(|cx| reader.poll(cx, SAID_BYTES_MAX, |bytes| said.extend(bytes))).await;
    match found {
        Found::Bytes { .. } | Found::Gap { .. } => None,
        Found::End(ended) => Some(ended),
    }
}

fn new_token() -> Result<String> {
    let mut bytes = [0_u8; 32];
    let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    if filled.map_err(|errno| Refusal::errno("make a token", errno))? != bytes.len() {
        return Err(Refusal::internal("cannot make a token"));
    }
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
