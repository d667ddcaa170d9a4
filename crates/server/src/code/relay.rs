//! One conversation with the engine in a sandbox. What comes from there is a wish, at most: whoever does
//! the calls decides about each, and everything is bounded here.

use std::io;

use futures_util::stream::FuturesUnordered;
use futures_util::{Stream, StreamExt};
use guest_proto::code::{Call, Done, Job, LINE_BYTES_MAX, Outcome, Reply, Said};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio_util::codec::{FramedRead, LinesCodec};

use super::target::Way;

/// Calls that are done at the same time; the engine's next one waits.
const CALLS_AT_ONCE: usize = 8;

/// How a conversation ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Done(Done),
    /// The engine is gone; it may be told elsewhere why.
    Gone,
    /// It said something that is none of the protocol.
    Nonsense(&'static str),
}

/// Hands over the job and does calls until the code is done. `calls_max` of them at most.
pub(super) async fn converse<S: AsyncRead + AsyncWrite>(
    engine: S,
    (job, spec): (&Job, Option<&str>),
    way: &Way<'_>,
    calls_max: u32,
) -> Ended {
    let (reader, mut writer) = tokio::io::split(engine);
    let mut first = serde_json::to_string(job).expect("a job is plain data");
    first.push('\n');
    if let Some(spec) = spec {
        first.push_str(spec);
        first.push('\n');
    }
    if writer.write_all(first.as_bytes()).await.is_err() {
        return Ended::Gone;
    }
    let mut lines = FramedRead::new(reader, LinesCodec::new_with_max_length(LINE_BYTES_MAX));
    let mut calls = FuturesUnordered::new();
    let mut made = 0;
    loop {
        tokio::select! {
            reply = calls.next(), if !calls.is_empty() => {
                let Some(reply) = reply else { continue };
                if send(&mut writer, &reply).await.is_err() {
                    return Ended::Gone;
                }
            }
            said = next(&mut lines), if calls.len() < CALLS_AT_ONCE => match said {
                Ok(Some(Said::Done(done))) => return Ended::Done(done),
                Ok(Some(Said::Call(call))) => {
                    made += 1;
                    let refused = (made > calls_max).then(|| too_many(calls_max));
                    calls.push(answer(way, call, refused));
                }
                Ok(None) => return Ended::Gone,
                Err(why) => return Ended::Nonsense(why),
            },
        }
    }
}

async fn next<L>(lines: &mut L) -> Result<Option<Said>, &'static str>
where
    L: Stream<Item = Result<String, tokio_util::codec::LinesCodecError>> + Unpin,
{
    use tokio_util::codec::LinesCodecError::{Io, MaxLineLengthExceeded};
    match lines.next().await {
        None | Some(Err(Io(_))) => Ok(None),
        Some(Err(MaxLineLengthExceeded)) => Err("a request or result of the code is too large"),
        Some(Ok(line)) => {
            serde_json::from_str(&line).map(Some).map_err(|_| "the engine said what is no record")
        }
    }
}

async fn answer(way: &Way<'_>, call: Call, refused: Option<String>) -> Reply {
    let id = call.id;
    let outcome = match refused {
        Some(why) => Outcome::Refused(why),
        None => way.call(call).await,
    };
    Reply { id, outcome }
}

async fn send<W: AsyncWrite + Unpin>(writer: &mut W, reply: &Reply) -> io::Result<()> {
    let mut line = serde_json::to_vec(reply)?;
    line.push(b'\n');
    writer.write_all(&line).await
}

fn too_many(calls_max: u32) -> String {
    format!("a call of this tool may make {calls_max} requests; make fewer, or several calls")
}
