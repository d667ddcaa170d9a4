//! Where Codex finds its model: it does not look at `OPENAI_BASE_URL`, so its configuration says it.

use std::fs;
use std::io;
use std::path::PathBuf;

use crate::agents::launch::{BASE_URL, VENDOR, variable};
use crate::agents::servers::Environment;
use crate::host::Host;

/// By which a configuration of ours is known. Somebody's own is left alone.
const OURS: &str = "# Written by bastide: the model is reached through another endpoint.\n";

/// Says that the model is at `base_url`, or where the environment of the session or of the sandbox says;
/// nothing if none does.
pub(crate) fn write_config(
    host: &Host,
    session: &Environment,
    base_url: Option<&str>,
) -> io::Result<()> {
    let variable = |name: &str| variable(host, session, name);
    let home = variable("CODEX_HOME").map(PathBuf::from);
    if let Some(home) = &home {
        // It does not make it.
        fs::create_dir_all(home)?;
    }
    let named = variable(BASE_URL).filter(|_| variable(VENDOR).as_deref() == Some("openai"));
    let base_url = base_url.map(str::to_owned).or(named).filter(|url| !url.is_empty());
    let Some(base_url) = base_url else { return Ok(()) };
    let Some(dir) =
        home.or_else(|| variable("HOME").map(|home| PathBuf::from(home).join(".codex")))
    else {
        return Ok(());
    };
    let path = dir.join("config.toml");
    let text = format!(
        "{OURS}model_provider = \"bastide\"\n\n\
         [model_providers.bastide]\nname = \"bastide\"\nbase_url = {}\n\
         wire_api = \"responses\"\nenv_key = \"OPENAI_API_KEY\"\n\n\
         [features]\nplugins = false\napps = false\n",
        serde_json::Value::from(base_url)
    );
    match fs::read_to_string(&path) {
        Ok(there) if !there.starts_with(OURS) || there == text => return Ok(()),
        Ok(_) | Err(_) => {}
    }
    fs::create_dir_all(&dir)?;
    fs::write(&path, text)
}
