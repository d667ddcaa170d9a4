use proptest::prelude::*;

use super::*;

fn decode_in_pieces(bytes: &[u8], piece: usize, max: usize) -> Result<Vec<Envelope>, GuestError> {
    let mut decoder = Decoder::new(max);
    let mut envelopes = Vec::new();
    for piece in bytes.chunks(piece) {
        decoder.feed(piece);
        while let Some(envelope) = decoder.next_envelope()? {
            envelopes.push(envelope);
        }
        assert!(decoder.buffer.len() < HEADER_BYTES + max + piece.len());
    }
    Ok(envelopes)
}

proptest! {
    #[test]
    fn what_is_encoded_is_decoded_however_it_is_cut(
        messages in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..100), 0..8),
        piece in 1_usize..64,
    ) {
        let mut envelopes: Vec<_> =
            messages.into_iter().map(|bytes| Envelope::Message(bytes.into())).collect();
        envelopes.push(Envelope::End(Bytes::from_static(b"{}")));
        let mut bytes = BytesMut::new();
        envelopes.iter().for_each(|envelope| encode(envelope, &mut bytes));
        prop_assert_eq!(decode_in_pieces(&bytes, piece, 100).unwrap(), envelopes);
    }

    #[test]
    fn hostile_bytes_give_envelopes_or_an_error(
        bytes in proptest::collection::vec(any::<u8>(), 0..2000),
        piece in 1_usize..200,
    ) {
        let _ = decode_in_pieces(&bytes, piece, 256);
    }
}

#[test]
fn a_length_beyond_the_limit_is_refused_before_its_payload_comes() {
    let refused = decode_in_pieces(&[0, 0, 0, 1, 1], 1, 256);
    assert!(matches!(refused, Err(GuestError::TooLarge)), "{refused:?}");
}

#[test]
fn compressed_messages_are_refused() {
    let refused = decode_in_pieces(&[1, 0, 0, 0, 0], 1, 256);
    assert!(matches!(refused, Err(GuestError::Invalid(_))), "{refused:?}");
}
