//! What each step of a launch cost, printed to the keeper's log when asked for.

use std::io::Write;

use rustix::event::Timespec;

pub(super) struct Trace {
    on: bool,
    last: Timespec,
    line: String,
}

impl Trace {
    pub(super) fn new(on: bool) -> Self {
        Self { on, last: now(), line: String::new() }
    }

    pub(super) fn step(&mut self, name: &str) {
        if self.on {
            let now = now();
            let nanos =
                (now.tv_sec - self.last.tv_sec) * 1_000_000_000 + (now.tv_nsec - self.last.tv_nsec);
            self.last = now;
            self.line += &format!(" {name}={}us", nanos / 1000);
        }
    }

    pub(super) fn print(&self, sandbox: &str) {
        if self.on {
            let line = format!("launch {sandbox}:{}\n", self.line);
            let _ = std::io::stderr().write_all(line.as_bytes());
        }
    }
}

fn now() -> Timespec {
    rustix::time::clock_gettime(rustix::time::ClockId::Monotonic)
}
