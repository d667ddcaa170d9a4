use tokio_tungstenite::tungstenite::protocol::frame::Frame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Data, OpCode};

use super::*;

const PATIENCE: Duration = Duration::from_secs(20);

/// As a server of the protocol writes them, with every form of a length.
fn written(lengths: &[usize]) -> Vec<Vec<u8>> {
    let frame = |length: &usize| {
        let frame = Frame::message(vec![b'x'; *length], OpCode::Data(Data::Text), true);
        let mut bytes = Vec::new();
        frame.format(&mut bytes).unwrap();
        bytes
    };
    lengths.iter().map(frame).collect()
}

#[test]
fn frames_are_told_apart_however_they_come() {
    let frames = written(&[0, 1, 125, 126, 65_535, 65_536, 100_000, 0, 7]);
    let all = frames.concat();
    for size in [1, 2, 3, 7, 1000, 65_540, all.len()] {
        let mut known = Frames::default();
        let mut ends = frames.iter().scan(0, |end, frame| {
            *end += frame.len();
            Some(*end)
        });
        let (mut next, mut passed) = (ends.next(), 0);
        for piece in all.chunks(size) {
            known.pass(piece);
            passed += piece.len();
            while next.is_some_and(|end| end < passed) {
                next = ends.next();
            }
            assert_eq!(known.is_between(), next == Some(passed), "{passed} in pieces of {size}");
        }
        assert!(!known.closed);
    }
}

#[test]
fn the_close_frame_is_one() {
    let mut known = Frames::default();
    known.pass(SHUTTING_DOWN);
    assert!(known.closed && known.is_between());
}

/// What a client gets of these bytes when the server in between ends.
async fn got(bytes: Vec<u8>, then: Vec<u8>) -> Vec<u8> {
    let (leader, mut leaders) = tokio::io::duplex(1 << 20);
    let (clients, mut client) = tokio::io::duplex(1 << 20);
    let draining = CancellationToken::new();
    leaders.write_all(&bytes).await.unwrap();
    let telling = tell(leader, clients, draining.clone(), PATIENCE);
    let rest = async {
        // It has begun to wait.
        tokio::task::yield_now().await;
        draining.cancel();
        tokio::task::yield_now().await;
        // Nobody reads what comes after the end.
        let _ = leaders.write_all(&then).await;
        let mut came = Vec::new();
        client.read_to_end(&mut came).await.unwrap();
        came
    };
    tokio::join!(telling, rest).1
}

#[tokio::test]
async fn a_frame_that_has_begun_is_finished_before_the_close() {
    let frames = written(&[5, 70_000, 3]);
    let all = frames.concat();
    for cut in [frames[0].len(), frames[0].len() + 1, frames[0].len() + 20, 60_000] {
        let came = got(all[..cut].to_vec(), all[cut..].to_vec()).await;
        let whole = if cut == frames[0].len() { &frames[..1] } else { &frames[..2] };
        assert!(came == [&whole.concat(), SHUTTING_DOWN].concat(), "cut at {cut}");
    }
}

#[tokio::test]
async fn what_the_leader_closes_is_closed_once_and_half_a_frame_is_not_made_a_whole_one() {
    for (bytes, more) in [
        (b"\x88\x02\x03\xf3".to_vec(), false),
        (b"\x81\x02ab".to_vec(), true),
        (b"\x81\x05ab".to_vec(), false),
        (Vec::new(), true),
    ] {
        let (leader, mut leaders) = tokio::io::duplex(1 << 10);
        let (clients, mut client) = tokio::io::duplex(1 << 10);
        leaders.write_all(&bytes).await.unwrap();
        drop(leaders);
        tell(leader, clients, CancellationToken::new(), PATIENCE).await;
        let mut came = Vec::new();
        client.read_to_end(&mut came).await.unwrap();
        let expected = if more { [&bytes[..], SHUTTING_DOWN].concat() } else { bytes };
        assert_eq!(came, expected);
    }
}
