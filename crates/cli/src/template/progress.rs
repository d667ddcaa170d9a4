//! What is shown while a template is made, and who cleans up if nobody is left to.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::OnceLock;

use driver_linux::template::{Event, clean_up};
use indicatif::ProgressBar;
use serde_json::json;
use tokio::io::AsyncReadExt;

use crate::failure::Failure;
use crate::out;

/// Events as lines for people, with a bar for layers, or as JSON lines.
pub(super) struct Shown {
    json: bool,
    bar: Option<(usize, ProgressBar)>,
}

impl Shown {
    pub(super) fn new(json: bool) -> Self {
        Self { json, bar: None }
    }

    pub(super) fn event(&mut self, event: &Event) {
        if self.json {
            // A reader that went away is no reason to stop building.
            let _ = out::json_line(&as_json(event));
            return;
        }
        match event {
            Event::Step { number, total, title, cached } => {
                self.finish();
                let how = if *cached { "  (made before)" } else { "" };
                let title: String = title.chars().take(120).collect();
                out::note(format!("[{number}/{total}] {title}{how}"));
            }
            Event::Log(line) => out::note(format!("    {line}")),
            Event::Layer { number, total, bytes, of } => self.layer(*number, *total, *bytes, *of),
            Event::Done { .. } => self.finish(),
        }
    }

    fn layer(&mut self, number: usize, total: usize, bytes: u64, of: u64) {
        if self.bar.as_ref().is_none_or(|(shown, _)| *shown != number) {
            self.finish();
            let bar = out::bytes_bar(Some(of), &format!("layer {number}/{total}"));
            if bar.is_hidden() {
                out::note(format!("layer {number}/{total}: {of} bytes"));
            }
            self.bar = Some((number, bar));
        }
        if let Some((_, bar)) = &self.bar {
            bar.set_position(bytes);
        }
    }

    pub(super) fn finish(&mut self) {
        if let Some((_, bar)) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

fn as_json(event: &Event) -> serde_json::Value {
    match event {
        Event::Step { number, total, title, cached } => json!({
            "event": "step", "number": number, "total": total, "title": title, "cached": cached,
        }),
        Event::Log(line) => json!({ "event": "log", "line": line }),
        Event::Layer { number, total, bytes, of } => json!({
            "event": "layer", "number": number, "total": total, "bytes": bytes, "of": of,
        }),
        Event::Done { template, digest } => {
            json!({ "event": "done", "template": template, "digest": digest })
        }
    }
}

/// This program. First asked for before this process gets mounts of its own: if nobody stays behind in the old
/// ones, the kernel forgets what the program's path in them was.
pub(super) fn find_program() -> Result<PathBuf, Failure> {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    if let Some(program) = PROGRAM.get() {
        return Ok(program.clone());
    }
    let program = std::env::current_exe()?;
    Ok(PROGRAM.get_or_init(|| program).clone())
}

/// A process that waits for the end of this one, however it comes, and then removes what its build
/// left: sandboxes, mounts, cgroups.
pub(super) struct Attendant {
    child: Child,
}

impl Attendant {
    pub(super) fn start(data_dir: &Path) -> Result<Self, Failure> {
        let mut command = Command::new(find_program()?);
        command
            .args(["template", "attend", "--data-dir"])
            .arg(data_dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Out of reach of the terminal's ctrl-C.
            .process_group(0);
        Ok(Self { child: command.spawn()? })
    }

    /// The build cleaned up after itself.
    pub(super) fn dismiss(mut self) {
        use std::io::Write;
        if let Some(mut stdin) = self.child.stdin.take() {
            let _ = stdin.write_all(b".");
        }
        let _ = self.child.wait();
    }
}

/// The attendant's life: `.` says that all is well; the end of the stream without it, that nobody is left.
pub(super) async fn attend(data_dir: &Path) -> Result<ExitCode, Failure> {
    let mut word = [0u8; 1];
    if tokio::io::stdin().read(&mut word).await? == 0 {
        let runtime_dir = Path::new("/run/bastide");
        clean_up(data_dir, runtime_dir).await?;
    }
    Ok(ExitCode::SUCCESS)
}
