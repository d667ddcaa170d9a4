use super::*;

fn read_all(reader: &mut Reader) -> Vec<(Channel, u64, Vec<u8>)> {
    let mut context = Context::from_waker(Waker::noop());
    let mut all = Vec::new();
    loop {
        let mut bytes = Vec::new();
        match reader.poll(&mut context, 1000, |piece| bytes.extend_from_slice(piece)) {
            Poll::Ready(Found::Bytes { channel, offset, len }) => {
                assert_eq!(len, bytes.len());
                all.push((channel, offset, bytes));
            }
            Poll::Ready(Found::Gap { offset }) => all.push((Channel::Pty, offset, b"gap".to_vec())),
            Poll::Ready(Found::End(_)) | Poll::Pending => return all,
        }
    }
}

#[test]
fn streams_come_back_in_the_order_in_which_they_were_written() {
    let output = Output::new(100);
    let mut reader = output.reader(Some(0));
    output.write(Channel::Stdout, b"one");
    output.write(Channel::Stdout, b"two");
    output.write(Channel::Stderr, b"three");
    output.write(Channel::Stdout, b"four");
    let expected = [
        (Channel::Stdout, 0, b"onetwo".to_vec()),
        (Channel::Stderr, 6, b"three".to_vec()),
        (Channel::Stdout, 11, b"four".to_vec()),
    ];
    assert_eq!(read_all(&mut reader), expected);
    assert_eq!(
        read_all(&mut output.reader(Some(7))),
        [(Channel::Stderr, 7, b"hree".to_vec()), (Channel::Stdout, 11, b"four".to_vec()),]
    );
}

#[test]
fn a_reader_that_comes_late_gets_a_gap_and_what_is_kept() {
    let output = Output::new(10);
    output.write(Channel::Stdout, b"0123456789");
    output.write(Channel::Stderr, b"abcde");
    assert_eq!(
        read_all(&mut output.reader(Some(2))),
        [
            (Channel::Pty, 5, b"gap".to_vec()),
            (Channel::Stdout, 5, b"56789".to_vec()),
            (Channel::Stderr, 10, b"abcde".to_vec()),
        ]
    );
    assert_eq!(output.total_bytes(), 15);
}

#[test]
fn single_bytes_of_alternating_streams_cost_what_their_marks_cost() {
    let output = Output::new(1000);
    for _ in 0..1000 {
        output.write(Channel::Stdout, b"x");
        output.write(Channel::Stderr, b"y");
    }
    let ring = output.lock();
    assert!(ring.bytes.len() + (ring.marks.len() - 2) * MARK_BYTES <= 1000 + MARK_BYTES);
    assert!(ring.bytes.len() > 50);
    let mark = ring.marks.front().map(|mark| mark.offset).unwrap();
    assert!(mark <= ring.start());
}

#[tokio::test(start_paused = true)]
async fn a_reader_holds_the_writer_up_until_it_moves_or_has_stalled() {
    let output = Output::new(10);
    let mut reader = output.reader(Some(0));
    output.write(Channel::Stdout, b"0123456789");
    assert!(output.room(1).is_err());
    read_all(&mut reader);
    assert!(output.room(1).is_ok());
    output.write(Channel::Stdout, b"0123456789");
    assert!(output.room(1).is_err());
    tokio::time::advance(STALL_MAX).await;
    assert!(output.room(1).is_ok());
    drop(reader);
    assert!(output.lock().readers.is_empty());
}
