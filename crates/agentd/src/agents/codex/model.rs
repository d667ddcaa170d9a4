//! Where Codex finds its model: it does not look at `OPENAI_BASE_URL`, so its configuration says it.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::PathBuf;

use crate::host::Host;

/// By which a configuration of ours is known. Somebody's own is left alone.
const OURS: &str = "# Written by bastide: the model is reached through another endpoint.\n";

/// Says that the model is at `base_url`, or where a sandbox's environment says; nothing if neither does.
pub(crate) fn write_config(host: &Host, base_url: Option<&str>) -> io::Result<()> {
    let variable = |name: &str| host.environment.get(&OsString::from(name));
    let of_sandbox = variable("LLM_VENDOR").is_some_and(|vendor| vendor == "openai");
    let named = variable("LLM_BASE_URL").filter(|_| of_sandbox).and_then(|url| url.to_str());
    let Some(base_url) = base_url.or(named).filter(|url| !url.is_empty()) else { return Ok(()) };
    let home = variable("CODEX_HOME").map(PathBuf::from);
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
