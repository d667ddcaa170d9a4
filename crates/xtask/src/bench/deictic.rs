//! Our own agent beside the real programs: the same scripted conversation, one after the other and again. What a
//! step costs is the time from the last byte of an answer that calls a tool to the next request, so the
//! model's time is not in it; running `true` in a shell is. Memory is that of the whole tree at its last
//! request.

mod model;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail, ensure};

use self::model::{Dialect, Model};
use super::clock::{Stopwatch, wait_until};
use super::report::{Finding, Report};
use super::samples::{Samples, ms, times};

/// Calls in one conversation.
const STEPS: usize = 30;
const ROUNDS: usize = 5;
const WAIT: Duration = Duration::from_secs(120);
const KEY: &str = "bench-key";

struct Contender {
    name: &'static str,
    dialect: Dialect,
    command: fn(&Setting<'_>) -> anyhow::Result<Command>,
    step: Samples,
    whole: Samples,
    /// Resident, of all its processes.
    kib: Vec<u64>,
}

struct Setting<'a> {
    binary: &'a Path,
    programs: &'a Path,
    home: &'a Path,
    url: &'a str,
}

/// `programs` has `bin/claude` and `bin/codex`.
pub(super) fn run(
    binary: &Path,
    programs: &Path,
    dir: &Path,
    report: &mut Report,
) -> anyhow::Result<()> {
    fs::create_dir_all(dir)?;
    // They are started elsewhere.
    let (binary, programs) = (&std::path::absolute(binary)?, &std::path::absolute(programs)?);
    let mut contenders = [
        contender("deictic", Dialect::Messages, deictic),
        contender("deictic (Responses)", Dialect::Responses, deictic),
        contender("claude", Dialect::Messages, claude),
        contender("codex", Dialect::Responses, codex),
    ];
    let mut left_out = BTreeMap::new();
    for round in 0..=ROUNDS {
        for contender in &mut contenders {
            if left_out.contains_key(contender.name) {
                continue;
            }
            let home = dir.join(format!("{}-{round}", contender.name.replace(' ', "-")));
            if let Err(error) = contender.talk(binary, programs, &home, round > 0) {
                left_out.insert(contender.name, error);
            }
        }
    }
    for (name, error) in &left_out {
        report.skip(&format!("the loop of {name}"), error);
    }
    found(&contenders, report)
}

fn contender(
    name: &'static str,
    dialect: Dialect,
    command: fn(&Setting<'_>) -> anyhow::Result<Command>,
) -> Contender {
    let (step, whole) = (Samples::default(), Samples::default());
    Contender { name, dialect, command, step, whole, kib: Vec::new() }
}

fn found(contenders: &[Contender], report: &mut Report) -> anyhow::Result<()> {
    let ours = &contenders[0];
    ensure!(!ours.step.is_empty(), "our own agent was not measured");
    for one in contenders.iter().filter(|one| !one.step.is_empty()) {
        let ratio = times(one.step.median(), ours.step.median());
        report.find(Finding {
            what: format!("{}: overhead of a step, model time excluded", one.name),
            measured: format!(
                "p50 {} ms, p99 {} ms; {:.1} MiB resident; {STEPS} steps in {} ms",
                ms(one.step.median()),
                ms(one.step.p99()),
                one.mib(),
                ms(one.whole.median()),
            ),
            compared: format!("{ratio:.1}× deictic's, {:.1}× its memory", one.mib() / ours.mib()),
            promise: "deictic: p50 ≤ 10 ms and ≤ 32 MiB",
            met: !one.name.starts_with("deictic")
                || (one.step.median() <= Duration::from_millis(10) && one.mib() <= 32.0),
        });
    }
    Ok(())
}

impl Contender {
    fn mib(&self) -> f64 {
        self.kib.iter().max().copied().unwrap_or(0) as f64 / 1024.0
    }

    /// The first conversation is for caches.
    fn talk(
        &mut self,
        binary: &Path,
        programs: &Path,
        home: &Path,
        counts: bool,
    ) -> anyhow::Result<()> {
        fs::create_dir_all(home.join("work"))?;
        let model = Model::serve(self.dialect, STEPS)?;
        let url = model.url();
        let setting = Setting { binary, programs, home, url: &url };
        let mut command = (self.command)(&setting)?;
        command
            .env_clear()
            .envs(environment(&setting))
            .current_dir(home.join("work"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let watch = Stopwatch::start();
        let mut child = Running(command.spawn().with_context(|| format!("start {}", self.name))?);
        model.measures(child.0.id());
        let ended = wait_until(WAIT, || matches!(child.0.try_wait(), Ok(Some(_)) | Err(_)));
        let took = watch.time();
        ensure!(ended, "{} does not end", self.name);
        let (gaps, kib) = model.result();
        if gaps.len() != STEPS {
            bail!("{} made {} of {STEPS} steps", self.name, gaps.len());
        }
        if counts {
            gaps.into_iter().for_each(|gap| self.step.push(Some(gap)));
            self.whole.push(Some(took));
            self.kib.push(kib);
        }
        Ok(())
    }
}

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn environment(setting: &Setting<'_>) -> Vec<(&'static str, String)> {
    vec![
        ("HOME", setting.home.display().to_string()),
        ("PATH", "/usr/local/bin:/usr/bin:/bin".to_owned()),
        ("LANG", "C.UTF-8".to_owned()),
        ("IS_SANDBOX", "1".to_owned()),
        ("ANTHROPIC_API_KEY", KEY.to_owned()),
        ("ANTHROPIC_BASE_URL", setting.url.to_owned()),
        ("OPENAI_API_KEY", KEY.to_owned()),
        ("OPENAI_BASE_URL", format!("{}/v1", setting.url)),
        ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1".to_owned()),
        ("DISABLE_AUTOUPDATER", "1".to_owned()),
        ("DISABLE_TELEMETRY", "1".to_owned()),
        // Whatever is not for the model ends here.
        ("HTTPS_PROXY", "http://127.0.0.1:9".to_owned()),
        ("NO_PROXY", "127.0.0.1,localhost".to_owned()),
    ]
}

fn deictic(setting: &Setting<'_>) -> anyhow::Result<Command> {
    let mut command = Command::new(setting.binary);
    // Which of the two formats is told by the address that its model is served at.
    let model = if setting.home.to_string_lossy().contains("Responses") {
        "openai/bench"
    } else {
        "anthropic/bench"
    };
    // The daemon's own program, as sandboxes have it, can be measured too.
    if setting.binary.file_name().is_none_or(|name| name != "agentd") {
        command.arg("agents");
    }
    command.args(["deictic", "--permission-mode", "bypass", "--model", model, "--task", "go"]);
    Ok(command)
}

fn claude(setting: &Setting<'_>) -> anyhow::Result<Command> {
    let mut command = Command::new(program(setting, "claude")?);
    command.args(["--print", "--dangerously-skip-permissions", "--model", "bench", "go"]);
    Ok(command)
}

/// It takes the address of its model from a file.
fn codex(setting: &Setting<'_>) -> anyhow::Result<Command> {
    let config = format!(
        "model = \"bench\"\nmodel_provider = \"bench\"\n[features]\nplugins = false\napps = false\n\
         [model_providers.bench]\nname = \"bench\"\nbase_url = \"{}/v1\"\n\
         wire_api = \"responses\"\nenv_key = \"OPENAI_API_KEY\"\n",
        setting.url
    );
    fs::create_dir_all(setting.home.join(".codex"))?;
    fs::write(setting.home.join(".codex/config.toml"), config)?;
    let mut command = Command::new(program(setting, "codex")?);
    command.args(["exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]);
    command.arg("go");
    Ok(command)
}

fn program(setting: &Setting<'_>, name: &str) -> anyhow::Result<PathBuf> {
    let path = setting.programs.join("bin").join(name);
    ensure!(
        path.exists(),
        "no {}: cargo nextest run -p agentd programs::the_programs fetches it",
        path.display()
    );
    Ok(path)
}
