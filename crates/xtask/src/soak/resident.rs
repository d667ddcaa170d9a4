//! One sandbox from its create to its delete, and what a client of it may rely on.
//!
//! Every call has one of three outcomes: answered well (it is so, whatever is killed afterwards),
//! refused (a server's error: it is as before, or as it was asked), or unknown (the connection broke).
//! After the last two the resident looks for itself, and what it sees must be one of the two.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};

use super::http::{Answer, Ask};
use super::{Dice, Shared, pause};

/// Whatever is killed, a sandbox is in one of its lasting states again by then.
const SETTLES_WITHIN: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    Absent,
    Running,
    Paused,
    Stopped,
    Gone,
}

pub(super) struct Resident {
    name: String,
    key: String,
    is_kept: bool,
    id: Option<String>,
    may: BTreeSet<Stage>,
    /// The last call did not end well.
    must_look: bool,
    /// What `/workspace/note` and the upload hold; several when nobody knows whether the last came through.
    note: Vec<String>,
    upload: Vec<String>,
    written: u32,
    /// Acknowledged, for the events to be compared with.
    pub(super) starts: u32,
    pub(super) stops: u32,
}

impl Resident {
    pub(super) fn new(name: String, is_kept: bool) -> Self {
        let key = format!("key-{name}");
        let may = BTreeSet::from([Stage::Absent]);
        let (note, upload) = (vec![String::new()], vec![String::new()]);
        Self {
            name,
            key,
            is_kept,
            id: None,
            may,
            must_look: false,
            note,
            upload,
            written: 0,
            starts: 0,
            stops: 0,
        }
    }

    pub(super) fn stage(&self) -> Option<Stage> {
        self.may.first().copied().filter(|_| self.may.len() == 1)
    }

    pub(super) fn id(&self) -> Option<&str> {
        self.id.as_deref()
    }

    pub(super) fn bare(&self) -> Option<String> {
        self.id.as_ref().map(|id| id.trim_start_matches("sb-").to_owned())
    }

    pub(super) fn is_over(&self) -> bool {
        self.stage() == Some(Stage::Gone)
    }

    /// One thing that a client may do now.
    pub(super) fn act(&mut self, shared: &Shared, dice: &mut Dice) -> anyhow::Result<()> {
        let stage = self.settle(shared)?;
        let acted = match (stage, dice.below(20)) {
            (Stage::Absent, _) => self.create(shared),
            (Stage::Gone, _) | (_, 0) => self.create(shared),
            (Stage::Running, 1..6) => self.read_back(shared).map(drop),
            (Stage::Running, 6..9) => self.write_note(shared),
            (Stage::Running, 9..12) => self.write_upload(shared),
            (Stage::Running, 12..14) => self.change(shared, "pause", Stage::Paused),
            (Stage::Running, 14..18) => self.change(shared, "stop", Stage::Stopped),
            (Stage::Paused, 1..16) => self.change(shared, "resume", Stage::Running),
            (Stage::Stopped, 1..11) => self.change(shared, "start", Stage::Running),
            (Stage::Stopped, 11..14) => self.export(shared),
            (Stage::Stopped, 14..18) => self.import(shared),
            (Stage::Running | Stage::Paused | Stage::Stopped, _) => self.delete(shared),
        };
        acted.with_context(|| format!("{} ({:?}) was {stage:?}", self.name, self.id))
    }

    /// Everything that was acknowledged is so.
    pub(super) fn check(&mut self, shared: &Shared) -> anyhow::Result<()> {
        let begin = SystemTime::now();
        while self.settle(shared)? == Stage::Running && !self.read_back(shared)? {
            let late = begin.elapsed()? > SETTLES_WITHIN;
            ensure!(!late, "{} is told to run, but does not answer", self.name);
            pause(20);
        }
        if self.id.is_some() {
            self.create(shared)?;
        }
        Ok(())
    }

    /// Deletes it however often that takes; no answer but a good one is final.
    pub(super) fn end(&mut self, shared: &Shared) -> anyhow::Result<()> {
        while !matches!(self.settle(shared)?, Stage::Gone | Stage::Absent) {
            self.delete(shared)?;
        }
        Ok(())
    }

    /// Where it is now, which must be where it may be.
    fn settle(&mut self, shared: &Shared) -> anyhow::Result<Stage> {
        if let Some(stage) = self.stage()
            && !self.must_look
            && !shared.is_casualty(self.bare().as_deref())
        {
            return Ok(stage);
        }
        if self.may.contains(&Stage::Absent) {
            // Nobody knows its id; the idempotency key finds it or makes it.
            self.must_look = false;
            return Ok(Stage::Absent);
        }
        let seen = self.observe(shared)?;
        let mut allowed = self.may.clone();
        if shared.is_casualty(self.bare().as_deref()) {
            allowed.insert(if self.is_kept { Stage::Stopped } else { Stage::Gone });
        }
        ensure!(allowed.contains(&seen), "{} is {seen:?}, but may be {allowed:?}", self.name);
        if seen == Stage::Stopped || seen == Stage::Gone {
            shared.absolve(self.bare().as_deref());
        }
        self.may = BTreeSet::from([seen]);
        self.must_look = false;
        Ok(seen)
    }

    fn observe(&self, shared: &Shared) -> anyhow::Result<Stage> {
        let begin = SystemTime::now();
        let path = self.path("");
        loop {
            let answer = shared.client.get(&path);
            let told = match &answer {
                Ok(answer) if answer.status == 404 => Some(Stage::Gone),
                Ok(answer) if answer.is_good() => stage_of(&answer.json()?),
                Ok(_) | Err(_) => None,
            };
            if let Some(stage) = told {
                return Ok(stage);
            }
            if begin.elapsed()? > SETTLES_WITHIN {
                let last = answer.map_or_else(|error| error.to_string(), |answer| answer.text());
                bail!("{} does not come to rest: {last}", self.name);
            }
            pause(20);
        }
    }

    /// Also when it exists: the same key gives the same sandbox.
    fn create(&mut self, shared: &Shared) -> anyhow::Result<()> {
        let tier = if self.is_kept { "persistent" } else { "ephemeral" };
        let mut body = json!({"template": "host", "name": self.name, "tier": tier, "disk_gb": 1});
        if !self.is_kept {
            body["idle_timeout_seconds"] = json!(3600);
        }
        let answer = shared.client.ask(&Ask {
            method: "POST",
            path: "/v1/sandboxes",
            headers: &[("Content-Type", "application/json"), ("Idempotency-Key", &self.key)],
            body: body.to_string().as_bytes(),
        });
        let Ok(answer) = answer else { return Ok(()) };
        if !answer.is_good() {
            ensure!(answer.status >= 500, "create: {} {}", answer.status, answer.text());
            return Ok(());
        }
        let id = answer.json()?["id"].as_str().context("an id")?.to_owned();
        match &self.id {
            Some(known) => ensure!(*known == id, "the key gave {id}, before it gave {known}"),
            None => {
                self.id = Some(id);
                self.starts += 1;
                self.may = BTreeSet::from([Stage::Running]);
                // An earlier try, whose answer was lost, may have made it; it may have died since.
                self.forgive(shared);
            }
        }
        Ok(())
    }

    /// A casualty whose id was not known when it was killed.
    fn forgive(&mut self, shared: &Shared) {
        if shared.is_casualty(self.bare().as_deref()) {
            self.may.insert(if self.is_kept { Stage::Stopped } else { Stage::Gone });
        }
    }

    /// Whether it answered.
    fn read_back(&mut self, shared: &Shared) -> anyhow::Result<bool> {
        let command =
            "cat /workspace/note; echo; cat /var/tmp/note; echo; cat /workspace/upload; :";
        let Some(output) = self.run(shared, command)? else { return Ok(false) };
        let lines: Vec<&str> = output.lines().collect();
        let line = |at: usize| lines.get(at).copied().unwrap_or_default().to_owned();
        let (note, upper, upload) = (line(0), line(1), line(2));
        ensure!(self.note.contains(&note), "the note is {note:?}, not {:?}", self.note);
        ensure!(self.note.contains(&upper), "the upper has {upper:?}, not {:?}", self.note);
        ensure!(self.upload.contains(&upload), "upload {upload:?}, not {:?}", self.upload);
        self.upload = vec![upload];
        Ok(true)
    }

    fn write_note(&mut self, shared: &Shared) -> anyhow::Result<()> {
        self.written += 1;
        let text = format!("{}-{}", self.name, self.written);
        // Until it is answered either may be there, or nothing: it is a plain redirection.
        self.note.extend([text.clone(), String::new()]);
        let command = format!("printf {text} > /workspace/note && printf {text} > /var/tmp/note");
        if self.run(shared, &command)?.is_some() {
            self.note = vec![text];
        }
        Ok(())
    }

    /// A whole file or none: it never has half of one.
    fn write_upload(&mut self, shared: &Shared) -> anyhow::Result<()> {
        self.written += 1;
        let text = format!("{}-{}", self.name, self.written).repeat(4000);
        self.upload.push(text.clone());
        let path = self.path("/files?path=/workspace/upload");
        let headers = &[("Content-Type", "application/octet-stream")];
        let ask = Ask { method: "POST", path: &path, headers, body: text.as_bytes() };
        if self.outcome(shared, "upload", shared.client.ask(&ask))?.is_some() {
            self.upload = vec![text];
        }
        Ok(())
    }

    /// The output of a command that was answered; `None` when nobody knows.
    fn run(&mut self, shared: &Shared, command: &str) -> anyhow::Result<Option<String>> {
        let body = json!({"command": command, "user": "root"});
        let asked = shared.client.post(&self.path("/exec"), &body);
        let Some(answer) = self.outcome(shared, "exec", asked)? else { return Ok(None) };
        let answer = answer.json()?;
        if answer["exit_code"] != json!(0) {
            // Killed with its sandbox.
            let victim = shared.is_casualty(self.bare().as_deref());
            ensure!(victim, "{command:?} answered {answer}");
            return Ok(None);
        }
        Ok(Some(answer["stdout"].as_str().context("an output")?.to_owned()))
    }

    fn change(&mut self, shared: &Shared, what: &str, to: Stage) -> anyhow::Result<()> {
        self.may.insert(to);
        let asked = shared.client.post(&self.path(&format!("/{what}")), &Value::Null);
        if self.outcome(shared, what, asked)?.is_none() {
            return Ok(());
        }
        self.may = BTreeSet::from([to]);
        if to == Stage::Stopped {
            self.stops += 1;
        }
        if what == "start" {
            self.starts += 1;
        }
        Ok(())
    }

    fn export(&mut self, shared: &Shared) -> anyhow::Result<()> {
        let asked = shared.client.get(&self.path("/files/export"));
        if let Some(answer) = self.outcome(shared, "export", asked)? {
            let entries = answer.body.windows(4).filter(|four| four == b"note").count();
            let has_note = !self.note.contains(&String::new());
            ensure!(!has_note || entries > 0, "an export without the note");
        }
        Ok(())
    }

    fn import(&mut self, shared: &Shared) -> anyhow::Result<()> {
        self.written += 1;
        let text = format!("{}-{}", self.name, self.written);
        self.upload.push(text.clone());
        let path = self.path("/files/import");
        let headers = &[("Content-Type", "application/x-tar")];
        let body = tar("upload", text.as_bytes());
        let asked = shared.client.ask(&Ask { method: "POST", path: &path, headers, body: &body });
        if self.outcome(shared, "import", asked)?.is_some() {
            self.upload = vec![text];
        }
        Ok(())
    }

    fn delete(&mut self, shared: &Shared) -> anyhow::Result<()> {
        self.may.insert(Stage::Gone);
        let path = self.path("");
        let ask = Ask { method: "DELETE", path: &path, headers: &[], body: &[] };
        match shared.client.ask(&ask) {
            Ok(answer) if answer.is_good() || answer.status == 404 => {
                if answer.status == 404 {
                    let victim = shared.is_casualty(self.bare().as_deref()) && !self.is_kept;
                    ensure!(victim, "delete of what was there: {}", answer.text());
                }
                self.may = BTreeSet::from([Stage::Gone]);
                shared.absolve(self.bare().as_deref());
                Ok(())
            }
            Ok(answer) => {
                ensure!(answer.status >= 500, "delete: {} {}", answer.status, answer.text());
                Ok(())
            }
            Err(_) => Ok(()),
        }
    }

    /// The answer, if it is a good one. Refusals are fine from a server that lost a part a moment ago.
    fn outcome(
        &mut self,
        shared: &Shared,
        what: &str,
        answer: anyhow::Result<Answer>,
    ) -> anyhow::Result<Option<Answer>> {
        let Ok(answer) = answer else {
            self.must_look = true;
            return Ok(None);
        };
        if answer.is_good() {
            return Ok(Some(answer));
        }
        // A create that is refused names its sandbox, which its caller does not know otherwise.
        let text = answer.text();
        let named = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
        let named = named.filter_map(|word| word.strip_prefix("sb-")).next();
        let victim = shared.is_casualty(self.bare().as_deref().or(named));
        let is_fine = answer.status >= 500 || (victim && matches!(answer.status, 404 | 409));
        // Its predecessor's guest over the workspace is ended by the next server, which takes a moment.
        if !is_fine {
            let is = shared.client.get(&self.path("")).map(|seen| seen.text());
            bail!("{what}: {} {}; it is {is:?}", answer.status, answer.text());
        }
        self.must_look = true;
        Ok(None)
    }

    fn path(&self, rest: &str) -> String {
        format!("/v1/sandboxes/{}{rest}", self.id.as_deref().unwrap_or(&self.name))
    }
}

/// Only the lasting ones.
fn stage_of(sandbox: &Value) -> Option<Stage> {
    match sandbox["state"].as_str()? {
        "running" => Some(Stage::Running),
        "paused" => Some(Stage::Paused),
        "stopped" => Some(Stage::Stopped),
        "destroyed" => Some(Stage::Gone),
        _ => None,
    }
}

/// An archive of one file.
fn tar(name: &str, content: &[u8]) -> Vec<u8> {
    let mut header = [0_u8; 512];
    let mut put =
        |at: usize, text: &str| header[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, name);
    put(100, "0000644\0");
    put(108, "0001750\0");
    put(116, "0001750\0");
    put(124, &format!("{:011o}\0", content.len()));
    put(136, "00000000000\0");
    put(148, "        ");
    put(156, "0");
    put(257, "ustar\x0000");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let mut archive = header.to_vec();
    archive.extend_from_slice(content);
    archive.resize(archive.len().next_multiple_of(512) + 1024, 0);
    archive
}
