//! The part of a Dockerfile that makes one image: FROM, RUN, COPY, ENV, WORKDIR, USER, CMD. Whatever
//! else is written there is refused with its line, because to leave it out would be another image.

use std::collections::BTreeMap;
use std::path::Path;

use model::{Error, Result, TemplateName};

use super::context::Source;
use super::definition::Base;
use super::recipe::{LIMITS, Outcome, Recipe, Script, Step, Work};

/// What the lines so far add up to.
struct Reading<'a> {
    context: &'a Path,
    base: Option<Base>,
    steps: Vec<Step>,
    env: BTreeMap<String, String>,
    workdir: Option<String>,
    user: Option<String>,
    start: Option<Vec<String>>,
}

const NOT_HERE: &[&str] = &[
    "ADD",
    "ARG",
    "ENTRYPOINT",
    "EXPOSE",
    "HEALTHCHECK",
    "LABEL",
    "MAINTAINER",
    "ONBUILD",
    "SHELL",
    "STOPSIGNAL",
    "VOLUME",
];

/// Reads the text of a Dockerfile; COPY takes files from below `context`.
///
/// # Errors
/// `Invalid` with the number of the line that is not understood.
pub fn dockerfile(name: TemplateName, text: &str, context: &Path) -> Result<Recipe> {
    let mut reading = Reading {
        context,
        base: None,
        steps: Vec::new(),
        env: BTreeMap::new(),
        workdir: None,
        user: None,
        start: None,
    };
    for (number, line) in instructions(text) {
        reading.take(&line).map_err(|why| wrong(number, &why))?;
    }
    let base = reading.base.ok_or_else(|| wrong(1, "there is no FROM"))?;
    let outcome = Outcome {
        user: reading.user,
        sudo: None,
        nesting: None,
        env: reading.env,
        limits: Some(LIMITS),
        workdir: reading.workdir,
        start: reading.start,
    };
    Ok(Recipe { name, base, steps: reading.steps, outcome })
}

fn wrong(number: usize, why: &str) -> Error {
    Error::invalid("dockerfile", format!("line {number}: {why}"))
}

/// Whole instructions with the number of their first line: comments out, continued lines joined.
fn instructions(text: &str) -> Vec<(usize, String)> {
    let mut all: Vec<(usize, String)> = Vec::new();
    let mut open = false;
    for (index, line) in text.trim_start_matches('\u{feff}').lines().enumerate() {
        let trimmed = line.trim();
        if trimmed.starts_with('#') || trimmed.is_empty() {
            continue;
        }
        let (piece, goes_on) = match trimmed.strip_suffix('\\') {
            Some(piece) => (piece, true),
            None => (trimmed, false),
        };
        match all.last_mut().filter(|_| open) {
            Some((_, whole)) => whole.push_str(piece),
            None => all.push((index + 1, piece.to_owned())),
        }
        open = goes_on;
    }
    all
}

type Why = std::result::Result<(), String>;

impl Reading<'_> {
    fn take(&mut self, line: &str) -> Why {
        let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let (word, rest) = (word.to_ascii_uppercase(), rest.trim());
        if rest.is_empty() {
            return Err(format!("{word} needs something after it"));
        }
        if self.base.is_none() && word != "FROM" {
            return Err(format!("{word} before FROM"));
        }
        match word.as_str() {
            "FROM" => self.from(rest),
            "RUN" => self.run(rest, line),
            "COPY" => self.copy(rest, line),
            "ENV" => self.env(rest),
            "WORKDIR" => self.workdir(rest, line),
            "USER" => {
                self.user = Some(self.expand(rest)?);
                Ok(())
            }
            "CMD" => {
                self.start = Some(command(rest)?);
                Ok(())
            }
            other if NOT_HERE.contains(&other) => Err(format!(
                "{other} is not supported; FROM, RUN, COPY, ENV, WORKDIR, USER and CMD are"
            )),
            other => Err(format!("unknown instruction: {other}")),
        }
    }

    fn from(&mut self, rest: &str) -> Why {
        if self.base.is_some() {
            return Err("a second FROM: builds of several stages are not supported".into());
        }
        let mut words = rest.split_whitespace();
        let first = words.next().unwrap_or_default();
        if first.starts_with("--") {
            return Err(format!("FROM {first} is not supported"));
        }
        if words.next().is_some() {
            return Err("FROM takes one image; `AS` is not supported".into());
        }
        self.base = Some(Base::either(first).map_err(|error| error.to_string())?);
        Ok(())
    }

    fn run(&mut self, rest: &str, line: &str) -> Why {
        if rest.starts_with("--") {
            return Err("options of RUN are not supported".into());
        }
        if rest.contains("<<") && rest.split("<<").nth(1).is_some_and(is_heredoc) {
            return Err("here-documents are not supported".into());
        }
        let script = Script {
            argv: command(rest)?,
            user: self.user.clone(),
            cwd: Some(self.workdir.clone().unwrap_or_else(|| "/".into())),
            env: self.env.clone(),
        };
        self.steps.push(Step { title: shown(line), work: Work::Run(script) });
        Ok(())
    }

    fn copy(&mut self, rest: &str, line: &str) -> Why {
        if rest.starts_with("--") {
            let option = rest.split([' ', '=']).next().unwrap_or_default();
            return Err(format!("COPY {option} is not supported"));
        }
        let words: Vec<String> = match rest.starts_with('[') {
            true => json_words(rest)?,
            false => rest.split_whitespace().map(str::to_owned).collect(),
        };
        let words: Vec<String> =
            words.iter().map(|word| self.expand(word)).collect::<std::result::Result<_, _>>()?;
        let Some((to, from)) = words.split_last().filter(|(_, from)| !from.is_empty()) else {
            return Err("COPY takes what to copy and where to".into());
        };
        if let Some(pattern) = from.iter().find(|one| one.contains(['*', '?', '['])) {
            return Err(format!("patterns are not supported: {pattern}"));
        }
        let is_directory = to.ends_with('/') || to == "." || to.ends_with("/.") || from.len() > 1;
        let place = self.absolute(to);
        let (into, rename) = match is_directory {
            true => (place, None),
            // A file gets this name; of a directory the contents go there.
            false => split(&place),
        };
        let source = Source::Context { dir: self.context.to_owned(), from: from.to_vec(), rename };
        source.check()?;
        self.steps.push(Step { title: shown(line), work: Work::Put { into, source } });
        Ok(())
    }

    fn env(&mut self, rest: &str) -> Why {
        // `ENV NAME the rest`, the form of old.
        let first = rest.split_whitespace().next().unwrap_or_default();
        if !first.contains('=') {
            let (name, value) =
                rest.split_once(char::is_whitespace).ok_or("ENV takes NAME=VALUE")?;
            let value = self.expand(value.trim())?;
            return self.set(name, value);
        }
        for word in words(rest)? {
            let (name, value) = word.split_once('=').ok_or("ENV takes NAME=VALUE")?;
            let value = self.expand(value)?;
            self.set(name, value)?;
        }
        Ok(())
    }

    fn set(&mut self, name: &str, value: String) -> Why {
        let good = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if name.is_empty() || !name.chars().all(good) {
            return Err(format!("not the name of a variable: {name}"));
        }
        self.env.insert(name.to_owned(), value);
        Ok(())
    }

    fn workdir(&mut self, rest: &str, line: &str) -> Why {
        let path = self.absolute(&self.expand(rest.trim_matches('"'))?);
        // It is there from now on, as docker has it.
        let source = Source::Inline(BTreeMap::new());
        self.steps
            .push(Step { title: shown(line), work: Work::Put { into: path.clone(), source } });
        self.workdir = Some(path);
        Ok(())
    }

    fn absolute(&self, path: &str) -> String {
        let path = path.trim_end_matches("/.").trim_end_matches('/');
        let base = self.workdir.as_deref().unwrap_or("/").trim_end_matches('/');
        match path {
            "" => "/".to_owned(),
            "." => {
                if base.is_empty() {
                    "/".into()
                } else {
                    base.to_owned()
                }
            }
            path if path.starts_with('/') => path.to_owned(),
            path => format!("{base}/{}", path.trim_start_matches("./")),
        }
    }

    /// `$NAME` and `${NAME}` of the ENV lines so far.
    fn expand(&self, text: &str) -> std::result::Result<String, String> {
        let mut out = String::new();
        let mut rest = text;
        while let Some(at) = rest.find(['$', '\\']) {
            out.push_str(&rest[..at]);
            let after = &rest[at + 1..];
            if rest[at..].starts_with('\\') {
                let escaped = after.chars().next();
                out.extend(escaped);
                rest = &after[escaped.map_or(0, char::len_utf8)..];
                continue;
            }
            let (name, left) = match after.strip_prefix('{') {
                Some(inner) => inner.split_once('}').ok_or("`${` without `}`")?,
                None => {
                    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
                    after.split_at(after.find(|c| !word(c)).unwrap_or(after.len()))
                }
            };
            if name.contains(':') {
                return Err(format!("`${{{name}}}`: only ${{NAME}} is supported"));
            }
            out.push_str(self.env.get(name).map_or("", String::as_str));
            rest = left;
        }
        out.push_str(rest);
        Ok(out)
    }
}

/// Both forms: a JSON array is a program and its arguments, anything else a line for the shell.
fn command(rest: &str) -> std::result::Result<Vec<String>, String> {
    if rest.starts_with('[')
        && let Ok(words) = serde_json::from_str::<Vec<String>>(rest)
    {
        return match words.is_empty() {
            true => Err("an empty command".into()),
            false => Ok(words),
        };
    }
    Ok(vec!["/bin/sh".into(), "-c".into(), rest.to_owned()])
}

fn json_words(rest: &str) -> std::result::Result<Vec<String>, String> {
    serde_json::from_str(rest).map_err(|_| "not a JSON array of strings".into())
}

/// Words with quotes and escapes; escapes stay for [`Reading::expand`].
fn words(text: &str) -> std::result::Result<Vec<String>, String> {
    let mut all = vec![String::new()];
    let mut quote = None;
    let mut letters = text.chars();
    while let Some(c) = letters.next() {
        let last = all.last_mut().expect("there always is one");
        match (quote, c) {
            (None, '"' | '\'') => quote = Some(c),
            (Some(open), c) if c == open => quote = None,
            (_, '\\') => last.extend(['\\'].into_iter().chain(letters.next())),
            (None, c) if c.is_whitespace() => all.push(String::new()),
            (Some('\''), '$') => last.push_str("\\$"),
            (_, c) => last.push(c),
        }
    }
    if quote.is_some() {
        return Err("a quote is not closed".into());
    }
    all.retain(|word| !word.is_empty());
    Ok(all)
}

fn is_heredoc(after: &str) -> bool {
    after.trim_start_matches('-').starts_with(|c: char| c.is_ascii_alphabetic() || c == '"')
}

fn split(path: &str) -> (String, Option<String>) {
    let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
    let parent = if parent.is_empty() { "/" } else { parent };
    (parent.to_owned(), Some(name.to_owned()).filter(|name| !name.is_empty()))
}

fn shown(line: &str) -> String {
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests;
