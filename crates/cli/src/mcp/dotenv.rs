//! The file `.env` as people write it: `NAME=VALUE`, quotes around a value, comments, `export` before a
//! name. Nothing is expanded. It may be another program's, of whose project this is the directory: only what
//! is meant for us is taken, and what is no variable is passed over.

use std::collections::BTreeMap;

/// What it has of ours.
pub(super) fn read(text: &str) -> BTreeMap<String, String> {
    let ours = |name: &str| name.starts_with("BASTIDE_") || name.starts_with("E2B_");
    text.lines().filter_map(variable).filter(|(name, _)| ours(name)).collect()
}

fn variable(line: &str) -> Option<(String, String)> {
    let line = line.trim();
    let line = line.strip_prefix("export ").unwrap_or(line);
    let (name, value) = line.split_once('=')?;
    let (name, value) = (name.trim(), value.trim());
    let good = |c: u8| c.is_ascii_alphanumeric() || c == b'_';
    if name.is_empty() || !name.bytes().all(good) {
        return None;
    }
    let quote = value.chars().next().filter(|first| matches!(first, '"' | '\''));
    let value = match quote {
        Some(quote) => value[1..].split_once(quote)?.0,
        None => value.split(" #").next().unwrap_or_default().trim_end(),
    };
    Some((name.to_owned(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(line: &str, wanted: Option<(&str, &str)>) {
        let wanted = wanted.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(variable(line), wanted, "{line}");
    }

    #[test]
    fn a_line_is_read_as_people_write_it() {
        check("A=b", Some(("A", "b")));
        check("export A = b c ", Some(("A", "b c")));
        check("A=", Some(("A", "")));
        check("A=b=c#d # a comment", Some(("A", "b=c#d")));
        check("A=\"b # c\" # d", Some(("A", "b # c")));
        check("A='it \"is\"'", Some(("A", "it \"is\"")));
        for wrong in ["", "# A=b", "A", "=b", "A B=c", "A='b", "A=\"b"] {
            check(wrong, None);
        }
    }

    #[test]
    fn what_is_not_ours_or_no_variable_is_passed_over() {
        let text = "# first\r\n\r\nBASTIDE_A=1\r\n  E2B_B='2'\nPORT=5432\n-----BEGIN\n#E2B_C=3\n";
        let wanted = [("BASTIDE_A", "1"), ("E2B_B", "2")];
        let wanted = wanted.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(read(text), BTreeMap::from(wanted));
    }
}
