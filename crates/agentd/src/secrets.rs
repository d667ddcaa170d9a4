//! Values that an agent gets in its environment and that are kept in memory alone: never in a file, a log or
//! an answer. Whoever gave them gives them again after a restart.

use std::collections::BTreeMap;
use std::fmt;

use crate::error::{Error, Result};

/// Bundles have far fewer.
pub(crate) const NAMES_MAX: usize = 256;
/// The kernel takes no longer variable than 128 KiB.
pub(crate) const VALUE_BYTES_MAX: usize = 96 * 1024;
/// Of all values together: the arguments and the environment of a program are limited too.
pub(crate) const BYTES_MAX: usize = 1024 * 1024;

/// Variables by name, checked. They are not shown.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secrets(BTreeMap<String, String>);

impl fmt::Debug for Secrets {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_set().entries(self.0.keys()).finish()
    }
}

impl Secrets {
    /// The failure names what cannot be a variable, never its value.
    pub fn new(variables: BTreeMap<String, String>) -> Result<Self> {
        if variables.len() > NAMES_MAX {
            return Err(Error::invalid(format!("secrets: at most {NAMES_MAX}")));
        }
        let mut bytes = 0;
        for (name, value) in &variables {
            if !is_variable(name, value) {
                return Err(Error::invalid(format!("secrets: not a variable: {name:?}")));
            }
            if value.len() > VALUE_BYTES_MAX {
                let message = format!("secrets.{name}: longer than {VALUE_BYTES_MAX} bytes");
                return Err(Error::invalid(message));
            }
            bytes += name.len() + value.len();
        }
        if bytes > BYTES_MAX {
            return Err(Error::invalid(format!("secrets: more than {BYTES_MAX} bytes")));
        }
        Ok(Self(variables))
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }

    pub(crate) fn get(&self, name: &str) -> Option<&String> {
        self.0.get(name)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&String, &String)> {
        self.0.iter()
    }

    /// From those of before to these.
    pub(crate) fn since(&self, before: &Self) -> Change {
        let other = |(name, value): &(&String, &String)| before.0.get(*name) != Some(*value);
        let set = self.0.iter().filter(other).map(|(name, value)| (name.clone(), value.clone()));
        let gone = before.0.keys().filter(|name| !self.0.contains_key(*name));
        Change { set: set.collect(), unset: gone.cloned().collect() }
    }
}

/// What is new or another, and what is there no more.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Change {
    pub set: BTreeMap<String, String>,
    pub unset: Vec<String>,
}

impl fmt::Debug for Change {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_set().entries(self.names()).finish()
    }
}

impl Change {
    pub(crate) fn names(&self) -> Vec<String> {
        let mut names: Vec<_> = self.set.keys().chain(&self.unset).cloned().collect();
        names.sort();
        names
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.set.is_empty() && self.unset.is_empty()
    }
}

/// Anything else would make a program fail to start in a way that nobody understands.
pub(crate) fn is_variable(name: &str, value: &str) -> bool {
    !name.is_empty() && !name.contains(['=', '\0']) && !value.contains('\0')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secrets(all: &[(&str, &str)]) -> Secrets {
        let all = all.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Secrets::new(all.collect()).unwrap()
    }

    #[test]
    fn a_change_is_what_is_new_another_or_gone() {
        let before = secrets(&[("A", "1"), ("B", "2"), ("C", "3")]);
        let after = secrets(&[("A", "1"), ("B", "9"), ("D", "4")]);
        let change = after.since(&before);
        assert_eq!(change.names(), ["B", "C", "D"]);
        assert_eq!((change.set["B"].as_str(), change.unset), ("9", vec!["C".to_owned()]));
        assert!(after.since(&after).is_empty());
    }

    #[test]
    fn no_value_is_shown() {
        let (one, none) = (secrets(&[("TOKEN", "hush")]), Secrets::default());
        assert_eq!(format!("{one:?} {:?}", one.since(&none)), r#"{"TOKEN"} {"TOKEN"}"#);
        let long = BTreeMap::from([("LONG".to_owned(), "hush".repeat(VALUE_BYTES_MAX))]);
        let refused = Secrets::new(long).unwrap_err().to_string();
        assert!(refused.contains("secrets.LONG") && !refused.contains("hush"), "{refused}");
    }

    #[test]
    fn what_cannot_be_a_variable_is_refused() {
        for (name, value) in [("", "x"), ("A=B", "x"), ("A\0", "x"), ("A", "x\0")] {
            let all = BTreeMap::from([(name.to_owned(), value.to_owned())]);
            assert!(Secrets::new(all).is_err(), "{name:?}");
        }
        let many = (0..=NAMES_MAX).map(|n| (format!("V{n}"), String::new())).collect();
        assert!(Secrets::new(many).is_err());
        let much = (0..12).map(|n| (format!("V{n}"), "x".repeat(VALUE_BYTES_MAX))).collect();
        assert!(Secrets::new(much).is_err());
    }
}
