//! Whoever asked for a launch: it may go away meanwhile, and makes the disks while the launch goes on.

use std::io::Read;
use std::os::unix::net::UnixStream;

use anyhow::{Context, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// What it says once the disks are there, and when they cannot be made.
pub(crate) const DISKS_ARE_MADE: &[u8] = b"+";
pub(crate) const NO_DISKS: &[u8] = b"-";

/// A disk that is made as a file system in a file may take long on a busy host.
const DISKS_SECONDS_MAX: i64 = 120;

/// `None` is the process that this one was forked from, which waits for it.
#[derive(Clone, Copy)]
pub struct Asker<'a>(pub Option<&'a UnixStream>);

impl Asker<'_> {
    /// Fails when nobody is there for the answer any more.
    pub(super) fn must_wait(self) -> anyhow::Result<()> {
        let Some(connection) = self.0 else { return Ok(()) };
        let mut fds = [PollFd::new(connection, PollFlags::empty())];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let waits = poll(&mut fds, Some(&now)).is_ok_and(|ready| ready == 0);
        ensure!(waits, "nobody waits for it any more");
        Ok(())
    }

    /// Waits until the disks are made.
    pub(super) fn must_have_made_disks(self) -> anyhow::Result<()> {
        let Some(mut connection) = self.0 else { return Ok(()) };
        let mut fds = [PollFd::new(connection, PollFlags::IN)];
        let limit = Timespec { tv_sec: DISKS_SECONDS_MAX, tv_nsec: 0 };
        let ready = poll(&mut fds, Some(&limit)).context("wait for the disks")?;
        ensure!(ready > 0, "the disks were not made in {DISKS_SECONDS_MAX} s");
        let mut word = [0u8; 1];
        connection.read_exact(&mut word).context("nobody waits for it any more")?;
        ensure!(word == DISKS_ARE_MADE, "the disks could not be made");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::{Asker, DISKS_ARE_MADE, NO_DISKS};

    #[test]
    fn disks_are_there_when_the_server_says_so_and_not_when_it_died_or_failed() -> anyhow::Result<()>
    {
        let said = |word: &[u8]| -> anyhow::Result<_> {
            let (mut server, ours) = UnixStream::pair()?;
            server.write_all(word)?;
            // It dies: what it had said is still there.
            drop(server);
            Ok(Asker(Some(&ours)).must_have_made_disks())
        };
        assert!(said(DISKS_ARE_MADE)?.is_ok());
        assert!(
            said(NO_DISKS)?.is_err_and(|error| error.to_string().contains("could not be made"))
        );
        assert!(said(b"")?.is_err_and(|error| error.to_string().contains("nobody waits")));
        Ok(())
    }

    #[test]
    fn a_word_that_waits_to_be_read_is_no_farewell() -> anyhow::Result<()> {
        let (mut server, ours) = UnixStream::pair()?;
        server.write_all(DISKS_ARE_MADE)?;
        Asker(Some(&ours)).must_wait()?;
        drop(server);
        assert!(Asker(Some(&ours)).must_wait().is_err());
        Ok(())
    }
}
