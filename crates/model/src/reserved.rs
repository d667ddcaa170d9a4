//! Environment names that callers may not set (000 *POST /v1/sandboxes*, ruling 16).

use std::collections::BTreeMap;

use crate::Error;

const RESERVED: [&str; 13] = [
    "AGENT_TYPE",
    "LLM_KEY",
    "LLM_MODEL",
    "TASK",
    "SESSION_ID",
    "AGENT_CMD",
    "AGENT_SESSION_MODE",
    "E2A_PERSISTENCE_URL",
    "E2A_PERSISTENCE_AUTH_HEADER",
    "WORKSPACE_USER_ID",
    "WORKSPACE_APP_ID",
    "WORKSPACE_CAPSET_ID",
    "WORKSPACE_MODE",
];

/// Variables, names and values together; the kernel's own limit for one exec is 2 MiB.
const ENV_COUNT_MAX: usize = 256;
const ENV_BYTES_MAX: usize = 256 * 1024;

/// Whether the platform sets this variable itself.
pub(crate) fn is_reserved(name: &str) -> bool {
    RESERVED.contains(&name)
}

/// Checks an environment that a caller sent as `field`.
pub fn check_env(field: &str, env: &BTreeMap<String, String>) -> Result<(), Error> {
    if env.len() > ENV_COUNT_MAX {
        return Err(Error::invalid(field, format!("at most {ENV_COUNT_MAX} variables")));
    }
    let bytes: usize = env.iter().map(|(k, v)| k.len() + v.len() + 2).sum();
    if bytes > ENV_BYTES_MAX {
        return Err(Error::invalid(field, format!("at most {ENV_BYTES_MAX} bytes in all")));
    }
    for (name, value) in env {
        let named = format!("{field}.{name}");
        if is_reserved(name) || name == "LLM_API_KEY" {
            return Err(Error::invalid(named, "this name is reserved"));
        }
        let first_is_digit = name.bytes().next().is_none_or(|c| c.is_ascii_digit());
        let good = |c: u8| c.is_ascii_alphanumeric() || c == b'_';
        if first_is_digit || !name.bytes().all(good) {
            return Err(Error::invalid(named, "must be letters, digits and _, no digit first"));
        }
        if value.contains('\0') {
            return Err(Error::invalid(named, "must not contain a NUL byte"));
        }
    }
    Ok(())
}
