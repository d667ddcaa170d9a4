use super::*;

#[test]
fn a_table_has_no_lines_and_no_blanks_at_the_end() {
    let text = render(
        &["NAME", "STATE"],
        vec![vec!["a-long-name".into(), "running".into()], vec!["b".into(), "stopped".into()]],
    );
    assert_eq!(text, "NAME         STATE\na-long-name  running\nb            stopped");
}

#[test]
fn a_failure_quotes_nothing_that_a_terminal_obeys() {
    assert_eq!(
        harmless("a\x1b[31m\u{9b}1m\x07: é\n  | ^\tb"),
        "a\\u{1b}[31m\\u{9b}1m\\u{7}: é\n  | ^\tb"
    );
}
