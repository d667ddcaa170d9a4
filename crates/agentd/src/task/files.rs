//! The files of a task. What cannot be written is told to the daemon's log: a full disk must not keep
//! the task's end from being known.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::PathBuf;

use super::{Task, TaskPlace};

pub(super) struct Files {
    pub(super) place: TaskPlace,
    pub(super) data_dir: PathBuf,
}

impl Files {
    /// Its exit code, if it has ended.
    pub(super) fn ended(&self) -> Option<i32> {
        fs::read_to_string(self.exit()).ok()?.trim().parse().ok()
    }

    pub(super) fn was_started(&self) -> bool {
        self.mark().exists()
    }

    /// From now on it was started.
    pub(super) fn start(&self) -> io::Result<()> {
        File::create(self.mark())?.sync_all()
    }

    /// For the agent to read while it starts. Where there is no such directory, its environment has to do.
    pub(super) fn write_config(&self, task: &Task) -> io::Result<()> {
        if !self.place.config.is_dir() {
            return Ok(());
        }
        self.forget_config();
        let text = serde_json::to_vec_pretty(task)?;
        let mut file =
            OpenOptions::new().write(true).create_new(true).mode(0o400).open(self.config())?;
        file.write_all(&text)
    }

    pub(super) fn forget_config(&self) {
        let _ = fs::remove_file(self.config());
    }

    /// `app_json` on its own, if there is one and a place for it.
    pub(super) fn write_app(&self, task: &Task) -> io::Result<Option<PathBuf>> {
        let Some(app) = &task.app_json else { return Ok(None) };
        let dir = if self.place.config.is_dir() { &self.place.config } else { &self.data_dir };
        let path = dir.join("app.json");
        fs::write(&path, serde_json::to_vec(app)?)?;
        Ok(Some(path))
    }

    pub(super) fn log(&self) -> io::Result<File> {
        OpenOptions::new().append(true).create(true).open(self.place.tmp.join("agent.log"))
    }

    pub(super) fn result(&self) -> io::Result<File> {
        File::create(self.place.tmp.join("result.txt"))
    }

    /// Says that it has ended. `why` is for a result that says nothing itself.
    pub(super) fn end(&self, exit_code: i32, why: &str) {
        self.forget_config();
        let result = self.place.tmp.join("result.txt");
        if !why.is_empty() && fs::metadata(&result).map_or(0, |found| found.len()) == 0 {
            let _ = fs::write(&result, format!("{why}\n"));
        }
        let fresh = self.place.tmp.join(".agent.exit");
        let written = fs::write(&fresh, format!("{exit_code}\n"))
            .and_then(|()| fs::set_permissions(&fresh, fs::Permissions::from_mode(0o644)))
            .and_then(|()| fs::rename(&fresh, self.exit()));
        if let Err(error) = written {
            tracing::error!("cannot write how the task ended: {error}");
        }
    }

    fn config(&self) -> PathBuf {
        self.place.config.join("env.json")
    }

    fn exit(&self) -> PathBuf {
        self.place.tmp.join("agent.exit")
    }

    fn mark(&self) -> PathBuf {
        self.data_dir.join("task")
    }
}
