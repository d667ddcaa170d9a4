//! `cargo xtask demo`: what a newcomer would do first, by the commands that a newcomer would type.
//! Every step's result is checked; whatever happens, nothing stays behind.

mod instance;
mod sales;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail, ensure};
use serde_json::Value;

use self::instance::Instance;
use crate::say;

const SANDBOX: &str = "demo";
const PROGRAM: &str = include_str!("demo/report.py");

/// Runs the demo with this `bastide`.
pub(crate) fn run(bastide: &Path) -> anyhow::Result<()> {
    ensure!(bastide.is_file(), "no such program: {}", bastide.display());
    let begin = SystemTime::now();
    let mut instance = Instance::new(bastide)?;
    let mut demo = Demo { count: 0, files: instance.files()? };
    let done = demo.steps(&mut instance);
    let cleaned = demo.step("end the server, and everything of it", || {
        instance.finish().map(|()| "no process, mount, cgroup or file is left".to_owned())
    });
    done.and(cleaned)?;
    let took = begin.elapsed().unwrap_or_default();
    say::line(&format!("all {} steps checked in {:.1} s", demo.count, took.as_secs_f64()));
    Ok(())
}

struct Demo {
    count: u32,
    /// Where the demo's own files are.
    files: PathBuf,
}

impl Demo {
    fn steps(&mut self, instance: &mut Instance) -> anyhow::Result<()> {
        self.step("start the server", || instance.start())?;
        self.work(instance)?;
        self.step("kill -9 the server and the keeper, start again", || crash(instance))?;
        self.step("find the sandbox as it was, its processes too", || went_on(instance))?;
        self.stop_and_start(instance)
    }

    fn work(&mut self, instance: &Instance) -> anyhow::Result<()> {
        self.step("build the template standard", || build_template(instance))?;
        self.step("make a sandbox from it", || create(instance))?;
        let sales = sales::make();
        let csv = self.file("sales.csv", &sales.csv)?;
        let program = self.file("report.py", PROGRAM)?;
        self.step("upload the data and the program", || {
            instance.bastide(&["sandbox", "cp", &csv, "demo:/workspace/sales.csv"])?;
            instance.bastide(&["sandbox", "cp", &program, "demo:/workspace/"])?;
            Ok(format!("{} KiB of CSV", sales.csv.len() / 1024))
        })?;
        self.step("run the program inside", || run_program(instance, sales.rows))?;
        let report = self.files.join("report.json");
        self.step("download its result and check it", || {
            download(instance, &report, &sales.expected)
        })
    }

    fn stop_and_start(&mut self, instance: &Instance) -> anyhow::Result<()> {
        let report = self.files.join("report.json");
        self.step("stop the sandbox", || change(instance, "stop", "stopped"))?;
        self.step("start it again", || change(instance, "start", "running"))?;
        self.step("find the workspace as it was", || survived(instance, &report))?;
        self.step("destroy the sandbox", || destroy(instance))
    }

    /// Does one thing, checks it, and prints what it did and how long it took.
    fn step(
        &mut self,
        name: &str,
        work: impl FnOnce() -> anyhow::Result<String>,
    ) -> anyhow::Result<()> {
        self.count += 1;
        let begin = SystemTime::now();
        let done = work();
        let took = begin.elapsed().unwrap_or_default();
        match &done {
            Ok(what) => say::line(&format!("  ok {}  {name}: {what}", seconds(took))),
            Err(_) => say::line(&format!("FAIL {}  {name}", seconds(took))),
        }
        done.map(drop).with_context(|| name.to_owned())
    }

    fn file(&self, name: &str, content: &str) -> anyhow::Result<String> {
        let path = self.files.join(name);
        fs::write(&path, content).with_context(|| format!("write {}", path.display()))?;
        path.to_str().map(str::to_owned).context("the temporary directory's name is not UTF-8")
    }
}

fn seconds(took: Duration) -> String {
    format!("{:8.3} s", took.as_secs_f64())
}

fn build_template(instance: &Instance) -> anyhow::Result<String> {
    // Its progress is for the person at the terminal.
    let status =
        instance.command(&["template", "build", "standard"]).stdout(Stdio::null()).status()?;
    ensure!(status.success(), "the build ended with {status}");
    let list = instance.json(&["template", "list"])?;
    let templates = list["templates"].as_array().context("no templates in the list")?;
    let standard = templates.iter().find(|one| one["name"] == "standard");
    let standard = standard.context("standard is not in the list")?;
    ensure!(standard["built"] == true, "standard is in the list but not built");
    let bytes = standard["size_bytes"].as_u64().context("standard has no size")?;
    ensure!(bytes > 50 << 20, "standard is only {bytes} bytes");
    Ok(format!("Debian, {} MiB", bytes >> 20))
}

fn create(instance: &Instance) -> anyhow::Result<String> {
    let made = instance.json(&[
        "sandbox",
        "create",
        "--template",
        "standard",
        "--name",
        SANDBOX,
        "--tier",
        "persistent",
    ])?;
    ensure!(made["state"] == "running", "its state is {}", made["state"]);
    ensure!(made["name"] == SANDBOX, "its name is {}", made["name"]);
    let system = instance.bastide(&[
        "sandbox",
        "exec",
        SANDBOX,
        "--",
        ". /etc/os-release; echo $ID; id -un",
    ])?;
    ensure!(system == "debian\nuser\n", "inside, the system and the account are {system:?}");
    Ok(made["id"].as_str().unwrap_or_default().to_owned())
}

fn run_program(instance: &Instance, rows: u64) -> anyhow::Result<String> {
    let said = instance.bastide(&[
        "sandbox",
        "exec",
        SANDBOX,
        "--cwd",
        "/workspace",
        "--",
        "python3",
        "report.py",
    ])?;
    ensure!(said == format!("{rows} rows read\n"), "it said {said:?}");
    let failed = instance.exit_code(&["sandbox", "exec", SANDBOX, "--", "exit 7"])?;
    ensure!(failed == 7, "a command that exits with 7 gave {failed}");
    Ok(said.trim_end().to_owned())
}

fn download(instance: &Instance, to: &Path, expected: &Value) -> anyhow::Result<String> {
    let to_text = to.to_str().context("the temporary directory's name is not UTF-8")?;
    instance.bastide(&["sandbox", "cp", "demo:/workspace/report.json", to_text])?;
    let text = fs::read(to).context("read the downloaded report")?;
    let report: Value = serde_json::from_slice(&text).context("parse the downloaded report")?;
    ensure!(report == *expected, "the report is {report}, not {expected}");
    Ok(format!("{} regions, every total right", expected.as_object().map_or(0, |map| map.len())))
}

fn crash(instance: &mut Instance) -> anyhow::Result<String> {
    instance.bastide(&[
        "sandbox",
        "exec",
        SANDBOX,
        "--",
        "nohup sleep 1000 >/dev/null 2>&1 & echo $! > /workspace/pid",
    ])?;
    instance.kill_server()?;
    instance.end_keeper()?;
    instance.start()
}

fn went_on(instance: &Instance) -> anyhow::Result<String> {
    let now = instance.json(&["sandbox", "get", SANDBOX])?;
    ensure!(now["state"] == "running", "its state is {}", now["state"]);
    let command = "tr '\\0' ' ' < /proc/$(cat /workspace/pid)/cmdline";
    let said = instance.bastide(&["sandbox", "exec", SANDBOX, "--", command])?;
    ensure!(said.trim_end() == "sleep 1000", "inside runs {said:?}");
    Ok("it never noticed".into())
}

fn change(instance: &Instance, verb: &str, state: &str) -> anyhow::Result<String> {
    instance.bastide(&["sandbox", verb, SANDBOX])?;
    let now = instance.json(&["sandbox", "get", SANDBOX])?;
    ensure!(now["state"] == state, "its state is {}", now["state"]);
    Ok(state.to_owned())
}

fn survived(instance: &Instance, report: &Path) -> anyhow::Result<String> {
    let inside =
        instance.bastide(&["sandbox", "files", "cat", SANDBOX, "/workspace/report.json"])?;
    let outside = fs::read_to_string(report).context("read the downloaded report")?;
    ensure!(inside == outside, "the report inside has changed");
    let again = instance.bastide(&[
        "sandbox",
        "exec",
        SANDBOX,
        "--cwd",
        "/workspace",
        "--",
        "python3",
        "report.py",
    ])?;
    Ok(format!("the same report, and the program runs again: {}", again.trim_end()))
}

fn destroy(instance: &Instance) -> anyhow::Result<String> {
    instance.bastide(&["sandbox", "rm", SANDBOX])?;
    let code = instance.exit_code(&["sandbox", "exec", SANDBOX, "--", "true"])?;
    if code == 0 {
        bail!("it still runs commands");
    }
    let list = instance.json(&["sandbox", "list"])?;
    let alive = |one: &&Value| one["state"] != "destroyed";
    let left = list.as_array().context("the list is not one")?.iter().filter(alive).count();
    ensure!(left == 0, "{left} sandboxes are left");
    Ok("nothing is left".into())
}
