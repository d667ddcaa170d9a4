use super::*;

#[track_caller]
fn check(words: &[&str], expected: &str) {
    let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
    assert_eq!(line(&words), expected);
}

#[test]
fn one_word_is_a_line_for_the_shell() {
    check(&["ls | wc -l"], "ls | wc -l");
}

#[test]
fn several_words_arrive_as_they_are() {
    check(&["ls", "-la", "/tmp"], "ls -la /tmp");
    check(&["echo", "a b", "$HOME", "it's", ""], r"echo 'a b' '$HOME' 'it'\''s' ''");
}
