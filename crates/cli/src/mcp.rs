//! `bastide mcp`: code mode by itself. It is `bastide serve` with other defaults, and with the variables
//! that the document of code mode names; with `--stdio` it speaks over standard input and output, for a
//! server of its own or for one that runs.

mod bridge;
mod dotenv;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use server::Config;
use server::config::{Environment, Flags, load};

use crate::client::Client;
use crate::failure::Failure;
use crate::serve;

const PORT: u16 = 3000;
/// In the current directory.
const DOTENV: &str = ".env";
/// Sandboxes that wait for calls, unless somebody says otherwise.
const WARM: &str = "2";
/// Until a server of its own answers.
const START_WAIT: Duration = Duration::from_secs(60);

#[derive(Debug, Args)]
pub(crate) struct McpArgs {
    /// Speak over standard input and output
    #[arg(long)]
    stdio: bool,
    /// A server that runs, instead of one of its own; with --stdio
    #[arg(long, value_name = "URL", conflicts_with = "spec")]
    server: Option<String>,
    /// The API key, with --stdio; default: the operator's key in the data directory
    #[arg(long, value_name = "FILE", requires = "stdio")]
    key_file: Option<PathBuf>,
    /// Another API to call, by its description (same as --code-spec)
    #[arg(long, value_name = "URL|FILE")]
    spec: Option<String>,
    /// Where that API is (same as --code-api-base)
    #[arg(long, value_name = "URL", requires = "spec")]
    api_base: Option<String>,
    #[command(flatten)]
    flags: Flags,
}

pub(crate) fn execute(args: &McpArgs) -> Result<ExitCode, Failure> {
    let said = Said::of_process()?;
    let key = said.get(&["BASTIDE_API_KEY", "E2B_API_KEY"]);
    let key = match &args.key_file {
        Some(file) => Some(read_key(file)?),
        None => key,
    };
    if let Some(server) = &args.server {
        let client = client_of(server, args, key)?;
        return crate::block_on(async move {
            bridge::run(&client).await?;
            Ok(ExitCode::SUCCESS)
        });
    }
    let mut environment = said.environment()?;
    let mut set = |name: &str, value: &Option<String>| {
        if let Some(value) = value {
            environment.variables.insert(name.to_owned(), value.clone());
        }
    };
    set("BASTIDE_CODE_SPEC", &args.spec);
    set("BASTIDE_CODE_API_BASE", &args.api_base);
    if args.stdio {
        // Nobody else is to find it.
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
        set("BASTIDE_LISTEN", &Some(free.to_string()));
    }
    let data_dir_named = environment.variables.contains_key("BASTIDE_DATA_DIR")
        || args.flags.values.iter().any(|(setting, _)| setting.key == "data_dir");
    let mut config = load(&args.flags, &environment)?;
    if config.code.api_base.is_some() && !data_dir_named {
        // Another server of this machine knows its own keys, not those of another API.
        config.data_dir = config.data_dir.join("mcp");
    }
    if !args.stdio {
        return serve::run(config, None);
    }
    serve::run(config.clone(), Some(Box::new(move || Box::pin(stdio(config, key)))))
}

/// Of a server that runs. Over HTTP it answers itself: there is nothing to do in between.
fn client_of(server: &str, args: &McpArgs, key: Option<String>) -> Result<Client, Failure> {
    if !args.stdio {
        let at = server.trim_end_matches('/');
        return Err(Failure::new(format!("{server} answers over HTTP itself, at {at}/mcp"))
            .hint("give clients that URL, or add --stdio for those that start a program"));
    }
    if let Some((setting, _)) = args.flags.values.first() {
        let flag = setting.flag();
        let what = format!("--{flag} is a setting of a server of its own; --server names another");
        return Err(Failure::new(what).hint(format!("leave out --{flag} or --server")));
    }
    let key = key.ok_or_else(|| {
        Failure::new("there is no API key").hint("set BASTIDE_API_KEY, or --key-file FILE")
    })?;
    Client::to(server, Some(key))
}

/// Speaks for a server of this process.
async fn stdio(config: Config, key: Option<String>) -> anyhow::Result<()> {
    let address = config.listen.0.first().copied().unwrap_or(([127, 0, 0, 1], PORT).into());
    let operator = config.data_dir.join(server::OPERATOR_KEY_FILE);
    let began = tokio::time::Instant::now();
    while tokio::net::TcpStream::connect(address).await.is_err() || !operator.exists() {
        anyhow::ensure!(began.elapsed() < START_WAIT, "the server does not start");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let key = match key {
        Some(key) => key,
        None => read_key(&operator).map_err(|failure| anyhow::anyhow!(failure.message))?,
    };
    let client = Client::to(&format!("http://{address}"), Some(key));
    let client = client.map_err(|failure| anyhow::anyhow!(failure.message))?;
    bridge::run(&client).await.map_err(|failure| anyhow::anyhow!(failure.message))
}

fn read_key(file: &Path) -> Result<String, Failure> {
    let text = std::fs::read_to_string(file)
        .map_err(|error| Failure::new(format!("cannot read {}: {error}", file.display())))?;
    Ok(text.trim().to_owned())
}

/// What the environment says in the document's words, with our prefix and without (ruling 45).
struct Said(BTreeMap<String, String>);

impl Said {
    /// The process's variables, and those of the file `.env` that it does not have.
    fn of_process() -> Result<Self, Failure> {
        let mut all = match std::fs::read_to_string(DOTENV) {
            Ok(text) => dotenv::read(&text),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => BTreeMap::new(),
            Err(error) => return Err(Failure::new(format!("cannot read {DOTENV}: {error}"))),
        };
        all.extend(std::env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        }));
        Ok(Self(all))
    }

    /// The first of these that is set.
    fn get(&self, names: &[&str]) -> Option<String> {
        names.iter().find_map(|name| self.0.get(*name).filter(|text| !text.is_empty())).cloned()
    }

    /// The same as settings of a server.
    fn environment(&self) -> Result<Environment, Failure> {
        let mut environment = Environment::of_process();
        let own = ["HOST", "TEMPLATE", "EXEC_TIMEOUT_MS", "OPENAPI_URL", "MCP_DEBUG_ENDPOINT"];
        for name in own {
            environment.variables.remove(&format!("BASTIDE_{name}"));
        }
        let mut default = |setting: &str, value: String| {
            environment.variables.entry(format!("BASTIDE_{setting}")).or_insert(value);
        };
        default("LISTEN", self.listen()?.to_string());
        default("CODE_WARM", WARM.to_owned());
        default(
            "LOG_FORMAT",
            self.get(&["BASTIDE_LOG_FORMAT", "LOG_FORMAT"]).unwrap_or_else(|| "json".to_owned()),
        );
        let debug = self.get(&["BASTIDE_MCP_DEBUG_ENDPOINT", "MCP_DEBUG_ENDPOINT"]);
        let debug = debug.as_deref() != Some("false");
        default("CODE_DEBUG_ENDPOINT", debug.to_string());
        if let Some(template) = self.get(&["BASTIDE_TEMPLATE", "E2B_TEMPLATE"]) {
            default("CODE_TEMPLATE", template);
            default("CODE_RUNTIME", "node".to_owned());
        }
        if let Some(limit) = self.get(&["BASTIDE_EXEC_TIMEOUT_MS", "E2B_EXEC_TIMEOUT_MS"]) {
            default("CODE_TIMEOUT_MS", limit);
        }
        if let Some(spec) = self.get(&["BASTIDE_OPENAPI_URL", "E2B_OPENAPI_URL"]) {
            default("CODE_SPEC", spec);
        }
        if let Some(level) = self.get(&["BASTIDE_LOG_LEVEL", "LOG_LEVEL"]) {
            let level = level_of(&level).to_owned();
            environment.variables.insert("BASTIDE_LOG_LEVEL".to_owned(), level);
        }
        Ok(environment)
    }

    fn listen(&self) -> Result<SocketAddr, Failure> {
        let wrong = |name: &str, text: &str| Failure::new(format!("{name}: not valid: {text:?}"));
        let host = self.get(&["BASTIDE_HOST", "HOST"]);
        let host = match host.as_deref() {
            None | Some("localhost") => IpAddr::from(Ipv4Addr::LOCALHOST),
            Some(text) => text.parse().map_err(|_| wrong("HOST", text))?,
        };
        let port = match self.get(&["BASTIDE_PORT", "PORT"]) {
            None => PORT,
            Some(text) => text.parse().map_err(|_| wrong("PORT", &text))?,
        };
        Ok((host, port).into())
    }
}

/// The document's words for levels that are ours by another name.
fn level_of(level: &str) -> &str {
    match level {
        "fatal" => "error",
        "silent" => "off",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(pairs: &[(&str, &str)]) -> Said {
        Said(pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
    }

    #[track_caller]
    fn check(pairs: &[(&str, &str)], setting: &str, wanted: Option<&str>) {
        let environment = said(pairs).environment().unwrap();
        assert_eq!(environment.variables.get(setting).map(String::as_str), wanted, "{setting}");
    }

    #[test]
    fn every_variable_of_the_document_is_a_setting() {
        check(&[], "BASTIDE_LISTEN", Some("127.0.0.1:3000"));
        check(&[("PORT", "4000"), ("HOST", "0.0.0.0")], "BASTIDE_LISTEN", Some("0.0.0.0:4000"));
        let both = [("PORT", "4000"), ("BASTIDE_PORT", "5000")];
        check(&both, "BASTIDE_LISTEN", Some("127.0.0.1:5000"));
        check(&[], "BASTIDE_CODE_TEMPLATE", None);
        for name in ["E2B_TEMPLATE", "BASTIDE_TEMPLATE"] {
            check(&[(name, "base")], "BASTIDE_CODE_TEMPLATE", Some("base"));
            check(&[(name, "base")], "BASTIDE_CODE_RUNTIME", Some("node"));
        }
        for name in ["E2B_EXEC_TIMEOUT_MS", "BASTIDE_EXEC_TIMEOUT_MS"] {
            check(&[(name, "5000")], "BASTIDE_CODE_TIMEOUT_MS", Some("5000"));
        }
        for name in ["E2B_OPENAPI_URL", "BASTIDE_OPENAPI_URL"] {
            check(&[(name, "http://x/y")], "BASTIDE_CODE_SPEC", Some("http://x/y"));
        }
        check(&[], "BASTIDE_CODE_DEBUG_ENDPOINT", Some("true"));
        check(&[("MCP_DEBUG_ENDPOINT", "false")], "BASTIDE_CODE_DEBUG_ENDPOINT", Some("false"));
        for name in ["LOG_LEVEL", "BASTIDE_LOG_LEVEL"] {
            check(&[(name, "silent")], "BASTIDE_LOG_LEVEL", Some("off"));
            check(&[(name, "fatal")], "BASTIDE_LOG_LEVEL", Some("error"));
        }
        check(&[], "BASTIDE_LOG_FORMAT", Some("json"));
        check(&[("LOG_FORMAT", "pretty")], "BASTIDE_LOG_FORMAT", Some("pretty"));
        assert!(said(&[("PORT", "x")]).environment().is_err());
    }
}
