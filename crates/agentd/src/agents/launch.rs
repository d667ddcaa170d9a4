//! The environment of an agent's process, beside what the host lets through.

use std::collections::BTreeMap;
use std::ffi::OsString;

use crate::adapter::SessionSpec;
use crate::host::Host;

/// What the session asks for, and defaults for what neither it nor the host says.
pub(super) fn defaults_for(
    host: &Host,
    spec: &SessionSpec,
    defaults: &[(&str, &str)],
) -> BTreeMap<OsString, OsString> {
    let mut env = defaults_of(host, defaults);
    env.extend(spec.env.iter().map(|(name, value)| (name.into(), value.into())));
    env
}

/// Defaults for what the host does not say.
pub(super) fn defaults_of(host: &Host, defaults: &[(&str, &str)]) -> BTreeMap<OsString, OsString> {
    defaults
        .iter()
        .map(|(name, value)| (OsString::from(name), OsString::from(value)))
        .filter(|(name, _)| !host.environment.contains_key(name))
        .collect()
}
