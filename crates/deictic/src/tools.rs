//! The tools that the agent has of its own: what a model is told of them, and how a call is made. Each is
//! limited in what it gives back, in how long it takes, and in where it reaches.

mod files;
mod list;
mod output;
mod paths;
mod search;
mod shell;

use std::path::PathBuf;
use std::time::Duration;

use events::{ContentPart, FileAction};
use serde_json::{Value, json};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::limits::Limits;
use crate::model::ToolSpec;
use crate::variables::Variables;

pub(crate) use self::output::Output;
pub(crate) use self::paths::Places;

/// How long work on files may take: a file system can hang.
const FILES_MAX: Duration = Duration::from_secs(20);

/// One of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Tool {
    ReadFile,
    WriteFile,
    ListDirectory,
    ShellExec,
    Search,
}

/// The four that an agent gets of which nothing else is said.
pub(crate) const DEFAULT: [Tool; 4] =
    [Tool::ReadFile, Tool::WriteFile, Tool::ListDirectory, Tool::ShellExec];

const ALL: [Tool; 5] =
    [Tool::ReadFile, Tool::WriteFile, Tool::ListDirectory, Tool::ShellExec, Tool::Search];

/// What a call came to.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) output: String,
    pub(crate) end: End,
    /// The file that was read or changed.
    pub(crate) file: Option<ContentPart>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Fine,
    Failed,
    TimedOut,
    /// The disk takes no more.
    DiskFull,
}

/// What tools work in.
#[derive(Debug, Clone)]
pub(crate) struct Workplace {
    pub(crate) directory: PathBuf,
    pub(crate) places: Places,
    /// Of commands.
    pub(crate) environment: Variables,
    pub(crate) limits: Limits,
}

impl Outcome {
    pub(crate) fn fine(output: impl Into<String>) -> Self {
        Self { output: output.into(), end: End::Fine, file: None }
    }

    pub(crate) fn failed(output: impl Into<String>) -> Self {
        Self { output: output.into(), end: End::Failed, file: None }
    }

    fn of_io(what: &str, error: &std::io::Error) -> Self {
        let full = matches!(
            error.kind(),
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded
        );
        let end = if full { End::DiskFull } else { End::Failed };
        Self { output: format!("{what}: {error}"), end, file: None }
    }

    fn about(mut self, path: &str, action: FileAction) -> Self {
        self.file = Some(ContentPart::FileRef { path: path.to_owned(), action, diff: None });
        self
    }
}

impl Tool {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::ReadFile => "read_file",
            Self::WriteFile => "write_file",
            Self::ListDirectory => "list_directory",
            Self::ShellExec => "shell_exec",
            Self::Search => "search",
        }
    }

    pub(crate) fn parse(name: &str) -> Option<Self> {
        ALL.into_iter().find(|tool| tool.name() == name)
    }

    /// As an application may call it: our own name, or the catalogue's.
    pub(crate) fn of_application(name: &str) -> Option<Self> {
        Self::parse(name).or(match name {
            "file_read" => Some(Self::ReadFile),
            "file_write" => Some(Self::WriteFile),
            "file_list" => Some(Self::ListDirectory),
            "shell" => Some(Self::ShellExec),
            _ => None,
        })
    }

    pub(crate) fn names() -> Vec<&'static str> {
        ALL.into_iter().map(Self::name).collect()
    }

    /// It changes nothing.
    pub(crate) fn only_reads(self) -> bool {
        match self {
            Self::ReadFile | Self::ListDirectory | Self::Search => true,
            Self::WriteFile | Self::ShellExec => false,
        }
    }

    pub(crate) fn spec(self) -> ToolSpec {
        let (description, properties, required) = match self {
            Self::ReadFile => (
                "Read a text file. Long files are read in parts: offset is the first line (from 1), \
                 limit how many lines.",
                json!({
                    "path": {"type": "string"},
                    "offset": {"type": "integer", "minimum": 1},
                    "limit": {"type": "integer", "minimum": 1},
                }),
                json!(["path"]),
            ),
            Self::WriteFile => (
                "Write a text file: all of its content, replacing what was there. Missing directories \
                 are made.",
                json!({"path": {"type": "string"}, "content": {"type": "string"}}),
                json!(["path", "content"]),
            ),
            Self::ListDirectory => (
                "List a directory: one entry a line, directories end with a slash.",
                json!({"path": {"type": "string"}}),
                json!([]),
            ),
            Self::ShellExec => (
                "Run a command with /bin/sh in the working directory. Of long output you see the \
                 beginning and the end. A command that runs too long is killed.",
                json!({
                    "command": {"type": "string"},
                    "timeout_seconds": {"type": "integer", "minimum": 1},
                }),
                json!(["command"]),
            ),
            Self::Search => (
                "Find lines that contain a text (not a pattern) in the files below a directory.",
                json!({"text": {"type": "string"}, "path": {"type": "string"}}),
                json!(["text"]),
            ),
        };
        let parameters = json!({
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": false,
        });
        ToolSpec { name: self.name().to_owned(), description: description.to_owned(), parameters }
    }

    /// Makes a call. When `cancel` comes, what was started is killed and the wait ends at once.
    pub(crate) async fn call(
        self,
        arguments: &Value,
        workplace: &Workplace,
        cancel: &CancellationToken,
    ) -> Outcome {
        let text = |key: &str| arguments.get(key).and_then(Value::as_str);
        let number = |key: &str| arguments.get(key).and_then(Value::as_u64);
        let (directory, places) = (workplace.directory.clone(), workplace.places.clone());
        match self {
            Self::ReadFile => {
                let Some(path) = text("path").map(str::to_owned) else { return lacks("path") };
                let (offset, limit) = (number("offset"), number("limit"));
                on_files(move || files::read(&places.find(&directory, &path), offset, limit)).await
            }
            Self::WriteFile => {
                let Some(path) = text("path").map(str::to_owned) else { return lacks("path") };
                let Some(content) = text("content").map(str::to_owned) else {
                    return lacks("content");
                };
                on_files(move || files::write(&places.find(&directory, &path), &content)).await
            }
            Self::ListDirectory => {
                let path = text("path").unwrap_or(".").to_owned();
                on_files(move || list::list(&places.find(&directory, &path))).await
            }
            Self::Search => {
                let Some(wanted) = text("text").filter(|text| !text.is_empty()) else {
                    return lacks("text");
                };
                let (wanted, path) = (wanted.to_owned(), text("path").unwrap_or(".").to_owned());
                let give_up = cancel.clone();
                on_files(move || search::search(&places.find(&directory, &path), &wanted, &give_up))
                    .await
            }
            Self::ShellExec => {
                let Some(command) = text("command") else { return lacks("command") };
                let limits = &workplace.limits;
                let asked = number("timeout_seconds").map(Duration::from_secs);
                let wait = asked.unwrap_or(limits.command).min(limits.command_max);
                shell::run(command, workplace, wait, cancel).await
            }
        }
    }
}

fn lacks(field: &str) -> Outcome {
    Outcome::failed(format!("{field}: is missing, or is not a string"))
}

/// Off the one thread that everything else runs on.
async fn on_files(work: impl FnOnce() -> Outcome + Send + 'static) -> Outcome {
    match timeout(FILES_MAX, tokio::task::spawn_blocking(work)).await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(error)) => Outcome::failed(format!("the tool broke: {error}")),
        Err(_) => Outcome {
            output: format!("the file system did not answer in {} s", FILES_MAX.as_secs()),
            end: End::TimedOut,
            file: None,
        },
    }
}
