//! What was found, as a table with the promise beside it, or as JSON.

use serde_json::{Value, json};

use super::samples::Samples;
use crate::say;

/// One promise of DESIGN.md section 3, and what came out.
pub(super) struct Finding {
    pub(super) what: String,
    pub(super) measured: String,
    pub(super) compared: String,
    pub(super) promise: &'static str,
    pub(super) met: bool,
}

/// The times of one contender.
#[derive(Default)]
pub(super) struct Times {
    pub(super) name: &'static str,
    pub(super) create: Samples,
    pub(super) first: Samples,
    pub(super) exec: Samples,
    pub(super) pause: Samples,
    pub(super) resume: Samples,
    pub(super) whole: Samples,
}

#[derive(Default)]
pub(super) struct Report {
    pub(super) facts: Vec<(&'static str, String)>,
    pub(super) times: Vec<Times>,
    pub(super) findings: Vec<Finding>,
    /// What was not measured, and why.
    pub(super) skipped: Vec<(String, String)>,
    /// What the launcher says of one create, step by step.
    pub(super) steps: Vec<String>,
    /// The points of the plot, in words.
    pub(super) curves: Vec<String>,
}

impl Report {
    pub(super) fn find(&mut self, finding: Finding) {
        let Finding { what, measured, compared, promise, met } = &finding;
        let verdict = if *met { "met" } else { "NOT MET" };
        say::error(&format!("{what}: {measured}; {compared} ({promise}: {verdict})"));
        self.findings.push(finding);
    }

    pub(super) fn curve(&mut self, line: String) {
        say::error(&line);
        self.curves.push(line);
    }

    pub(super) fn skip(&mut self, what: &str, why: &anyhow::Error) {
        say::error(&format!("skipped {what}: {why:#}"));
        self.skipped.push((what.to_owned(), format!("{why:#}")));
    }

    pub(super) fn print(&self) {
        for (name, value) in &self.facts {
            say::line(&format!("- {name}: {value}"));
        }
        if !self.times.is_empty() {
            self.print_times();
        }
        say::line("");
        let head = ["what", "measured", "compared", "promise", ""];
        let rows = self.findings.iter().map(|finding| {
            let Finding { what, measured, compared, promise, met } = finding;
            let verdict = if *met { "met" } else { "**not met**" };
            vec![
                what.clone(),
                measured.clone(),
                compared.clone(),
                (*promise).into(),
                verdict.into(),
            ]
        });
        table(&head, rows.collect());
        for (what, why) in &self.skipped {
            say::line(&format!("\nSkipped: {what} ({why})"));
        }
        if !self.curves.is_empty() {
            say::line("\nWith more sandboxes live, and with more at once (median / min / p99):\n");
            self.curves.iter().for_each(|line| say::line(&format!("- {line}")));
        }
        if !self.steps.is_empty() {
            say::line("\nOne create in the launcher, step by step:\n");
            self.steps.iter().for_each(|line| say::line(&format!("    {line}")));
        }
    }

    fn print_times(&self) {
        say::line("\nTimes in ms: median / min / p99.\n");
        let head = [
            "",
            "create",
            "create → first exec",
            "create, exec, destroy",
            "exec",
            "pause",
            "resume",
        ];
        let rows = self.times.iter().map(|times| {
            let Times { name, create, first, exec, pause, resume, whole } = times;
            let cells = [create, first, whole, exec, pause, resume].map(Samples::shown);
            [(*name).to_owned()].into_iter().chain(cells).collect()
        });
        table(&head, rows.collect());
    }

    pub(super) fn json(&self) -> Value {
        let facts: serde_json::Map<String, Value> =
            self.facts.iter().map(|(name, value)| ((*name).into(), json!(value))).collect();
        let times: Vec<Value> = self.times.iter().map(Times::json).collect();
        let findings: Vec<Value> = self.findings.iter().map(Finding::json).collect();
        let skipped: Vec<Value> =
            self.skipped.iter().map(|(what, why)| json!({ "what": what, "why": why })).collect();
        json!({
            "facts": facts, "times": times, "findings": findings, "skipped": skipped,
            "steps": self.steps, "curves": self.curves,
        })
    }
}

impl Times {
    fn json(&self) -> Value {
        let Self { name, create, first, exec, pause, resume, whole } = self;
        json!({
            "name": name, "create": create.json(), "create_to_first_exec": first.json(), "exec": exec.json(),
            "pause": pause.json(), "resume": resume.json(), "create_exec_destroy": whole.json(),
        })
    }
}

impl Finding {
    fn json(&self) -> Value {
        let Self { what, measured, compared, promise, met } = self;
        json!({
            "what": what, "measured": measured, "compared": compared, "promise": promise,
            "met": met,
        })
    }
}

/// A Markdown table whose columns line up.
fn table(head: &[&str], rows: Vec<Vec<String>>) {
    let mut all: Vec<Vec<String>> = vec![head.iter().map(|cell| (*cell).to_owned()).collect()];
    all.push(vec!["-".to_owned(); head.len()]);
    all.extend(rows);
    let widths: Vec<usize> = (0..head.len())
        .map(|column| all.iter().map(|row| row[column].chars().count()).max().unwrap_or(0))
        .collect();
    for (number, row) in all.iter().enumerate() {
        let fill = if number == 1 { '-' } else { ' ' };
        let cells = row.iter().zip(&widths).map(|(cell, width)| {
            let missing = width - cell.chars().count();
            format!("{cell}{}", fill.to_string().repeat(missing))
        });
        say::line(&format!("| {} |", cells.collect::<Vec<_>>().join(" | ")));
    }
}
