//! What is said of one setting, and the names that follow from its key.

/// How the text of a variable or a flag becomes a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// As it is.
    Text,
    /// `true` or `false`, also as `1` or `0`; the flag alone says `true`.
    Switch,
    /// As TOML writes it: a number, `true`, or `{ corp = ["git.corp.example:443"] }`.
    Value,
}

/// One setting.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    /// Its key in the file: `log.format` is `format` in the table `[log]`.
    pub key: &'static str,
    pub kind: Kind,
    /// What the flag shows for its value.
    pub value_name: &'static str,
    /// As the documentation shows it.
    pub default: &'static str,
    pub help: &'static str,
}

impl Setting {
    /// `BASTIDE_LOG_FORMAT`.
    pub fn variable(&self) -> String {
        format!("BASTIDE_{}", self.key.replace('.', "_").to_ascii_uppercase())
    }

    /// `log-format`.
    pub fn flag(&self) -> String {
        self.key.replace(['.', '_'], "-")
    }

    /// Its row in `docs/configuration.md`.
    pub fn row(&self) -> String {
        let (key, variable, flag) = (self.key, self.variable(), self.flag());
        let (default, help) = (self.default, self.help);
        format!("| `{key}` | `{variable}` | `--{flag}` | {default} | {help} |")
    }
}

pub(super) const fn text(
    key: &'static str,
    value_name: &'static str,
    default: &'static str,
    help: &'static str,
) -> Setting {
    Setting { key, kind: Kind::Text, value_name, default, help }
}

pub(super) const fn value(
    key: &'static str,
    value_name: &'static str,
    default: &'static str,
    help: &'static str,
) -> Setting {
    Setting { key, kind: Kind::Value, value_name, default, help }
}
