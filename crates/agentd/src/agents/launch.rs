//! The environment of an agent's process, beside what the host lets through.

use std::collections::BTreeMap;
use std::ffi::OsString;

use crate::adapter::SessionSpec;
use crate::host::Host;

/// Whose model it is, and where: what a session, or its sandbox, says to every agent.
pub(crate) const VENDOR: &str = "LLM_VENDOR";
pub(crate) const BASE_URL: &str = "LLM_BASE_URL";
pub(crate) const KEY: &str = "LLM_API_KEY";
pub(crate) const MODEL: &str = "LLM_MODEL";

/// Of the session, else of the host.
pub(super) fn variable(
    host: &Host,
    session: &BTreeMap<String, String>,
    name: &str,
) -> Option<String> {
    let of_host = || host.environment.get(&OsString::from(name))?.to_str().map(str::to_owned);
    session.get(name).cloned().or_else(of_host)
}

/// What the session asks for, and defaults for what neither it nor the host says.
pub(super) fn defaults_for(
    host: &Host,
    spec: &SessionSpec,
    defaults: &[(&str, &str)],
) -> BTreeMap<OsString, OsString> {
    let mut env = defaults_of(host, defaults);
    env.extend(spec.environment().into_iter().map(|(name, value)| (name.into(), value.into())));
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
