//! What a template is asked to be: a short TOML file. The built-in ones are part of the program.

use std::collections::BTreeMap;

use anyhow::Context;
use model::{Error, Limits, Result, TemplateName};
use serde::Deserialize;

/// The built-in definitions, in the order in which they are shown.
const BUILT_IN: &[&str] = &[include_str!("../../../../templates/standard.toml")];

/// A template's definition, checked.
#[derive(Debug, Clone)]
pub struct Definition {
    file: DefinitionFile,
    base: Base,
    /// What it was parsed from; part of the digest.
    text: String,
}

/// What the root file system starts from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Base {
    /// A Debian suite, made by mmdebstrap.
    Debian { suite: String },
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct DefinitionFile {
    name: TemplateName,
    description: String,
    base: String,
    #[serde(default)]
    packages: Vec<String>,
    user: String,
    #[serde(default)]
    sudo: bool,
    #[serde(default)]
    env: BTreeMap<String, String>,
    limits: Limits,
    #[serde(default)]
    files: BTreeMap<String, TemplateFile>,
    #[serde(default)]
    run: Vec<String>,
}

/// A file that is put into the template; its path is the key.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TemplateFile {
    pub content: String,
    #[serde(default)]
    pub executable: bool,
}

impl Definition {
    pub fn parse(text: &str) -> Result<Self> {
        let file: DefinitionFile = toml::from_str(text)
            .map_err(|error| Error::invalid("template", error.to_string().trim_end().to_owned()))?;
        let base = parse_base(&file.base)?;
        check(&file)?;
        Ok(Self { file, base, text: text.to_owned() })
    }

    pub fn name(&self) -> &TemplateName {
        &self.file.name
    }

    pub fn description(&self) -> &str {
        &self.file.description
    }

    pub fn base(&self) -> &Base {
        &self.base
    }

    pub fn packages(&self) -> &[String] {
        &self.file.packages
    }

    /// The account that commands run as.
    pub fn user(&self) -> &str {
        &self.file.user
    }

    pub fn sudo(&self) -> bool {
        self.file.sudo
    }

    pub fn env(&self) -> &BTreeMap<String, String> {
        &self.file.env
    }

    pub fn limits(&self) -> Limits {
        self.file.limits
    }

    /// Files by their absolute path.
    pub fn files(&self) -> &BTreeMap<String, TemplateFile> {
        &self.file.files
    }

    /// Shell lines, run as root in the root file system after the packages are in.
    pub fn run(&self) -> &[String] {
        &self.file.run
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }
}

/// The definitions that come with the program.
pub fn definitions() -> Vec<Definition> {
    BUILT_IN
        .iter()
        .map(|text| Definition::parse(text).context("built-in template"))
        .collect::<anyhow::Result<_>>()
        .expect("a test parses every built-in definition")
}

/// The built-in definition of that name.
pub fn definition(name: &TemplateName) -> Option<Definition> {
    definitions().into_iter().find(|definition| definition.name() == name)
}

fn parse_base(text: &str) -> Result<Base> {
    let plain = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
    match text.strip_prefix("debian:") {
        Some(suite) if suite.bytes().all(plain) && !suite.is_empty() && !suite.starts_with('-') => {
            Ok(Base::Debian { suite: suite.to_owned() })
        }
        _ => Err(Error::invalid("base", format!("must be debian:SUITE: {text:?}"))),
    }
}

fn check(file: &DefinitionFile) -> Result<()> {
    // They become arguments of programs, so nothing that could be an option or a list.
    let package = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || b"+-.".contains(&c);
    let plain_start = |text: &str| text.bytes().next().is_some_and(|c| c.is_ascii_alphanumeric());
    for name in &file.packages {
        if !plain_start(name) || !name.bytes().all(package) {
            return Err(Error::invalid("packages", format!("not a package name: {name:?}")));
        }
    }
    let account = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'_' || c == b'-';
    let user = &file.user;
    if user.is_empty() || user.len() > 32 || !plain_start(user) || !user.bytes().all(account) {
        return Err(Error::invalid("user", format!("not an account name: {user:?}")));
    }
    for path in file.files.keys() {
        if !path.starts_with('/') || path.split('/').any(|part| part == "..") {
            return Err(Error::invalid("files", format!("must be absolute, without ..: {path:?}")));
        }
    }
    Ok(())
}
