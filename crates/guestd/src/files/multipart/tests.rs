use proptest::prelude::*;

use super::*;

const TYPE: &str = "multipart/form-data; boundary=\"b-1\"";

type Files = Vec<(String, Option<String>, Vec<u8>)>;

fn parse(body: &[u8], piece: usize) -> Result<Files> {
    let mut form = Form::new(TYPE)?;
    let mut parts = Files::new();
    let mut open = false;
    for piece in body.chunks(piece) {
        form.feed(piece);
        while let Some(part) = form.next_part()? {
            match part {
                Part::Begin { name, filename } => {
                    assert!(!open);
                    open = true;
                    parts.push((name, filename, Vec::new()));
                }
                Part::Data(bytes) => parts.last_mut().unwrap().2.extend_from_slice(&bytes),
                Part::End => open = false,
            }
        }
    }
    form.check_whole()?;
    assert!(!open);
    Ok(parts)
}

fn body(parts: &[(&str, &str, Vec<u8>)]) -> Vec<u8> {
    let mut body = Vec::new();
    for (name, filename, data) in parts {
        let head = format!(
            "--b-1\r\nContent-Disposition: form-data; name=\"{name}\"; filename=\"{filename}\"\r\n\
             Content-Type: text/plain\r\n\r\n"
        );
        body.extend_from_slice(head.as_bytes());
        body.extend_from_slice(data);
        body.extend_from_slice(b"\r\n");
    }
    body.extend_from_slice(b"--b-1--\r\n");
    body
}

proptest! {
    #[test]
    fn files_come_back_however_the_body_is_cut(
        first in proptest::collection::vec(prop_oneof![Just(b'\r'), Just(b'\n'), Just(b'-'), any::<u8>()], 0..80),
        second in proptest::collection::vec(any::<u8>(), 0..80),
        piece in 1_usize..50,
    ) {
        prop_assume!(find(&first, b"\r\n--b-1").is_none());
        prop_assume!(find(&second, b"\r\n--b-1").is_none());
        let body = body(&[("file", "/a/b", first.clone()), ("file", "c", second.clone())]);
        let parts = parse(&body, piece).unwrap();
        let file = |path: &str, data| ("file".to_owned(), Some(path.to_owned()), data);
        prop_assert_eq!(parts, [file("/a/b", first), file("c", second)]);
    }

    #[test]
    fn hostile_bytes_give_parts_or_an_error(
        bytes in proptest::collection::vec(any::<u8>(), 0..500),
        piece in 1_usize..50,
    ) {
        let mut hostile = b"--b-1\r\n".to_vec();
        hostile.extend_from_slice(&bytes);
        let _ = parse(&hostile, piece);
    }
}

#[test]
fn the_filename_keeps_its_directories_and_its_quotes() {
    assert_eq!(
        parameter("form-data; name=\"file\"; filename=\"/a/b c.txt\"", "filename").unwrap(),
        "/a/b c.txt"
    );
    assert_eq!(parameter("form-data; filename=\"a\\\"b\"; name=x", "filename").unwrap(), "a\"b");
    assert_eq!(parameter("form-data; filename=\"a\\\"b\"; name=x", "name").unwrap(), "x");
    assert_eq!(parameter("form-data; name=x", "filename"), None);
}

#[test]
fn a_form_that_stops_early_is_refused() {
    let whole = body(&[("file", "x", b"data".to_vec())]);
    assert!(parse(&whole[..whole.len() - 6], 1000).is_err());
    assert!(Form::new("multipart/form-data").is_err());
}
