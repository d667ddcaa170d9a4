//! The program that runs in the sandbox of one call: says on which port it listens, takes one
//! connection, does what comes over it, ends.

use std::io::Write as _;
use std::net::{Ipv4Addr, TcpListener};

fn main() -> anyhow::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let port = listener.local_addr()?.port();
    let mut stdout = std::io::stdout();
    writeln!(stdout, "{port}")?;
    stdout.flush()?;
    let (connection, _) = listener.accept()?;
    drop(listener);
    code_runner::serve(connection)
}
