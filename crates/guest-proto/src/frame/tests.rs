use proptest::prelude::*;

use super::*;

fn frames() -> impl Strategy<Value = Vec<ExecFrame>> {
    let stream = prop_oneof![Just(OutputStream::Stdout), Just(OutputStream::Stderr)];
    let output = (stream, any::<u64>(), proptest::collection::vec(any::<u8>(), 1..300)).prop_map(
        |(stream, offset, bytes)| ExecFrame::Output { stream, offset, bytes: bytes.into() },
    );
    let end = (any::<i32>(), any::<Option<i32>>(), any::<bool>(), any::<u64>(), any::<u64>())
        .prop_map(|(exit_code, signal, timed_out, duration_ms, total_bytes)| {
            ExecFrame::End(ExecEnd { exit_code, signal, timed_out, duration_ms, total_bytes })
        });
    let gap = any::<u64>().prop_map(|offset| ExecFrame::Gap { offset });
    let frame = prop_oneof![output, gap, Just(ExecFrame::Keepalive), end];
    proptest::collection::vec(frame, 0..12)
}

fn decode_in_pieces(bytes: &[u8], piece: usize) -> Result<Vec<ExecFrame>, GuestError> {
    let mut decoder = Decoder::default();
    let mut frames = Vec::new();
    for piece in bytes.chunks(piece) {
        decoder.feed(piece);
        while let Some(frame) = decoder.next_frame()? {
            frames.push(frame);
        }
        assert!(decoder.buffer.len() < HEADER_BYTES + PAYLOAD_BYTES_MAX + piece.len());
    }
    Ok(frames)
}

proptest! {
    #[test]
    fn what_is_encoded_is_decoded_however_it_is_cut(frames in frames(), piece in 1_usize..64) {
        let mut bytes = BytesMut::new();
        frames.iter().for_each(|frame| encode(frame, &mut bytes));
        prop_assert_eq!(decode_in_pieces(&bytes, piece).unwrap(), frames);
    }

    #[test]
    fn hostile_bytes_give_frames_or_an_error(
        bytes in proptest::collection::vec(any::<u8>(), 0..2000),
        piece in 1_usize..200,
    ) {
        let _ = decode_in_pieces(&bytes, piece);
    }
}

#[test]
fn a_length_beyond_the_limit_is_refused_before_its_payload_comes() {
    let header = header(STDOUT, 0, u32::MAX);
    let refused = decode_in_pieces(&header, 1);
    assert!(matches!(refused, Err(GuestError::Protocol(_))), "{refused:?}");
}

#[test]
fn an_unknown_kind_is_skipped() {
    let mut bytes = BytesMut::new();
    bytes.put_slice(&header(77, 0, 3));
    bytes.put_slice(b"new");
    encode(&ExecFrame::Keepalive, &mut bytes);
    assert_eq!(decode_in_pieces(&bytes, 1000).unwrap(), [ExecFrame::Keepalive]);
}

#[test]
fn long_output_is_cut_into_frames_with_the_right_offsets() {
    let bytes: Bytes = vec![7; PAYLOAD_BYTES_MAX + 1].into();
    let mut out = BytesMut::new();
    encode(&ExecFrame::Output { stream: OutputStream::Stderr, offset: 10, bytes }, &mut out);
    let offsets: Vec<_> = decode_in_pieces(&out, 4096)
        .unwrap()
        .into_iter()
        .map(|frame| match frame {
            ExecFrame::Output { offset, bytes, .. } => (offset, bytes.len()),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(offsets, [(10, PAYLOAD_BYTES_MAX), (10 + PAYLOAD_BYTES_MAX as u64, 1)]);
}
