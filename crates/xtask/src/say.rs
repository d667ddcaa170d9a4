//! Everything that is printed goes through here.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "the one output module")]

pub(crate) fn line(text: &str) {
    println!("{text}");
}

pub(crate) fn error(text: &str) {
    eprintln!("{text}");
}
