//! Everything that is printed goes through here: results to stdout, the rest to stderr.
//!
//! A reader that went away (`bastide … | head`) is not a failure of ours, so lines that cannot be
//! written are dropped; streams of data report it, because their producer should stop.

use std::io::{self, Write};
use std::time::Duration;

use comfy_table::{Table, presets};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::failure::Failure;

/// One line of result.
pub(crate) fn line(text: impl AsRef<str>) {
    let _ = writeln!(io::stdout().lock(), "{}", text.as_ref());
}

/// One line for the person, beside the result.
pub(crate) fn note(text: impl AsRef<str>) {
    let _ = writeln!(io::stderr().lock(), "{}", text.as_ref());
}

pub(crate) fn failure(failure: &Failure) {
    note(format!("error: {}", harmless(&failure.message)));
    if let Some(hint) = &failure.hint {
        note(format!("hint: {}", harmless(hint)));
    }
}

/// What went wrong may quote a file or a guest, who shall not write to the terminal through us.
fn harmless(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\t' => safe.push(c),
            c if c.is_control() => safe.extend(c.escape_default()),
            c => safe.push(c),
        }
    }
    safe
}

/// For programs: what the server said, indented.
pub(crate) fn json(value: &impl Serialize) -> Result<(), Failure> {
    let text =
        serde_json::to_string_pretty(value).map_err(|error| Failure::new(error.to_string()))?;
    line(text);
    Ok(())
}

/// For programs that read a stream: one object a line.
pub(crate) fn json_line(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string(value).map_err(|error| Failure::new(error.to_string()))?;
    line(text);
    Ok(())
}

/// Columns under a header, without lines around them.
pub(crate) fn table(header: &[&str], rows: Vec<Vec<String>>) {
    line(render(header, rows));
}

pub(crate) fn stdout(bytes: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes)?;
    out.flush()
}

pub(crate) fn stderr(bytes: &[u8]) -> io::Result<()> {
    io::stderr().lock().write_all(bytes)
}

/// A bar for `total` bytes; nothing is drawn unless stderr is a terminal.
pub(crate) fn bytes_bar(total: Option<u64>, what: &str) -> ProgressBar {
    let bar = match total {
        Some(total) => ProgressBar::new(total).with_style(style(
            "{msg} {wide_bar} {bytes}/{total_bytes} {binary_bytes_per_sec} {eta}",
        )),
        None => ProgressBar::new_spinner()
            .with_style(style("{spinner} {msg} {bytes} {binary_bytes_per_sec}")),
    };
    bar.with_message(what.to_owned())
}

/// A spinner for work of unknown length.
pub(crate) fn spinner(what: &str) -> ProgressBar {
    let bar = ProgressBar::new_spinner().with_style(style("{spinner} {msg} {elapsed}"));
    bar.enable_steady_tick(Duration::from_millis(100));
    bar.with_message(what.to_owned())
}

fn render(header: &[&str], rows: Vec<Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(header);
    table.add_rows(rows);
    // Values at the left edge, and no blanks at the right one.
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    let text = table.to_string();
    text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n")
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("the templates above are well formed")
}

#[cfg(test)]
mod tests;
