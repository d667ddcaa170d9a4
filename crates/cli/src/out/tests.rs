use super::*;

#[test]
fn a_table_has_no_lines_and_no_blanks_at_the_end() {
    let text = render(
        &["NAME", "STATE"],
        vec![vec!["a-long-name".into(), "running".into()], vec!["b".into(), "stopped".into()]],
    );
    assert_eq!(text, "NAME         STATE\na-long-name  running\nb            stopped");
}
