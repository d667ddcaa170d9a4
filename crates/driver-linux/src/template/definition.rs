//! What a template is asked to be: a short TOML file. The built-in ones are part of the program.

use std::collections::BTreeMap;

use anyhow::Context;
use model::{Error, Limits, Result, TemplateName};
use serde::Deserialize;

/// The built-in definitions, in the order in which they are shown.
const BUILT_IN: &[&str] = &[
    include_str!("../../../../templates/standard.toml"),
    include_str!("../../../../templates/browser.toml"),
    include_str!("../../../../templates/cua.toml"),
    include_str!("../../../../templates/canvas.toml"),
];

/// A template's definition, checked.
#[derive(Debug, Clone)]
pub struct Definition {
    file: DefinitionFile,
    base: Base,
}

/// What the root file system starts from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Base {
    /// A Debian suite.
    Debian { suite: String },
    /// Another template, built or defined.
    Template(TemplateName),
    /// An image of a registry.
    Image(String),
}

impl Base {
    /// What `FROM` names: a template of ours if there is one, else an image.
    pub(super) fn either(text: &str) -> Result<Self> {
        match text.parse::<TemplateName>() {
            Ok(name) if definition(&name).is_some() => Ok(Self::Template(name)),
            _ => image(text),
        }
    }
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
    nesting: bool,
    #[serde(default)]
    env: BTreeMap<String, String>,
    limits: Limits,
    #[serde(default)]
    files: BTreeMap<String, TemplateFile>,
    #[serde(default)]
    run: Vec<String>,
    start: Option<String>,
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
        Ok(Self { file, base })
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

    /// Programs may make namespaces of their own.
    pub fn nesting(&self) -> bool {
        self.file.nesting
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

    /// A shell line that runs in the background of every sandbox, as the account.
    pub fn start(&self) -> Option<&str> {
        self.file.start.as_deref()
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
    let wrong = || {
        let forms = "must be debian:SUITE, template:NAME or image:REFERENCE";
        Error::invalid("base", format!("{forms}: {text:?}"))
    };
    let (kind, rest) = text.split_once(':').ok_or_else(wrong)?;
    match kind {
        "debian" if !rest.is_empty() && rest.bytes().all(plain) && !rest.starts_with('-') => {
            Ok(Base::Debian { suite: rest.to_owned() })
        }
        "template" => Ok(Base::Template(rest.parse().map_err(|_| wrong())?)),
        "image" => image(rest).map_err(|_| wrong()),
        _ => Err(wrong()),
    }
}

fn image(text: &str) -> Result<Base> {
    let parsed: std::result::Result<oci::Reference, oci::Error> = text.parse();
    parsed.map_err(|error| Error::invalid("base", error.to_string()))?;
    Ok(Base::Image(text.to_owned()))
}

fn check(file: &DefinitionFile) -> Result<()> {
    let reserved = file.name.is_of_image() || file.name.is_of_agent() || file.name.is_of_code();
    if reserved || file.name.as_str() == super::HOST {
        return Err(Error::invalid("name", format!("is taken: {}", file.name)));
    }
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
    file.limits.check()
}
