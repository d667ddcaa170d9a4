//! The agent daemon of the sandbox: a process of its own, of the sandbox's user, started on first use.
//!
//! It gets a new token each time it starts, through its standard input, and only whoever speaks to
//! this guest is told it. Its program cannot be read by anybody inside, so that the kernel lets nobody
//! inside look into its memory: an agent cannot find the token and allow itself what it asked for.

use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};

use crate::extension::connect_to;
use crate::process::{self, Process, Start, Stdin, Until};
use crate::refusal::{Code, Refusal, Result};
use crate::state::State;

/// Where it listens.
const PORT: u16 = 2468;

/// How long it may take to listen.
const START_MAX: Duration = Duration::from_secs(10);

const LOOK_EVERY: Duration = Duration::from_millis(5);

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
            argv: vec![program, "--listen".into(), format!("127.0.0.1:{PORT}")],
            stdin: Stdin::Bytes(format!("{token}\n").into_bytes()),
            until: Until::Exit,
            ..Start::default()
        };
        let process = process::start(state, start)?;
        let until = Instant::now() + START_MAX;
        // It says so on standard output, and nothing else.
        while process.output.total_bytes() == 0 {
            if process.output.ended().is_some() {
                let message = format!("the agent daemon does not start: is port {PORT} taken?");
                return Err(Refusal::new(Code::PortClosed, message));
            }
            if Instant::now() > until {
                process.kill_tree();
                return Err(Refusal::internal("the agent daemon did not start in time"));
            }
            sleep(LOOK_EVERY).await;
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

fn new_token() -> Result<String> {
    let mut bytes = [0_u8; 32];
    let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    if filled.map_err(|errno| Refusal::errno("make a token", errno))? != bytes.len() {
        return Err(Refusal::internal("cannot make a token"));
    }
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
