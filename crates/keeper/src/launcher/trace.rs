//! What each step of a launch cost, printed to the keeper's log when asked for.

use std::io::Write;

use rustix::event::Timespec;

pub(super) struct Trace {
    /// Nothing is asked of the clock where nobody wants to know.
    last: Option<Timespec>,
    line: String,
}

impl Trace {
    pub(super) fn new(on: bool) -> Self {
        Self { last: on.then(now), line: String::new() }
    }

    pub(super) fn step(&mut self, name: &str) {
        if let Some(last) = &mut self.last {
            let now = now();
            let nanos = (now.tv_sec - last.tv_sec) * 1_000_000_000 + (now.tv_nsec - last.tv_nsec);
            *last = now;
            self.line += &format!(" {name}={}us", nanos / 1000);
        }
    }

    pub(super) fn print(&self, sandbox: &str) {
        if self.last.is_some() {
            let line = format!("launch {sandbox}:{}\n", self.line);
            let _ = std::io::stderr().write_all(line.as_bytes());
        }
    }
}

fn now() -> Timespec {
    rustix::time::clock_gettime(rustix::time::ClockId::Monotonic)
}
